"""Symmetry and directionality of the QK form M = W_q W_kᵀ, their nulls, and tables of scores.

Scores of a model
    score                      every layer and head of a checkpoint, compared with both nulls → ScoreTable
    ScoreTable                 a tidy table that summarises, draws, saves and loads
    published, list_published  the scores published with arXiv 2502.10927
    compare_with_published     a scored model compared with them
    verdicts                   what the scores of each stack say, in one sentence → Verdict

Scores of a form
    Form                       one form, kept as its factors
    LayerFactors, head_scores, layer_scores, fold_norm    all forms of one attention layer

Formulas, for NumPy and torch, with batch axes
    symmetry                   s(M) = tr(M M)/‖M‖²
    directionality             d(M) = (R − C)/(R + C), with `threshold` and `excess`
    row_norms, column_norms    ρ and κ from the factors
    dominance                  log(CV of row norms / CV of column norms)
    self_attending             τ(M) = tr M / (√rank ‖M‖)
    effective_ranks            of the symmetric and of the skew part, without eigenvalues
    rotary_average             symmetry and norms under rotary position embedding, averaged over all offsets
    symmetry_at                s(Δ), the symmetry at single offsets

Nulls
    gaussian_null, rotary_null the distribution of the scores for independent Gaussian factors
    RepairedNull               scores of queries with keys they were not trained with
    layer_nulls, head_nulls    the Gaussian null of the layers and of the heads of each stack in a table

Inside: `factors` and `products` (the products of large factors), `factored` (scores from them), `rounding_error` (which
of those scores have to be computed again with more digits).
"""

from attngeo.weights.scoring.directionality import (
    GAMMA,
    coefficient_of_variation,
    directionality,
    excess,
    threshold,
)
from attngeo.weights.scoring.dominance import dominance
from attngeo.weights.scoring.effective_rank import EffectiveRanks, effective_ranks, effective_ranks_of_dense
from attngeo.weights.scoring.factored import FormScores
from attngeo.weights.scoring.form import Form
from attngeo.weights.scoring.layer import LayerFactors, fold_norm, head_scores, layer_factors, layer_scores
from attngeo.weights.scoring.norms import column_norms, dense_norms, row_norms
from attngeo.weights.scoring.nulls.gaussian import GaussianNull, gaussian_null, rotary_null
from attngeo.weights.scoring.nulls.layer_nulls import LayerNulls, NullLevel, head_nulls, layer_nulls
from attngeo.weights.scoring.nulls.repaired import RepairedNull
from attngeo.weights.scoring.published.comparison import compare_with_published, modality_of
from attngeo.weights.scoring.published.scores import list_published, published
from attngeo.weights.scoring.published.verdict import Verdict, verdicts
from attngeo.weights.scoring.rotary import RotaryAverage, rotary_average, symmetry_at
from attngeo.weights.scoring.score import score
from attngeo.weights.scoring.score_table import ScoreTable
from attngeo.weights.scoring.self_attending import self_attending, self_attending_std
from attngeo.weights.scoring.symmetry import squared_norm, symmetry, symmetry_ratio, trace_of_square

__all__ = [
    "GAMMA",
    "EffectiveRanks",
    "Form",
    "FormScores",
    "GaussianNull",
    "LayerFactors",
    "LayerNulls",
    "NullLevel",
    "RepairedNull",
    "RotaryAverage",
    "ScoreTable",
    "Verdict",
    "coefficient_of_variation",
    "column_norms",
    "compare_with_published",
    "dense_norms",
    "directionality",
    "dominance",
    "effective_ranks",
    "effective_ranks_of_dense",
    "excess",
    "fold_norm",
    "gaussian_null",
    "head_nulls",
    "head_scores",
    "layer_factors",
    "layer_nulls",
    "layer_scores",
    "list_published",
    "modality_of",
    "published",
    "rotary_average",
    "rotary_null",
    "row_norms",
    "score",
    "self_attending",
    "self_attending_std",
    "squared_norm",
    "symmetry",
    "symmetry_at",
    "symmetry_ratio",
    "threshold",
    "trace_of_square",
    "verdicts",
]
