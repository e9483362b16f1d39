"""score: which layers and heads are scored, notes, options, open checkpoints and progress."""

from __future__ import annotations

import polars as pl
import pytest

import attngeo
from attngeo.errors import InputError, LayoutError
from attngeo.weights.sources.open import open_checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_checkpoint_that_the_caller_opened_stays_open():
    folder = attngeo.bundled("encoder")
    with open_checkpoint(folder) as checkpoint:
        first = attngeo.score(checkpoint)
        assert first == attngeo.score(checkpoint) == attngeo.score(folder)
        comparisons = [attngeo.compare(checkpoint, folder, draws=99).related.cosine for _ in range(2)]
        assert comparisons[0] == comparisons[1] == pytest.approx(1.0)
        with pytest.raises(LayoutError, match="numbered from 0 to 3"):
            attngeo.score(checkpoint, layers=[7])
        with pytest.raises(InputError, match="no layer 7, 8; layers are numbered from 0 to 3"):
            attngeo.score(checkpoint, layers=[0, 8, 7])
        assert attngeo.score(checkpoint) == first


def test_heads_nulls_and_layers_can_be_left_out_and_progress_is_told():
    folder, steps = attngeo.bundled("decoder"), []
    options = {"heads": False, "nulls": False, "folded": False, "layers": [1, 2], "model": "mine"}
    frame = attngeo.score(folder, progress=lambda *step: steps.append(step), **options).frame
    assert steps == [(1, 2), (2, 2)]
    assert frame["layer"].to_list() == [1, 2]
    assert frame["head"].null_count() == 2
    assert set(frame["model"]) == {"mine"}
    empty = ["symmetry_z", "symmetry_chance", "directionality_p", "symmetry_repaired", "symmetry_folded"]
    assert frame.select(empty).null_count().row(0) == (2,) * 5
    whole = attngeo.score(folder).frame.filter(pl.col("head").is_null() & pl.col("layer").is_in([1, 2]))
    assert frame["symmetry"].to_list() == whole["symmetry"].to_list()


def test_a_real_encoder_and_a_real_decoder(minilm, smollm2):
    encoder, decoder = attngeo.score(minilm, nulls=False), attngeo.score(smollm2, nulls=False)
    assert encoder.frame.height == 6 * 13
    assert decoder.frame.height == 30 * 10
    medians = [table.summary().filter(level="layer")["symmetry_median"].item() for table in (encoder, decoder)]
    assert medians[0] > 0.3 > medians[1]  # bidirectional training makes forms symmetric
    signs = [table.summary().filter(level="layer")["directionality_median"].item() for table in (encoder, decoder)]
    assert signs[1] < signs[0]  # autoregressive training makes columns dominate


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "0-2"}, "layers: expected layer numbers from 0, got '0-2'"),
        ({"num_heads": 0}, "num_heads is 0, expected a whole number from 1 on"),
    ],
)
def test_options_of_the_wrong_kind_are_named(options, message):
    with pytest.raises(InputError, match=message):
        attngeo.score(attngeo.bundled("encoder"), **options)


def test_a_number_of_heads_that_contradicts_the_config_is_refused():
    encoder = attngeo.bundled("encoder")
    assert attngeo.score(encoder, num_heads=4, nulls=False) == attngeo.score(encoder, nulls=False)
    with pytest.raises(LayoutError, match=r"num_heads is 2, but the config declares 4 heads \(num_attention_heads\)"):
        attngeo.score(encoder, num_heads=2)
