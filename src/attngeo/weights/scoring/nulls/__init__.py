"""What scores are by chance.

gaussian_null, rotary_null    the distribution of all scores for independent Gaussian factors of one shape
RepairedNull                  scores of a model's queries with keys they were not trained with
layer_nulls, head_nulls       the Gaussian null of the layers and of the heads of each stack in a table
"""

from attngeo.weights.scoring.nulls.gaussian import GaussianNull, gaussian_null, rotary_null
from attngeo.weights.scoring.nulls.layer_nulls import LayerNulls, NullLevel, head_nulls, layer_nulls
from attngeo.weights.scoring.nulls.repaired import RepairedNull

__all__ = [
    "GaussianNull",
    "LayerNulls",
    "NullLevel",
    "RepairedNull",
    "gaussian_null",
    "head_nulls",
    "layer_nulls",
    "rotary_null",
]
