"""Scoring through torch: the same table as with NumPy, and devices that do not exist."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import attngeo
from attngeo.errors import InputError, SourceError
from attngeo.weights.layout.layer import Norm
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.batches import LayerBatch, layer_batch
from attngeo.weights.scoring.device import BatchedScores, products, reading
from attngeo.weights.scoring.factored import Figures
from attngeo.weights.scoring.layer import fold_norm, head_scores, layer_factors, layer_scores
from tests.weights.scoring.random_layer import random_layer
from tests.weights.scoring.test_score import CONFIG, llama_tensors, save_llama

torch = pytest.importorskip("torch")

DRAWN = ("directionality_p", "directionality_rope_p")  # multiples of 0.001


def assert_same_tables(ours: attngeo.ScoreTable, theirs: attngeo.ScoreTable) -> None:
    """Compare tables whose scores agree to the precision that both promise."""
    assert ours.notes == theirs.notes
    for row, other in zip(ours.frame.to_dicts(), theirs.frame.to_dicts(), strict=True):
        for name, value in row.items():
            if not isinstance(value, float):
                assert other[name] == value, name
            elif name.startswith("rank_"):
                assert other[name] == pytest.approx(value, rel=2e-3), name
            elif name.endswith("_z"):
                assert other[name] == pytest.approx(value, rel=1e-4, abs=1e-2), name
            else:
                assert other[name] == pytest.approx(value, rel=4e-6, abs=2e-3 if name in DRAWN else 4e-6), name


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_grouped_heads_with_rotation_nulls_and_norms(tmp_path):
    folder = save_llama(tmp_path / "m")
    ours, theirs = (attngeo.score(folder, frequencies=True, device=device) for device in (None, "cpu"))
    assert ours.frame["symmetry_rope_repaired"].null_count() == ours.frame["directionality_folded"].null_count() == 0
    assert_same_tables(ours, theirs)
    for name in ("energy", "alpha", "beta", "phase"):
        np.testing.assert_allclose(theirs.frequencies[name], ours.frequencies[name], rtol=1e-5, atol=1e-6)


def test_real_models(minilm, smollm2):
    for ref in (minilm, smollm2):
        assert_same_tables(attngeo.score(ref, layers=[0, 1]), attngeo.score(ref, layers=[0, 1], device="cpu"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_stored_bytes_of_every_float_type(tmp_path, monkeypatch, dtype):
    import ml_dtypes

    monkeypatch.setattr(reading, "CHUNK", 100)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file({name: w.astype(kind) for name, w in llama_tensors().items()}, tmp_path / "model.safetensors")
    assert_same_tables(attngeo.score(tmp_path, nulls=False), attngeo.score(tmp_path, nulls=False, device="cpu"))


@pytest.mark.parametrize("heads", [(6, 2), (2, 2), (6, 1)])
@pytest.mark.parametrize(("d", "r"), [(40, 6), (20, 24), (7, 8)])
@pytest.mark.parametrize("block", [256, 3])
def test_every_shape(monkeypatch, heads, d, r, block):
    monkeypatch.setattr(products, "BLOCK", block)
    layer = random_layer(*heads, d, r)
    rotary = RotaryPairs.halves([1.0, 0.4], first=1)
    factors = layer_factors(layer)
    tensors = {side: torch.from_numpy(getattr(layer, side)).double() for side in ("query", "key")}
    batch = LayerBatch.of([replace(layer, **tensors)])
    figures = Figures(ranks=True, rotary=rotary, pairs=True)
    partner = [*range(1, heads[1]), 0]
    together = BatchedScores()
    of_heads = batch.head_scores(together, figures, batch.heads[1][torch.tensor(partner)])
    of_layers = batch.layer_scores(together, figures)
    together.compute()
    pairs = [
        *zip(head_scores(*factors.heads, partner, figures), *of_heads(), strict=True),
        (layer_scores(factors.layer_query, factors.layer_key, figures, heads[1]), *of_layers()[0]),
    ]
    for ours, theirs in pairs:
        for name in (
            "symmetry",
            "directionality",
            "norm",
            "dominance",
            "self_attending",
            "rank_symmetric",
            "rank_skew",
        ):
            value = getattr(ours, name)
            assert getattr(theirs, name) == pytest.approx(value, rel=1e-5, abs=3e-6, nan_ok=True), name
        assert theirs.rotary.symmetry == pytest.approx(ours.rotary.symmetry, abs=3e-6)
        assert theirs.rotary.directionality == pytest.approx(ours.rotary.directionality, abs=3e-6)


@pytest.mark.parametrize("heads", [(6, 2), (2, 2)])
def test_queries_and_keys_of_two_widths(heads):
    """Such forms have no symmetry; their norms are averaged over offsets like those of any other."""
    layer = random_layer(*heads, 40, 6)
    layer = replace(layer, key=layer.key[:, :30])
    figures = Figures(rotary=RotaryPairs.halves([1.0, 0.4], first=1))
    batch = LayerBatch.of([as_tensors(layer)])
    together = BatchedScores()
    of_heads, of_layers = batch.head_scores(together, figures), batch.layer_scores(together, figures)
    together.compute()
    factors = layer_factors(layer)
    pairs = [
        *zip(head_scores(*factors.heads, figures=figures), *of_heads(), strict=True),
        (layer_scores(factors.layer_query, factors.layer_key, figures, heads[1]), *of_layers()[0]),
    ]
    for ours, theirs in pairs:
        assert np.isnan([theirs.symmetry, theirs.rotary.symmetry]).all()
        assert theirs.directionality == pytest.approx(ours.directionality, abs=3e-6)
        assert theirs.rotary.directionality == pytest.approx(ours.rotary.directionality, abs=3e-6)


def hard_layer(kind: str) -> dict[str, Any]:
    tensors = llama_tensors()
    query = tensors["model.layers.1.self_attn.q_proj.weight"]
    key = tensors["model.layers.1.self_attn.k_proj.weight"]
    if kind == "zero head":
        query[8:16] = 0
    elif kind == "tiny":
        query *= 1e-30
        key *= 1e-20
    elif kind == "cancelling":  # two columns of a head cancel but for their last digits
        query[1] = query[0]
        key[1] = -key[0] * np.float32(1 + 1e-6)
        query[2:8] = 0
    return tensors


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_batches_of_any_length_give_the_same_table(tmp_path, monkeypatch, layers, groups):
    """Re-paired keys come from the layer before, whether or not it is in the same batch."""
    tensors = {}
    for layer in range(5):
        for name, heads in (("q", 4), ("k", groups)):
            w = np.random.default_rng([layer, heads]).normal(size=(heads * 8, 32)).astype(np.float32)
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = w
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = np.linspace(0.5, 1.5 + layer, 32, dtype=np.float32)
    # The keys of two layers are shared, so that they are no null for each other.
    tensors["model.layers.3.self_attn.k_proj.weight"] = tensors["model.layers.2.self_attn.k_proj.weight"]
    config = {"num_hidden_layers": 5, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": groups}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | config | {"head_dim": 8}))
    monkeypatch.setattr(layer_batch, "LAYERS", layers)
    ours, theirs = (attngeo.score(tmp_path, device=device) for device in (None, "cpu"))
    assert ours.frame["symmetry_repaired"].null_count() == (1 if groups > 1 else 5)
    assert_same_tables(ours, theirs)


@pytest.mark.parametrize("kind", ["zero head", "tiny", "cancelling"])
@pytest.mark.filterwarnings("ignore:.*no score where:UserWarning")
def test_forms_that_need_more_digits(tmp_path, kind):
    folder = save_llama(tmp_path / "m", **hard_layer(kind))
    folded = kind != "cancelling"  # with NumPy the folded factors are rounded to float32
    ours, theirs = (attngeo.score(folder, folded=folded, device=device) for device in (None, "cpu"))
    assert_same_tables(ours, theirs)


def test_weights_that_are_not_finite_are_named(tmp_path):
    bad = llama_tensors()["model.layers.1.self_attn.k_proj.weight"]
    bad[2, 5] = np.inf
    folder = save_llama(tmp_path / "m", **{"model.layers.1.self_attn.k_proj.weight": bad})
    with pytest.raises(SourceError, match=r"layers.1.self_attn.k_proj.weight' holds inf at \[2, 5\]"):
        attngeo.score(folder, device="cpu")


@pytest.mark.parametrize("device", ["cuda:99", "nowhere", "cpu:x", "meta2"])
def test_a_device_that_does_not_exist_is_one_line(tmp_path, device):
    with pytest.raises(InputError, match=f"device {device}: cannot be used") as error:
        attngeo.score(save_llama(tmp_path / "m"), device=device)
    assert "\n" not in str(error.value)


def test_layers_with_different_norms_are_not_scored_together():
    """A batch folds one kind of norm: none, one that subtracts the mean, or one that does not."""
    rng = np.random.default_rng(0)
    norms = [None, *(Norm(rng.normal(1, 0.3, 40).astype(np.float32), centred) for centred in (True, False, False))]
    layers = [random_layer(seed=i, layer=i, rotary_known=True, norm=norm) for i, norm in enumerate(norms)]
    batches = [[one.layer for one in batch.layers] for batch in layer_batch.layer_batches(map(as_tensors, layers))]
    assert batches == [[0], [1], [2, 3]]
    for batch in layer_batch.layer_batches(map(as_tensors, layers[1:])):
        for layer, query in zip(batch.layers, batch.folded().query.numpy(), strict=True):
            folded = fold_norm(layer_factors(layers[layer.layer]), norms[layer.layer])
            np.testing.assert_allclose(query, folded.query.w, atol=1e-5)


def as_tensors(layer: Any) -> Any:
    """Return a layer with float64 tensors in place of its arrays."""
    gain = None if layer.norm is None else Norm(torch.from_numpy(layer.norm.gain).double(), layer.norm.centred)
    sides = {side: torch.from_numpy(getattr(layer, side).copy()).double() for side in ("query", "key")}
    return replace(layer, norm=gain, **sides)
