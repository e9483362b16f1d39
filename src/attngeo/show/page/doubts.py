"""`doubts`: what would make the verdict on a stack wrong, in sentences with the figures that decide it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.weights.scoring.verdict import CLEAR, FAR, Verdict, two_digits

if TYPE_CHECKING:
    import polars as pl

NEAR = 0.05  # distance from the threshold of "clearly" at which the word is a matter of convention


def doubts(frame: pl.DataFrame, verdicts: Sequence[Verdict], names: Sequence[str]) -> tuple[str, ...]:
    """Return what would make these verdicts wrong.

    frame: columns as in `ScoreTable.frame`, from which the verdicts were made
    names: how to call each verdict's model in a sentence

    >>> from attngeo.weights.scoring.verdict import verdicts
    >>> frame = attngeo.score(attngeo.bundled("encoder")).frame
    >>> doubts(frame, verdicts(frame), ["bert"])[0]
    'Single layers: ... In bert, layers lie between 0.35 and 0.63; none is within chance.'
    """
    import polars as pl

    sentences = []
    for verdict, name in zip(verdicts, names, strict=True):
        own = frame.filter(pl.col("model") == verdict.model, pl.col("stack") == verdict.stack)
        layers = own.filter(pl.col("head").is_null(), ~pl.col("cross")).drop_nulls("symmetry")
        if verdict.cross or verdict.median is None or not layers.height:
            continue
        sentences += [_spread(layers, name), *_threshold(verdict, name), *_repaired(layers, name)]
        if layers["qk_norm"].any():
            sentences.append(
                f"Normalised queries and keys: {name} normalises them before their product, so the form is only part "
                "of what decides the attention."
            )
        if verdict.rotary == "not proved":
            sentences.append(
                f"Positions: whether {name} rotates queries and keys by their positions is not proved; the score "
                "holds at offset 0 only."
            )
    if sentences:
        sentences.append(
            "Weights alone: the scores are those of the form W_q W_kᵀ over all directions. Inputs that use only a few "
            "directions can meet a form that looks different there."
        )
        sentences.append(
            "Published models: the comparison is with the models of one study; where they lie says nothing about the "
            "kind of this model."
        )
    return tuple(sentences)


def _judged(layers: pl.DataFrame) -> str:
    """Return the score that the verdict is about: layers that rotate are judged over all offsets."""
    return "symmetry_rope" if layers["symmetry_rope"].null_count() < layers.height else "symmetry"


def _spread(layers: pl.DataFrame, name: str) -> str:
    """Say how far the layers of a stack differ, and how many of them chance could explain."""
    score = _judged(layers)
    values = layers[score].drop_nulls()
    text = (
        f"Single layers: the verdict is on the median layer. In {name}, layers lie between "
        f"{two_digits(float(values.min()))} and {two_digits(float(values.max()))}"  # type: ignore[arg-type]
    )
    known = layers[f"{score}_z"].drop_nulls()
    if not len(known):
        return text + "; they were not compared with chance."
    inside = int((known.abs() <= FAR).sum())
    count = "none is" if inside == 0 else f"{inside} of {len(known)} {'are' if inside > 1 else 'is'}"
    return f"{text}; {count} within chance."


def _threshold(verdict: Verdict, name: str) -> list[str]:
    """Say that a median near the threshold could have got the other word."""
    if verdict.median is None or verdict.z is None or abs(verdict.z) <= FAR or abs(abs(verdict.median) - CLEAR) > NEAR:
        return []
    return [
        f"The words: the median of {name}, {two_digits(verdict.median)}, is near {CLEAR}, the boundary between weakly "
        "and clearly. The boundary is a convention."
    ]


def _repaired(layers: pl.DataFrame, name: str) -> list[str]:
    """Compare the median with that of queries paired with the keys of other layers or groups."""
    columns = [_judged(layers), f"{_judged(layers)}_repaired"]
    both = layers.drop_nulls(columns)
    if not both.height:
        return []
    own, other = (float(both[column].median()) for column in columns)  # type: ignore[arg-type]
    fewer = f" over the {both.height} of {layers.height} layers that can be paired so" * (both.height < layers.height)
    text = (
        "What layers share: if the keys of other layers gave the same score, it would not come from how the queries "
        f"and keys of one layer fit each other. In {name} they give {two_digits(other)} instead of {two_digits(own)}"
        f"{fewer}"
    )
    return [text + (", so much of it is shared." if own and abs(other) > abs(own) / 2 else ".")]
