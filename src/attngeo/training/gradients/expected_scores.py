"""`ExpectedTerms`: the update of each head's form averaged over many backward passes, and its scores.

Averages of noisy updates are scored in two ways: the average itself, and between two halves of the passes, where the
noise of one pass cannot agree with itself:

    symmetry of an update U = tr(U U)/⟨U, U⟩,    between halves tr(U₁ U₂)/⟨U₁, U₂⟩
    pairing of β = Σ β_ij β_ji / Σ β_ij β_ij,    between halves Σ β¹_ij β²_ji / Σ β¹_ij β²_ij,    over i ≠ j
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.arrays import AnyFloats, Floats
from attngeo.errors import InputError
from attngeo.training.gradients.growth import Growth
from attngeo.weights.scoring.directionality import coefficient_of_variation, directionality
from attngeo.weights.scoring.norms import dense_norms
from attngeo.weights.scoring.score_table import null_if_nan

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class ExpectedScores:
    """The scores of one head's average update; None where a score does not exist."""

    label: str
    stack: str
    layer: int
    head: int
    norm: float  # of the average update
    agreement: float | None  # cosine between the average updates of both halves: 1 where nothing is noise
    symmetry: float | None
    symmetry_split: float | None  # between halves
    symmetry_shuffled: float | None  # between halves, with the coefficients of each prediction shuffled in its context
    directionality: float
    row_spread: float | None  # coefficient of variation of the row norms
    column_spread: float | None
    pairing: float | None  # of the average β; None where the passes have different rows
    pairing_split: float | None
    pairing_shuffled: float | None
    growth_symmetric: Growth | None  # of ‖M_s‖², relative to ‖M‖²; None where M does not move by its terms alone
    growth_skew: Growth | None


@dataclass(frozen=True)
class ExpectedTerms:
    """The update of the form of each self-attention head, averaged over many backward passes.

    >>> import torch
    >>> from transformers import AutoModelForCausalLM
    >>> model = AutoModelForCausalLM.from_pretrained(attngeo.bundled("decoder"))
    >>> rows = torch.arange(20, 68).reshape(4, 1, 12)  # [batches, rows, tokens]
    >>> terms = attngeo.expected_terms(model, [{"input_ids": ids, "labels": ids} for ids in rows])
    >>> terms
    ExpectedTerms(4 passes, mean loss 6.86, 16 heads)
    """

    passes: int
    loss: float  # mean over the passes
    scores: tuple[ExpectedScores, ...]
    name: str = ""  # of the model, for titles

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, label: str) -> ExpectedScores:
        for row in self.scores:
            if row.label == label:
                return row
        raise InputError(f"head {label!r}: expected one of {self.scores[0].label} … {self.scores[-1].label}")

    def rows(self) -> list[dict[str, object]]:
        """Return one flat mapping per head; a growth becomes three values, such as `growth_skew_position`."""
        rows = []
        for scores in self.scores:
            row: dict[str, object] = {}
            for name, value in asdict(scores).items():
                if name.startswith("growth"):
                    parts = value or dict.fromkeys(Growth.__dataclass_fields__)
                    row |= {f"{name}_{part}": number for part, number in parts.items()}
                else:
                    row[name] = value
            rows.append(row)
        return rows

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The scores as a tidy polars frame, one row per head."""
        import polars as pl

        return pl.DataFrame(self.rows(), infer_schema_length=None)

    def __repr__(self) -> str:
        return f"ExpectedTerms({self.passes} passes, mean loss {self.loss:.3g}, {len(self)} heads)"


def update_scores(halves: Floats, passes: Floats | None = None) -> dict[str, Any]:
    """Return the scores of an average update from the averages of both halves, `[2, d, d]`.

    passes: [2], how many passes each half has; None: equally many
    """
    mean = np.average(halves, 0, passes)  # [d, d]
    rows, columns = dense_norms(mean)  # [d], [d]
    norms = np.linalg.norm(halves, axis=(1, 2))  # [2]
    overlap = float(np.vdot(halves[0], halves[1]))
    return {
        "norm": float(np.linalg.norm(mean)),
        "agreement": overlap / float(norms[0] * norms[1]) if norms.all() else None,
        "symmetry": ratio(mean, mean.T, mean),
        "symmetry_split": split_symmetry(halves),
        "directionality": float(directionality(rows, columns)),
        "row_spread": null_if_nan(float(coefficient_of_variation(rows))),
        "column_spread": null_if_nan(float(coefficient_of_variation(columns))),
    }


def split_symmetry(halves: Floats) -> float | None:
    """Return tr(U₁ U₂)/⟨U₁, U₂⟩ of halves `[2, d, d]`; None where the halves do not agree at all."""
    return ratio(halves[0], halves[1].T, halves[1])


def pairing(first: AnyFloats, second: AnyFloats) -> float | None:
    """Return Σ β¹_ij β²_ji / Σ β¹_ij β²_ij over i ≠ j; both [S, N, N]."""
    off_diagonal = first * ~np.eye(first.shape[-1], dtype=bool)  # [S, N, N]
    return ratio(off_diagonal, second.swapaxes(1, 2), second)


def ratio(left: AnyFloats, over: AnyFloats, under: AnyFloats) -> float | None:
    """Return ⟨left, over⟩/⟨left, under⟩, None unless the denominator is positive."""
    denominator = float((left * under).sum())
    return float((left * over).sum()) / denominator if denominator > 0 else None
