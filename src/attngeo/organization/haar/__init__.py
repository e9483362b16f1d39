"""The Haar transform along trees, and the sparsity and smoothness of its coefficients.

forward, inverse     the Haar transform of an array along any of its axes
sparsity, Sparsity   l1 entropy, shares of the energy, best-n-term errors
holder, Holder       the mixed-Hölder exponent of the coefficients
"""

from attngeo.organization.haar.smoothness import Holder, holder
from attngeo.organization.haar.sparsity import Sparsity, sparsity
from attngeo.organization.haar.transform import forward, inverse

__all__ = ["Holder", "Sparsity", "forward", "holder", "inverse", "sparsity"]
