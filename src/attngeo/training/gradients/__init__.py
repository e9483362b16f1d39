"""The gradient of a loss, written as the rank-1 terms that it adds to the form of each head.

gradient_terms   a model and a batch with labels → GradientTerms; with masks → ExpectedTerms
expected_terms   a model and many batches → ExpectedTerms: scores of the update averaged over many passes
terms            GradientTerms of a model, LayerTerms, HeadTerms: x, β, q̂, k̂, the update U = −∂L/∂M, roles of tokens
single_pass      one pass forwards and backwards: from the loss to β and to the gradients of the weights
recorder         the self-attention layers of a live model, and what their modules compute in the forward pass
"""

from attngeo.training.gradients.expected_terms import ExpectedScores, ExpectedTerms, Growth, expected_terms
from attngeo.training.gradients.gradient_terms import gradient_terms
from attngeo.training.gradients.terms import GradientTerms, HeadTerms, LayerTerms, Role, UpdateScores, WeightTerms

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
