"""Organise a network: find trees for the axes of its tensor of queries × keys × heads, and measure what they show.

Results
    organize             a tensor or a matrix → Organization
    Organization         a tree and an affinity per axis, all steps, the reordered tensor, the diffusion map
    Step                 the state after one iteration of `organize`
    expand, Expansion    Haar coefficients along the trees: entropy, sparsity, smoothness
    Comparison           the same figures together with those of controls
    softmax_invariance   the geometry before and after the softmax → InvarianceReport
    paraproduct          A(f) split along two trees → Paraproduct: exact value, approximation, residual
    NetworkTensor        queries × keys × heads of one input, with labels and mask
    Tree                 a partition tree

Steps of the algorithm
    cosine_affinity, gaussian_affinity      affinity of the slices of an axis
    tree_distance                           distances between slices, given the trees of the other axes
    affinity_from_distance                  a distance matrix as an affinity
    flexible_tree, binary_tree, haar_tree   trees from an affinity, or from Haar coefficients
    diffusion_map                           coordinates of the elements, from an affinity
    planted                                 random tensors with known trees, for tests

Packages, each of which uses only those below it
    softmax         the paraproduct and softmax invariance
    expansion       Haar expansion of a tensor and its controls
    questionnaire   the iteration that finds the trees
    haar            the Haar transform, sparsity, smoothness
    geometry        affinities, the tree distance, diffusion, agreement
    trees           partition trees
    capture         from a model and an input to the network tensor
    kernels         compiled loops for CPU and GPU
"""

from attngeo.organization.capture.network_tensor import NetworkTensor
from attngeo.organization.expansion.controls import Comparison
from attngeo.organization.expansion.expansion import Expansion, expand
from attngeo.organization.geometry.affinity import affinity_from_distance, cosine_affinity, gaussian_affinity
from attngeo.organization.geometry.diffusion import diffusion_map
from attngeo.organization.geometry.tree_distance import tree_distance
from attngeo.organization.organization import Organization
from attngeo.organization.organize import organize
from attngeo.organization.questionnaire.binary_tree import binary_tree
from attngeo.organization.questionnaire.flexible_tree import flexible_tree
from attngeo.organization.questionnaire.haar_tree import haar_tree
from attngeo.organization.questionnaire.iterate import Step
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
