"""score: from a checkpoint to the table."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

import attngeo
from attngeo.errors import InputError, LayoutError, SourceError
from attngeo.weights.scoring.score import NoteWarning
from attngeo.weights.sources.open import open_checkpoint

LAYERS, HEADS, GROUPS, WIDTH, SIZE = 3, 6, 2, 48, 8
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": SIZE,
    "intermediate_size": 64,
    "vocab_size": 10,
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def llama_tensors() -> dict[str, np.ndarray]:
    """Return random queries, keys, values and norms of a small LLaMA."""
    rng = np.random.default_rng(0)
    tensors = {}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q_proj", HEADS * SIZE), ("k_proj", GROUPS * SIZE), ("v_proj", GROUPS * SIZE)):
            tensors[f"{prefix}self_attn.{name}.weight"] = rng.standard_normal((rows, WIDTH), dtype=np.float32)
        tensors[f"{prefix}input_layernorm.weight"] = rng.normal(1, 0.3, WIDTH).astype(np.float32)
    return tensors


def save_llama(folder: Path, **changed: np.ndarray) -> Path:
    """Write a checkpoint folder, with some tensors replaced."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(llama_tensors() | changed, folder / "model.safetensors")
    return folder


def test_random_weights_lie_within_the_null(tmp_path):
    frame = attngeo.score(save_llama(tmp_path / "m")).frame
    assert frame["symmetry_z"].abs().max() < 5
    assert frame["directionality_p"].min() > 0.001
    assert frame["directionality_p"].mean() == pytest.approx(0.5, abs=0.25)


def test_scoring_twice_gives_the_same_table(tmp_path):
    folder = save_llama(tmp_path / "m")
    assert attngeo.score(folder) == attngeo.score(folder)


def test_a_checkpoint_that_the_caller_opened_stays_open(tmp_path):
    folder = save_llama(tmp_path / "m")
    with open_checkpoint(folder) as checkpoint:
        first = attngeo.score(checkpoint)
        assert first == attngeo.score(checkpoint) == attngeo.score(folder)
        comparisons = [attngeo.compare(checkpoint, folder).related.cosine for _ in range(2)]
        assert comparisons[0] == comparisons[1] == pytest.approx(1.0)
        with pytest.raises(LayoutError, match="numbered from 0 to 2"):
            attngeo.score(checkpoint, layers=[7])
        with pytest.raises(InputError, match="no layer 7, 8; layers are numbered from 0 to 2"):
            attngeo.score(checkpoint, layers=[0, 8, 7])
        assert attngeo.score(checkpoint) == first
    with pytest.raises(SourceError, match="was read after it was closed"):
        attngeo.score(checkpoint)


def test_heads_nulls_and_layers_can_be_left_out(tmp_path):
    folder = save_llama(tmp_path / "m")
    frame = attngeo.score(folder, heads=False, nulls=False, folded=False, model="mine", layers=[1, 2]).frame
    assert frame["layer"].to_list() == [1, 2]
    assert frame["head"].null_count() == 2
    assert set(frame["model"]) == {"mine"}
    empty = ["symmetry_z", "directionality_z", "directionality_p", "symmetry_repaired", "symmetry_folded"]
    assert frame.select(empty).null_count().row(0) == (2,) * 5
    whole = attngeo.score(folder).frame.filter(pl.col("head").is_null() & (pl.col("layer") > 0))
    assert frame["symmetry"].to_list() == whole["symmetry"].to_list()


def test_progress_reports_the_number_of_layers(tmp_path):
    steps = []
    attngeo.score(save_llama(tmp_path / "m"), progress=lambda *step: steps.append(step))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_zero_heads_have_no_score_and_are_named_in_one_warning_and_one_note(tmp_path):
    queries = llama_tensors()["model.layers.1.self_attn.q_proj.weight"].copy()
    queries[5 * SIZE :] = 0
    name = "model.layers.2.self_attn.k_proj.weight"
    folder = save_llama(
        tmp_path / "m",
        **{"model.layers.1.self_attn.q_proj.weight": queries, name: np.zeros_like(llama_tensors()[name])},
    )
    with pytest.warns(UserWarning) as caught:
        table = attngeo.score(folder)
    names = "L1H5, L2, L2H0, L2H1, L2H2, L2H3, L2H4, L2H5"
    text = f"{folder}: no score where the query, the key or their product is zero: {names}"
    assert [(str(w.message), w.category) for w in caught] == [(text, NoteWarning)]
    assert caught[0].filename == __file__
    assert table.notes == (text,)
    assert (table + table).notes == attngeo.ScoreTable.load(table.save(tmp_path / "scores.parquet")).notes == (text,)
    for row in table.frame.iter_rows(named=True):
        zero = row["layer"] == 2 or (row["layer"], row["head"]) == (1, 5)
        for column in ("symmetry", "directionality", "symmetry_z", "directionality_p", "symmetry_folded"):
            assert (row[column] is None) == zero
    assert table.summary()["count"].to_list() == [2, 11]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-40])
