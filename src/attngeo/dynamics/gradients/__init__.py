"""One backward pass, written as the rank-1 terms that it adds to the form of each head.

    gradient_terms   a model and a batch with labels → GradientTerms
    GradientTerms    all heads: scores as a frame, contributions by position, a figure
    LayerTerms       one layer: x, β, q̂, k̂, the scale c, the weights and their gradients
    HeadTerms        one head: its update U = −∂L/∂M, the roles of its tokens, the change of M in a step
    Role             what each token adds as context or as prediction
    WeightTerms      query and key weights with their gradients
    UpdateScores     symmetry, directionality and spreads of an update

Modules: `gradient_terms` (the function), `projections` (the modules that compute queries and keys), `recorder` (the
forward pass), `backward` (from the loss to β and to the weight gradients), `head_terms` and `result` (the result).
"""

from attngeo.dynamics.gradients.gradient_terms import gradient_terms
from attngeo.dynamics.gradients.head_terms import HeadTerms, Role, UpdateScores, WeightTerms
from attngeo.dynamics.gradients.result import GradientTerms, LayerTerms

__all__ = ["GradientTerms", "HeadTerms", "LayerTerms", "Role", "UpdateScores", "WeightTerms", "gradient_terms"]
