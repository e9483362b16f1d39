"""Affinities, the tree distance, diffusion, and the agreement of two geometries.

cosine_affinity, gaussian_affinity   the affinity of the slices of an axis
tree_distance, SliceDistances        distances between slices given the trees of the other axes
affinity_from_distance               a distance matrix as an affinity
diffusion, diffusion_map             a random walk on an affinity: distances, coordinates
agreement, Agreement                 agreement of two affinities, trees and diffusion maps
closeness_correlation                agreement of two trees in one number
l1_distances, l1_between, l1_norm    l1 distances between many points, l1 norm of an array

folder_mean_distance                 the sum inside the tree distance, for given folders (private)
partial_sums                         sums in threads that do not depend on the number of threads (private)
"""

from attngeo.organization.geometry.affinity import affinity_from_distance, cosine_affinity, gaussian_affinity
from attngeo.organization.geometry.agreement import Agreement, agreement
from attngeo.organization.geometry.diffusion import Diffusion, diffusion, diffusion_map
from attngeo.organization.geometry.l1 import l1_between, l1_distances, l1_norm
from attngeo.organization.geometry.tree_agreement import LevelAgreement, closeness_correlation
from attngeo.organization.geometry.tree_distance import SliceDistances, tree_distance

__all__ = [
    "Agreement",
    "Diffusion",
    "LevelAgreement",
    "SliceDistances",
    "affinity_from_distance",
    "agreement",
    "closeness_correlation",
    "cosine_affinity",
    "diffusion",
    "diffusion_map",
    "gaussian_affinity",
    "l1_between",
    "l1_distances",
    "l1_norm",
    "tree_distance",
]
