"""Partition trees: nested partitions of an axis, from one folder with all elements down to single elements.

Tree        a partition tree: labels per level, leaf order, Haar basis
planted     random tensors with a known tree per axis, for tests and benchmarks
Folders     the distinct folders of a tree, with sizes, levels and weights
Rotations   the Haar transform along a tree as n − 1 plane rotations

partition   partitions as integer labels (private helpers)
"""

from attngeo.organization.trees.folders import Folders
from attngeo.organization.trees.haar_rotations import Rotations
from attngeo.organization.trees.planted import planted
from attngeo.organization.trees.tree import Tree

__all__ = ["Folders", "Rotations", "Tree", "planted"]
