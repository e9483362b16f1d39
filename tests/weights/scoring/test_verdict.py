"""Verdicts: what is said of hand-made tables, real models and cross-attention."""

from __future__ import annotations

import polars as pl
import pytest

import attngeo
from attngeo.data import bundled
from attngeo.weights.scoring.gaussian_null import gaussian_null
from attngeo.weights.scoring.published import list_published
from attngeo.weights.scoring.score_table import ScoreTable
from attngeo.weights.scoring.verdict import Verdict, two_digits, verdicts

WIDTH = 256
NULL = gaussian_null(WIDTH, WIDTH, 64)


def layer(number: int, symmetry: float | None, **more: object) -> dict[str, object]:
    """Return the row of a layer with this symmetry and its z."""
    z = None if symmetry is None else NULL.z("symmetry", symmetry)
    row = {
        "model": "m",
        "stack": "decoder",
        "layer": number,
        "symmetry": symmetry,
        "symmetry_z": z,
        "symmetry_chance": 1 / WIDTH,
        "symmetry_chance_std": NULL.symmetry_std,
        "directionality": 0,
    }
    return row | {"query_width": WIDTH, "key_width": WIDTH, "rank": 64, "cross": False} | more


def rope(number: int, symmetry_rope: float, mean: float, std: float, **more: object) -> dict[str, object]:
    """Return the row of a layer that rotates, with z for this null."""
    z = (symmetry_rope - mean) / std
    level = {"symmetry_rope_z": z, "symmetry_rope_chance": mean, "symmetry_rope_chance_std": std}
    return layer(number, 0.5, symmetry_rope=symmetry_rope, rotary="yes", **level, **more)


def verdict_of(*rows: dict[str, object]) -> Verdict:
    (verdict,) = verdicts(ScoreTable.of(rows).frame)
    return verdict


@pytest.mark.parametrize(
    ("scores", "degree"),
    [
        ((0.31, 0.3, 0.0), "clearly symmetric"),
        ((0.29, 0.9, 0.2), "weakly symmetric"),
        ((0.02, 0.03, 0.9), "not distinguishable from chance"),  # the median decides, not the largest layer
        ((-0.02, 0.0, 0.01), "not distinguishable from chance"),
        ((-0.1, -0.2, -0.05), "weakly skew-symmetric"),
        ((-0.9, -0.4, -0.5), "clearly skew-symmetric"),
        ((0.5,), "clearly symmetric"),
    ],
)
def test_the_median_layer_and_its_z_decide(scores, degree):
    verdict = verdict_of(*(layer(i, score) for i, score in enumerate(scores)))
    assert verdict.degree == degree
    assert verdict.z == pytest.approx(NULL.z("symmetry", pl.Series(scores).median()))
    assert verdict.sentence.startswith(f"{len(scores)} layer{'s' if len(scores) > 1 else ''}, {degree} (median ")


def test_the_chance_level_has_two_significant_digits(minilm):
    (verdict,) = verdicts(attngeo.score(str(minilm), heads=False).frame)
    std = two_digits(gaussian_null(384, 384, 384).symmetry_std)
    assert verdict.sentence == (
        f"6 layers, clearly symmetric (median 0.49, chance 0.0026 ± {std}), as in published encoders"
    )


def test_the_place_among_published_models_is_that_of_a_number():
    medians = list_published(caution=False)
    for stack in ("encoder", "decoder"):
        middle = medians.filter(pl.col("stack") == stack)["symmetry"].median()
        assert verdict_of(layer(0, middle)).published == f"as in published {stack}s"
    assert verdict_of(layer(0, 0.9)).published == "above most published encoders"
    assert verdict_of(layer(0, -0.5)).published == "below most published decoders"
    assert verdict_of(layer(0, 0.25)).published == "as in published encoders and decoders"  # where the ranges overlap


def test_diffusers_models_are_not_placed_among_published_models():
    frame = ScoreTable.of([layer(0, 0.9), layer(0, 0.9, model="unet")]).frame
    placed, diffusion = verdicts(frame, {"m": "bert", "unet": "diffusers:UNet2DConditionModel"})
    assert placed.published == "above most published encoders"
    assert diffusion.published is None
    assert diffusion.sentence == placed.sentence.removesuffix(f", {placed.published}")


def test_layers_that_rotate_are_judged_over_all_offsets():
    mean, std = 0.001, 0.0005
    verdict = verdict_of(*(rope(i, score, mean, std) for i, score in enumerate((0.001, 0.002, 0.0015))))
    assert (verdict.degree, verdict.rotary) == ("not distinguishable from chance", "yes")
    assert (verdict.chance.mean, verdict.chance.std) == pytest.approx((mean, std))
    assert verdict.sentence == (
        "3 layers, not distinguishable from chance over all offsets (median 0.0015, chance 0.0010 ± 0.00050); "
        "at offset 0 the median is 0.50, as in published encoders"
    )
    every = verdict_of(*(rope(i, score, 0, std) for i, score in enumerate((0.1, 0.2))))
    assert every.chance.mean == 0 and "chance 0 ± 0.00050" in every.sentence  # all dimensions rotate


def test_the_chance_level_of_a_model_that_rotates(smollm2):
    (verdict,) = verdicts(attngeo.score(smollm2, layers=[0, 14], heads=False).frame)
    assert verdict.chance.mean == 0  # all dimensions rotate
    assert verdict.chance.std == pytest.approx(1 / (32**0.5 * 576))  # 32 pairs, width 576


def test_layers_without_rotation_count_by_their_plain_score():
    rows = [rope(0, 0.1, 0, 0.001), rope(1, 0.2, 0, 0.001), layer(2, 0.4, rotary="no")]
    assert verdict_of(*rows).median == pytest.approx(0.2)
    unproven = verdict_of(layer(0, 0.1, rotary="not proved"))
    assert unproven.sentence.endswith("; at offset 0 only, rotation is not proved")


def test_cross_attention_has_no_verdict():
    verdict = verdict_of(layer(0, 0.5, cross=True, stack="cross"), layer(1, 0.5, cross=True, stack="cross"))
    assert (verdict.median, verdict.degree, verdict.published) == (None, None, None)
    assert verdict.sentence.startswith("2 layers of cross-attention")


def test_tables_without_nulls_or_scores():
    frame = attngeo.score(bundled("encoder"), nulls=False).frame
    assert verdicts(frame)[0].sentence == (
        "4 layers, not compared with chance (median 0.60), above most published encoders"
    )
    assert verdict_of(layer(0, None)).sentence == "no layer has a score"
    assert verdicts(ScoreTable.of([]).frame) == ()


def test_each_stack_and_model_has_its_own_verdict():
    frame = ScoreTable.of([layer(0, 0.5), layer(0, 0.01, stack="encoder"), layer(0, 0.5, model="other")]).frame
    assert [(v.model, v.stack) for v in verdicts(frame)] == [("m", "decoder"), ("m", "encoder"), ("other", "decoder")]
