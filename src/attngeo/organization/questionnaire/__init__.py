"""The questionnaire: the tree of each axis is built from the trees of the other axes, in turn, until none changes.

settle, Settled           the whole iteration, and its result
Settings, Step            its settings, and the state after one iteration
flexible_tree             a tree from an affinity, built from the elements up
binary_tree               a tree from an affinity, cut from the root down
haar_tree                 a tree that minimises the l1 norm of the Haar coefficients (the refining round)
prepared                  an input array, checked and moved to a device
"""

from attngeo.organization.questionnaire.binary_tree import binary_tree
from attngeo.organization.questionnaire.flexible_tree import flexible_tree
from attngeo.organization.questionnaire.haar_tree import haar_tree
from attngeo.organization.questionnaire.iterate import Settled, Step, prepared, settle
from attngeo.organization.questionnaire.settings import Settings

__all__ = ["Settings", "Settled", "Step", "binary_tree", "flexible_tree", "haar_tree", "prepared", "settle"]
