"""`verdicts`: what the scores of a model say, in one sentence per stack.

    clearly symmetric                    the median layer is at least 0.3 and its z above 5
    weakly symmetric                     its z is above 5
    not distinguishable from chance      otherwise

A z below −5 is as far from chance on the other side, so such a stack is called clearly (at most −0.3) or weakly
skew-symmetric. The score is `symmetry_rope` in layers that rotate queries and keys by their positions, and `symmetry`
in all others. The published figures have no rotary scores, so it is always the median of `symmetry` that is placed
among them; the placement says where a number lies, never what kind of model it belongs to. They have no diffusion
models either, so those of diffusers are not placed among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from attngeo.weights.scoring.published import list_published
from attngeo.weights.scoring.score_table import LayerNulls, NullLevel, layer_nulls
from attngeo.weights.sources.checkpoint import PREFIX

if TYPE_CHECKING:
    import polars as pl

CLEAR = 0.3  # least median of a clearly symmetric stack
FAR = 5.0  # standard deviations from chance
CENTRAL = (0.1, 0.9)  # the range of published models that "as in published …" refers to


@dataclass(frozen=True)
class Verdict:
    """The symmetry of one stack of a model, compared with chance and with published models.

    >>> (verdict,) = verdicts(attngeo.score(attngeo.bundled("encoder")).frame)
    >>> print(verdict.sentence)
    4 layers, clearly symmetric (median 0.60, chance 0.0078 ± 0.011), above most published encoders
    """

    model: str
    stack: str
    layers: int  # self-attention layers with a score
    cross: bool  # the stack is cross-attention, which has no verdict
    rotary: str  # "yes", "no" or "not proved", as in the score table
    median: float | None  # over layers: symmetry_rope where they rotate, symmetry otherwise
    z: float | None  # of the median layer; None: scored without nulls
    chance: NullLevel | None  # mean and standard deviation of the median layer's score for random factors
    plain_median: float | None  # over layers: symmetry
    published: str | None  # where the plain median lies among published models; None for a diffusers model

    @property
    def degree(self) -> str | None:
        """The verdict in words; None where nothing was compared with chance."""
        if self.median is None or self.z is None:
            return None
        if abs(self.z) <= FAR:
            return "not distinguishable from chance"
        return f"{'clearly' if abs(self.median) >= CLEAR else 'weakly'} {'' if self.z > 0 else 'skew-'}symmetric"

    @property
    def sentence(self) -> str:
        """The verdict with the figures behind it, and where the median lies among published models."""
        count = f"{self.layers} layer{'' if self.layers == 1 else 's'}"
        if self.cross:
            return f"{count} of cross-attention: queries and keys read different tokens, so symmetry has no meaning"
        if self.median is None or self.plain_median is None:
            return "no layer has a score"
        facts = [f"median {two_digits(self.median)}"]
        if self.chance is not None and self.chance.std is not None:
            facts.append(f"chance {two_digits(self.chance.mean)} ± {two_digits(self.chance.std)}")
        averaged = self.rotary == "yes"
        text = (
            f"{count}, {self.degree or 'not compared with chance'}{' over all offsets' * averaged} ({', '.join(facts)})"
        )
        if averaged:
            text += f"; at offset 0 the median is {two_digits(self.plain_median)}"
        if self.published is not None:
            text += f", {self.published}"
        return text + ("; at offset 0 only, rotation is not proved" if self.rotary == "not proved" else "")


def verdicts(frame: pl.DataFrame, model_types: Mapping[str, str] | None = None) -> tuple[Verdict, ...]:
    """Return one verdict per model and stack of `frame` (columns as in `ScoreTable.frame`), in the order of the rows.

    model_types: as in `ScoreTable.model_types`

    The z of the median layer is the median of the layers' z. The layers of a stack nearly always have one shape; z is
    then a linear function of the score, so this is exactly the z of the median score.

    >>> [verdict.sentence for verdict in verdicts(attngeo.score(attngeo.bundled("decoder")).frame)]
    ['4 layers, not distinguishable from chance (median -0.024, chance 0.0078 ± 0.011), below most published decoders']
    """
    nulls = layer_nulls(frame)
    parts = frame.partition_by("model", "stack", maintain_order=True)
    return tuple(_verdict(part, nulls, (model_types or {}).get(part["model"][0], "")) for part in parts)


def two_digits(value: float) -> str:
    """Return a number with two significant digits, without an exponent.

    >>> two_digits(1 / 384), two_digits(0.4912), two_digits(-0.0996), two_digits(0)
    ('0.0026', '0.49', '-0.10', '0')
    """
    if value == 0:
        return "0"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{float(f'{digits}e{exponent}'):.{max(0, 1 - int(exponent))}f}"


def _verdict(part: pl.DataFrame, nulls: LayerNulls, model_type: str) -> Verdict:
    import polars as pl

    model, stack = part.select("model", "stack").row(0)
    layers = part.filter(pl.col("head").is_null())
    cross = bool(layers["cross"].all())
    scored = layers.filter(~pl.col("cross")).drop_nulls("symmetry")
    kinds = set(scored["rotary"].drop_nulls())
    scored = scored.with_columns(
        score=pl.coalesce("symmetry_rope", "symmetry"),
        z=pl.when(pl.col("symmetry_rope").is_null()).then("symmetry_z").otherwise("symmetry_rope_z"),
    )
    rotates = scored["symmetry_rope"].null_count() < scored.height
    plain_median = _median(scored["symmetry"])
    levels = nulls.get((model, stack), {})
    return Verdict(
        model=model,
        stack=stack,
        layers=layers.height if cross else scored.height,
        cross=cross,
        rotary="yes" if rotates else "not proved" if "not proved" in kinds else "no",
        median=_median(scored["score"]),
        z=_median(scored["z"]),
        chance=levels.get("symmetry_rope" if rotates else "symmetry"),
        plain_median=plain_median,
        published=None if plain_median is None or model_type.startswith(PREFIX) else _among_published(plain_median),
    )


def _median(values: pl.Series) -> float | None:
    median = values.median()
    return median if isinstance(median, float) else None


def _among_published(median: float) -> str:
    """Return where a median lies relative to the central 80% of published encoders and decoders."""
    ranges = _published_ranges()
    inside = [f"{stack}s" for stack, (low, high) in ranges.items() if low <= median <= high]
    if inside:
        return f"as in published {' and '.join(inside)}"
    (low_decoder, _), (_, high_encoder) = ranges["decoder"], ranges["encoder"]
    if median < low_decoder:
        return "below most published decoders"
    return "above most published encoders" if median > high_encoder else "between published decoders and encoders"


@cache
def _published_ranges() -> dict[str, tuple[float, float]]:
    """Return the central 80% of the medians of published models without a caution: of encoders and of decoders."""
    models = list_published(caution=False)
    ranges = {}
    for stack in ("encoder", "decoder"):
        medians = models.filter(models["stack"] == stack)["symmetry"]
        low, high = (medians.quantile(level, "linear") for level in CENTRAL)
        assert low is not None and high is not None
        ranges[stack] = (float(low), float(high))
    return ranges
