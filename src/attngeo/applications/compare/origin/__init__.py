"""Are two models related? The matched cosine of their heads, compared with permuted bases.

Relation                    p-value, cosines and the verdict
relation_by_permutation     the test: the residual basis of one model permuted
ReducedShape, reduced_forms the hidden dimensions, layers and heads that the test uses
statistic, matched_cosine   mean over layers of the best assignment of heads
has_fixed_positions         models whose basis is pinned by sinusoids, for which there is no verdict
"""

from attngeo.applications.compare.origin.fixed_positions import has_fixed_positions
from attngeo.applications.compare.origin.matched_cosine import (
    best_assignment,
    cosine_matrix,
    matched_cosine,
    unit_columns,
    unit_forms,
)
from attngeo.applications.compare.origin.permuted_basis import permuted_statistics, statistic, wrongly_paired
from attngeo.applications.compare.origin.reduced_forms import ReducedShape, reduced_forms
from attngeo.applications.compare.origin.relation import DRAWS, LEVEL, Relation, judged, relation_by_permutation
from attngeo.applications.compare.p_values import p_value

__all__ = [
    "DRAWS",
    "LEVEL",
    "ReducedShape",
    "Relation",
    "best_assignment",
    "cosine_matrix",
    "has_fixed_positions",
    "judged",
    "matched_cosine",
    "p_value",
    "permuted_statistics",
    "reduced_forms",
    "relation_by_permutation",
    "statistic",
    "unit_columns",
    "unit_forms",
    "wrongly_paired",
]
