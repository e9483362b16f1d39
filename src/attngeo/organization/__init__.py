"""Organise a network: find trees for the axes of its tensor of queries × keys × heads, and measure what they show.

Results
    organize             a tensor or a matrix → Organization
    Organization         a tree and an affinity per axis, all steps, the reordered tensor, the diffusion map
    Step                 the state after one iteration of `organize`
    expand, Expansion    Haar coefficients along the trees: entropy, sparsity, smoothness
    SparsityControls     the same figures together with those of controls
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

Modules
    capture, inputs, recorder, tensor    from a model and an input to the network tensor
    tree, planted                        partition trees; random tensors with known ones
    affinity, distance, agreement        the geometry of the slices of an axis
    haar, coefficients                   the Haar transform and what its coefficients show
    grow, organize                       trees of one axis; of all axes in turn
    expansion, quantised                 coefficients with controls; the few that rebuild any head
    paraproduct, invariance              what the softmax does to the geometry
    kernels, cpu_kernels, gpu_kernels    compiled loops
    checks                               checks of input
"""

from attngeo.organization.affinity import affinity_from_distance, cosine_affinity, diffusion_map, gaussian_affinity
from attngeo.organization.distance import tree_distance
from attngeo.organization.expansion import Expansion, SparsityControls, expand
from attngeo.organization.grow import binary_tree, flexible_tree, haar_tree
from attngeo.organization.invariance import InvarianceReport, softmax_invariance
from attngeo.organization.organize import Organization, Step, organize
from attngeo.organization.paraproduct import Paraproduct, paraproduct
from attngeo.organization.planted import planted
from attngeo.organization.tensor import NetworkTensor
from attngeo.organization.tree import Tree

__all__ = [
    "Expansion",
    "InvarianceReport",
    "NetworkTensor",
    "Organization",
    "Paraproduct",
    "SparsityControls",
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