def test_weights_whose_squares_underflow_are_scored(scale, dtype):
    """Every column except the norm is that of the unscaled weights, rounded to float32 subnormals at 1e-40."""
    scaled = {name: (w * dtype(scale)).astype(dtype) if w.ndim == 2 else w for name, w in llama_tensors().items()}
    unscaled = {name: w.astype(np.float32) / np.float64(scale if w.ndim == 2 else 1) for name, w in scaled.items()}
    found, expected = (attngeo.score(state, num_heads=HEADS, unproven=True).frame for state in (scaled, unscaled))
    for column in ("symmetry", "directionality", "symmetry_z", "symmetry_repaired", "directionality_repaired"):
        assert found[column].to_list() == pytest.approx(expected[column].to_list(), abs=2e-5)
        assert found[column].null_count() == 0


def test_float64_weights_below_the_range_of_float32_have_no_score():
    state = {name: w.astype(np.float64) * (1e-300 if w.ndim == 2 else 1) for name, w in llama_tensors().items()}
    with pytest.warns(UserWarning, match="no score where the query, the key or their product is zero: L0, L0H0, "):
        table = attngeo.score(state, num_heads=HEADS, unproven=True)
    assert table.frame["symmetry"].null_count() == table.frame.height


def test_without_a_head_count_only_layers_are_scored():
    state = {f"layers.{i}.self_attn.in_proj_weight": np.random.default_rng(i).normal(size=(96, 32)) for i in range(2)}
    state |= {f"layers.{i}.self_attn.out_proj.weight": np.eye(32) for i in range(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = attngeo.score(state, unproven=True)
    assert table.frame["head"].null_count() == table.frame.height == 2
    assert "only layers are scored; set num_heads= (--num-heads)" in table.notes[0]
    assert (
        "whether and how this model rotates queries and keys by their positions is not proved, so the columns"
        in table.notes[1]
    )
    assert len(table.notes) == 2 and set(table.frame["rotary"]) == {"not proved"}
    assert table.frame["symmetry_rope"].null_count() == 2
    known = attngeo.score(state, unproven=True, num_heads=4)
    assert known.frame.height == 10
    assert known.notes == table.notes[1:]
    layers = known.frame.filter(pl.col("head").is_null())
    assert layers["symmetry"].to_list() == pytest.approx(table.frame["symmetry"].to_list(), abs=1e-12)


def test_an_error_while_reading_is_raised_with_the_name_of_the_tensor(tmp_path):
    bad = llama_tensors()["model.layers.1.self_attn.q_proj.weight"].copy()
    bad[3, 3] = np.nan
    with pytest.raises(attngeo.AttngeoError, match=r"model.layers.1.self_attn.q_proj.weight"):
        attngeo.score(save_llama(tmp_path / "m", **{"model.layers.1.self_attn.q_proj.weight": bad}))


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
        ({"layers": [True, False, True]}, "layers: expected layer numbers from 0, got .True, False, True."),
        ({"layers": True}, "layers: expected layer numbers from 0, got True"),
        ({"layers": "0-2"}, "layers: expected layer numbers from 0, got '0-2'"),
        ({"stack": []}, "stack: expected the name of a stack, or several names"),
        ({"stack": 1}, "stack: expected the name of a stack, or several names, got 1"),
        ({"num_heads": 2.0}, "num_heads is 2.0, expected a whole number from 1 on"),
        ({"num_heads": "2"}, "num_heads is '2', expected a whole number from 1 on"),
        ({"num_heads": 0}, "num_heads is 0, expected a whole number from 1 on"),
    ],
)
def test_options_of_the_wrong_kind_are_named(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        attngeo.score(save_llama(tmp_path / "m"), **options)


def test_a_number_of_heads_that_contradicts_the_config_is_refused():
    encoder = attngeo.bundled("encoder")
    assert attngeo.score(encoder, num_heads=4, nulls=False) == attngeo.score(encoder, nulls=False)
    with pytest.raises(LayoutError, match=r"num_heads is 2, but the config declares 4 heads \(num_attention_heads\)"):
        attngeo.score(encoder, num_heads=2)
