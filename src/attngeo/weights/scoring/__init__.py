"""Symmetry and directionality of the QK form M = W_q W_kᵀ, their nulls, and tables of scores.

Scores of a model
    score                      every layer and head of a checkpoint, compared with both nulls → ScoreTable
    ScoreTable                 a tidy table that summarises, draws, saves and loads
    published, list_published  the scores published with arXiv 2502.10927
    compare_with_published     a scored model compared with them
    verdicts                   what the scores of each stack say, in one sentence → Verdict
    layer_nulls, head_nulls    the chance level of the layers and of the heads of each stack in a table

Scores of forms
    Form                       one form, kept as its factors
    score_forms                all scores of a batch of forms from their factors → Scores

Formulas, for NumPy and torch, with batch axes
    symmetry                   s(M) = tr(M M)/‖M‖²
    self_attending             τ(M) = tr M / (√rank ‖M‖)
    directionality             d(M) = (R − C)/(R + C), with `threshold` and `excess`
    dominance                  log(CV of row norms / CV of column norms)
    row_norms                  ρ from the factors, and κ with both exchanged
    effective_ranks            of the symmetric and of the skew part, without eigenvalues
    rotary_average             symmetry and norms under rotary position embedding, averaged over all offsets
    symmetry_at                s(Δ), the symmetry at single offsets

Nulls
    gaussian_null, rotary_null the distribution of the scores for independent Gaussian factors
    RepairedNull               scores of queries with keys they were not trained with
"""

from attngeo.weights.scoring.engine import Scores, score_forms
from attngeo.weights.scoring.form import Form
from attngeo.weights.scoring.formulas import (
    GAMMA,
    coefficient_of_variation,
    dense_norms,
    directionality,
    dominance,
    effective_ranks,
    excess,
    row_norms,
    self_attending,
    symmetry,
    threshold,
)
from attngeo.weights.scoring.gaussian_null import GaussianNull, gaussian_null, rotary_null
from attngeo.weights.scoring.layer import RepairedNull
from attngeo.weights.scoring.offsets import symmetry_at
from attngeo.weights.scoring.published import compare_with_published, list_published, modality_of, published
from attngeo.weights.scoring.rotary import rotary_average
from attngeo.weights.scoring.score import score
from attngeo.weights.scoring.score_table import ScoreTable, head_nulls, layer_nulls
from attngeo.weights.scoring.verdict import Verdict, verdicts

__all__ = [
    "GAMMA",
    "Form",
    "GaussianNull",
    "RepairedNull",
    "ScoreTable",
    "Scores",
    "Verdict",
    "coefficient_of_variation",
    "compare_with_published",
    "dense_norms",
    "directionality",
    "dominance",
    "effective_ranks",
    "excess",
    "gaussian_null",
    "head_nulls",
    "layer_nulls",
    "list_published",
    "modality_of",
    "published",
    "rotary_average",
    "rotary_null",
    "row_norms",
    "score",
    "score_forms",
    "self_attending",
    "symmetry",
    "symmetry_at",
    "threshold",
    "verdicts",
]
