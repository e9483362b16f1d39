"""What the columns of printed score tables mean, in one line each."""

from __future__ import annotations

from collections.abc import Collection

SCORE_LEGEND = (
    "symmetry: 1 for a symmetric form, −1 for a skew-symmetric one, 1/d on average for random weights",
    "directionality: below 0 columns (the context token) dominate, above 0 rows (the predicted token)",
)

# Titles of columns, or what their names end with → their meaning.
_MEANINGS = {
    ("symmetry",): SCORE_LEGEND[0].partition(": ")[2],
    ("symmetry_rope",): "symmetry averaged over all offsets between two tokens; symmetry is that at offset 0",
    ("directionality",): SCORE_LEGEND[1].partition(": ")[2],
    ("directionality_rope",): "directionality averaged over all offsets between two tokens",
    ("dominance",): "below 0 column norms are more unequal than row norms, above 0 less",
    ("self_attending",): "above 0 tokens attend to tokens like themselves, below 0 to tokens unlike themselves",
    ("rank_symmetric", "rank_skew"): "effective ranks of the symmetric and of the skew-symmetric part",
    ("z", "_z"): "standard deviations above the mean for independent Gaussian weights of the same shape",
    ("_chance", "_chance_std"): "mean and standard deviation of the score for the same Gaussian weights",
    ("_p",): "two-sided p-value against the same Gaussian weights",
    ("_repaired",): "a control, the same queries with keys of another key head or layer",
    ("_folded",): "the score with the normalisation before the attention folded into the weights",
    ("published", "_published"): "the score in the tables of arXiv 2502.10927",
    ("norm",): "Frobenius norm of the form",
    ("query_width", "key_width", "rank"): "the form is query_width × key_width and has at most this rank",
    ("qk_norm",): "queries and keys are normalised before their product",
    ("cross",): "the row belongs to cross-attention",
    ("rotary",): "queries and keys are rotated by their positions; not proved: how is unknown, so no score uses it",
}


def legend(titles: Collection[str]) -> list[str]:
    """Return a line for each meaning that some of the titles have, in a fixed order."""
    lines = []
    for names, meaning in _MEANINGS.items():
        shown = [name for name in names if name in titles]
        endings = [f"…{name}" for name in names if name[0] == "_" and any(title.endswith(name) for title in titles)]
        if shown or endings:
            lines.append(f"{', '.join(shown + endings)}: {meaning}")
    return lines
