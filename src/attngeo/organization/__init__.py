"""Organise a network: its tensor of queries × keys × heads, the trees of its axes, and what they show.

A network and its geometry
    NetworkTensor        queries × keys × heads of one input, with labels and mask
    organize             tensor → Organization: a tree and an affinity for every axis
    Organization         the trees, the history, the reordered tensor, the head embedding
    expand, Expansion    Haar coefficients along the trees: entropy, sparsity, regularity
    Comparison           those figures beside their controls
    softmax_invariance   does the softmax leave the geometry alone? → InvarianceReport
    paraproduct          A(f) along two trees → Paraproduct: exact, approximation, residual

Underneath
    cosine_affinity, gaussian_affinity, affinity_from_distance    who is near whom
    tree_distance        distances of slices through the trees of the other axes
    diffusion_map        coordinates of a random walk on an affinity
    flexible_tree, binary_tree, haar_tree, Tree                   hierarchies
    planted              tensors with a hierarchy put into them, for tests
"""

from attngeo.organization.capture.network_tensor import NetworkTensor
from attngeo.organization.expansion.controls import Comparison
from attngeo.organization.expansion.expansion import Expansion, expand
from attngeo.organization.geometry.affinity import affinity_from_distance, cosine_affinity, gaussian_affinity
from attngeo.organization.geometry.diffusion import diffusion_map
from attngeo.organization.geometry.tree_distance import tree_distance
from attngeo.organization.organization import Organization
from attngeo.organization.organize import organize
from attngeo.organization.questionnaire.grow import binary_tree, flexible_tree
from attngeo.organization.questionnaire.iterate import Step
from attngeo.organization.questionnaire.refine import haar_tree
from attngeo.organization.softmax.invariance import softmax_invariance
from attngeo.organization.softmax.invariance_report import InvarianceReport
from attngeo.organization.softmax.paraproduct import Paraproduct, paraproduct
from attngeo.organization.trees.planted import planted
from attngeo.organization.trees.tree import Tree

__all__ = [
    "Comparison",
    "Expansion",
    "InvarianceReport",
    "NetworkTensor",
    "Organization",
    "Paraproduct",
    "Step",
    "Tree",
    "affinity_from_distance",
    "binary_tree",
    "cosine_affinity",
    "diffusion_map",
    "expand",
    "flexible_tree",
    "gaussian_affinity",
    "haar_tree",
    "organize",
    "paraproduct",
    "planted",
    "softmax_invariance",
    "tree_distance",
]
