"""The paraproduct of a function, and whether the softmax preserves the geometry of the logits.

paraproduct, Paraproduct               A(f) split along two trees: exact value, approximation, residual
softmax_invariance, InvarianceReport   the geometry before and after the softmax, compared with a control
"""

from attngeo.organization.softmax.invariance import softmax_invariance
from attngeo.organization.softmax.invariance_report import InvarianceReport
from attngeo.organization.softmax.paraproduct import Paraproduct, paraproduct

__all__ = ["InvarianceReport", "Paraproduct", "paraproduct", "softmax_invariance"]
