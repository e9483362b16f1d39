"""The Haar expansion of a tensor along its trees, and the controls it is compared with.

expand, Expansion    coefficients, entropy, sparsity and smoothness
Comparison           the same figures for controls: shuffled axes, dyadic trees, cosines, permuted values
Profile              the figures of one basis
"""

from attngeo.organization.expansion.controls import Comparison, Profile
from attngeo.organization.expansion.expansion import Expansion, expand

__all__ = ["Comparison", "Expansion", "Profile", "expand"]
