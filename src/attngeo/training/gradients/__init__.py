"""The gradient of a loss, written as the rank-1 terms that it adds to the form of each head.

    gradient_terms   a model and a batch with labels → GradientTerms; with masks → ExpectedTerms
    expected_terms   a model and many batches → ExpectedTerms
    GradientTerms    all heads: scores as a frame, contributions by position, a figure
    LayerTerms       one layer: x, β, q̂, k̂, the scale c, the weights and their gradients
    HeadTerms        one head: its update U = −∂L/∂M, the roles of its tokens, the change of M in a step
    Role             what each token adds as context or as prediction
    WeightTerms      query and key weights with their gradients
    UpdateScores     symmetry, directionality and spreads of an update
    ExpectedTerms    all heads: scores of the update averaged over many passes
    ExpectedScores   one head of it
    Growth           how fast the symmetric or the skew part of a form grows, and through which pairs of tokens

Modules: `gradient_terms` (the function), `single_pass` (one pass), `projections` (the modules that compute queries and
keys), `recorder` (the forward pass), `backward` (from the loss to β and to the weight gradients), `head_terms` and
`result` (the result); `expected_terms` and `layer_sums` (many passes), `masked_batches` (one text under many masks),
`growth` and `expected_scores` (their result).
"""

from attngeo.training.gradients.expected_scores import ExpectedScores, ExpectedTerms
from attngeo.training.gradients.expected_terms import expected_terms
from attngeo.training.gradients.gradient_terms import gradient_terms
from attngeo.training.gradients.growth import Growth
from attngeo.training.gradients.head_terms import HeadTerms, Role, UpdateScores, WeightTerms
from attngeo.training.gradients.result import GradientTerms, LayerTerms

__all__ = [
    "ExpectedScores",
    "ExpectedTerms",
    "GradientTerms",
    "Growth",
    "HeadTerms",
    "LayerTerms",
    "Role",
    "UpdateScores",
    "WeightTerms",
    "expected_terms",
    "gradient_terms",
]
