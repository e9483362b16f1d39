"""Every column of a score table, compared with its definition on the queries and keys of the layers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import attngeo
from attngeo import Form
from attngeo.weights.scoring.formulas import directionality
from attngeo.weights.scoring.gaussian_null import gaussian_null, rotary_null
from attngeo.weights.scoring.layer import derangement, side_by_side
from attngeo.weights.scoring.rotary import rotary_average
from attngeo.weights.scoring.score import NoteWarning
from tests.weights import dense_scores as dense

HEADS, WIDTH, SIZE, LAYERS = 6, 48, 8, 3
SIZES = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "vocab_size": 10}
YARN = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3, "original_max_position_embeddings": 64}
# Name → config: how keys are shared, what rotates, and which norm is folded in.
MODELS: dict[str, dict[str, Any]] = {
    "shared keys, RMSNorm": {"model_type": "llama", "num_key_value_heads": 3, "head_dim": SIZE},
    "one key head": {"model_type": "llama", "num_key_value_heads": 1, "head_dim": SIZE},
    "attention factor": {"model_type": "llama", "num_key_value_heads": 3, "head_dim": SIZE, "rope_scaling": YARN},
    "partial rotation, LayerNorm": {"model_type": "phi", "partial_rotary_factor": 0.5},
    "no rotation": {"model_type": "opt"},
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def tensors_of(name: str, layers: int = LAYERS, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Return the tensors of a model whose queries resemble its keys, so that scores differ from chance."""
    rng, config, tensors = np.random.default_rng(0), MODELS[name], {}
    groups = config.get("num_key_value_heads", HEADS)
    prefix = "model.decoder.layers" if config["model_type"] == "opt" else "model.layers"
    norm = "self_attn_layer_norm" if config["model_type"] == "opt" else "input_layernorm"
    for layer in range(layers):
        key = rng.normal(size=(groups, SIZE, WIDTH)) * scale
        key[:, :, 7] *= 3
        query = rng.normal(size=(HEADS, SIZE, WIDTH)) * scale + 0.8 * key.repeat(HEADS // groups, 0)
        for side, w in (("q", query), ("k", key)):
            tensors[f"{prefix}.{layer}.self_attn.{side}_proj.weight"] = w.reshape(-1, WIDTH).astype(np.float32)
        tensors[f"{prefix}.{layer}.{norm}.weight"] = rng.normal(1, 0.3, WIDTH).astype(np.float32)
        if config["model_type"] != "llama":
            tensors[f"{prefix}.{layer}.{norm}.bias"] = np.zeros(WIDTH, np.float32)
    return tensors


@pytest.fixture
def made(tmp_path):
    """Return a function that saves a model, some of its tensors replaced, and returns its folder."""

    def save(
        name: str, layers: int = LAYERS, scale: float = 1.0, sizes: Any = SIZES, only: Any = None, **changed: np.ndarray
    ) -> Path:
        folder = tmp_path / f"made-{layers}-{scale}"
        folder.mkdir(exist_ok=True)
        config = {"num_hidden_layers": layers, "rope_theta": 100.0} | MODELS[name] | sizes
        (folder / "config.json").write_text(json.dumps(config))
        save_file(only or tensors_of(name, layers, scale) | changed, folder / "model.safetensors")
        return folder

    return save


def factors(layer: Any, head: int | None, keys: Any, other: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the float64 factors [G, d, r] of a form of a layer, whose groups read the keys of others."""
    query, groups = layer.query.astype(float), len(layer.key)
    shared = HEADS // groups
    grouped = query.reshape(groups, shared, WIDTH, SIZE).sum(1) if head is None else query[[head]]
    readers = range(groups) if head is None else [head // shared]
    return grouped, np.stack([keys[g if other is None else other[g]].astype(float) for g in readers])


def rows_of(model: Path, **options: Any) -> Iterator[tuple[dict[str, Any], Any, list[Any]]]:
    """Yield each row of the table of a model, its layer, and all layers."""
    layers = list(attngeo.attention_layers(model, norms=True))
    table = attngeo.score(model, **options)
    assert table.frame.height == LAYERS * (1 + HEADS) and table.notes == ()
    for row in table.frame.iter_rows(named=True):
        yield row, layers[row["layer"]], layers


both_devices = pytest.mark.parametrize("device", [None, *(["cpu"] if find_spec("torch") else [])])  # with torch


@both_devices
@pytest.mark.parametrize("name", MODELS)
def test_scores_of_layers_and_heads_are_those_of_their_dense_forms(made, name, device):
    for row, layer, _ in rows_of(made(name), device=device):
        query, key = factors(layer, row["head"], layer.key)
        form = sum(q @ k.T for q, k in zip(query, key, strict=True))
        whole = Form(side_by_side(query), side_by_side(key))
        rank = min(row["rank"], WIDTH)
        assert row["rank"] == (1 if row["head"] is not None else len(layer.key)) * SIZE
        assert row["symmetry"] == pytest.approx(dense.symmetry(form), abs=2e-6)
        assert row["directionality"] == pytest.approx(dense.directionality(form), abs=2e-6)
        assert row["norm"] == pytest.approx(np.linalg.norm(form), rel=1e-6)
        assert row["self_attending"] == pytest.approx(np.trace(form) / math.sqrt(rank) / np.linalg.norm(form), abs=1e-6)
        assert row["dominance"] == pytest.approx(whole.dominance(), abs=1e-5)
        assert (row["rank_symmetric"], row["rank_skew"]) == pytest.approx(whole.effective_ranks(), rel=1e-3)
        centre = np.eye(WIDTH) - layer.norm.centred / WIDTH
        folding = centre @ np.diag(layer.norm.gain.astype(float))
        assert row["symmetry_folded"] == pytest.approx(dense.symmetry(folding @ form @ folding.T), abs=2e-6)
        assert row["directionality_folded"] == pytest.approx(dense.directionality(folding @ form @ folding.T), abs=2e-6)
        assert not row["qk_norm"] and not row["cross"]


@both_devices
@pytest.mark.parametrize("name", MODELS)
def test_re_paired_scores_are_those_with_keys_of_another_group_or_layer(made, name, device):
    for row, layer, layers in rows_of(made(name), device=device):
        other, groups = layers[row["layer"] - 1], len(layer.key)  # the previous layer, the last one for the first
        within = row["head"] is not None and groups > 1
        keys, partner = (layer.key, derangement(groups)) if within else (other.key, None)
        query, key = factors(layer, row["head"], keys, partner)
        form = sum(q @ k.T for q, k in zip(query, key, strict=True))
        assert row["symmetry_repaired"] == pytest.approx(dense.symmetry(form), abs=2e-6)
        assert row["directionality_repaired"] == pytest.approx(dense.directionality(form), abs=2e-6)
        assert_rotary_scores(row, query, key, layer.rotary, "_repaired")


def assert_rotary_scores(row: dict[str, Any], query: np.ndarray, key: np.ndarray, rotary: Any, suffix: str) -> None:
    if rotary is None:
        assert row["rotary"] == "no" and row[f"symmetry_rope{suffix}"] is row[f"directionality_rope{suffix}"] is None
        return
    average = rotary_average(side_by_side(query), side_by_side(key), rotary, len(key))
    direction = float(directionality(average.rows, average.columns))
    assert row["rotary"] == "yes"
    assert row[f"symmetry_rope{suffix}"] == pytest.approx(float(average.symmetry), abs=2e-6)
    assert row[f"directionality_rope{suffix}"] == pytest.approx(direction, abs=2e-6)


@both_devices
@pytest.mark.parametrize("name", MODELS)
def test_rotary_scores_and_both_gaussian_nulls(made, name, device):
    for row, layer, _ in rows_of(made(name), device=device):
        assert_rotary_scores(row, *factors(layer, row["head"], layer.key), layer.rotary, "")
        null = gaussian_null(WIDTH, WIDTH, row["rank"])
        nulls = {score: null.level(score) for score in ("symmetry", "directionality", "dominance")}
        nulls["self_attending"] = 0.0, 1 / math.sqrt(min(row["rank"], WIDTH) * WIDTH)
        assert row["directionality_p"] == null.directionality_p(row["directionality"])
        if layer.rotary is not None:
            still = len(layer.rotary.fixed(SIZE))
            factor = layer.rotary.factor if still else 1.0
            groups = len(layer.key) if row["head"] is None else 1
            null = rotary_null(WIDTH, WIDTH, groups, len(layer.rotary.turning), still, factor)
            nulls |= {f"{score}_rope": null.level(score) for score in ("symmetry", "directionality")}
            assert row["directionality_rope_p"] == null.directionality_p(row["directionality_rope"])
            assert row["symmetry_rope_z"] > 3
        for score, (mean, std) in nulls.items():
            assert (row[f"{score}_chance"], row[f"{score}_chance_std"]) == (mean, pytest.approx(std))
            assert row[f"{score}_z"] == pytest.approx((row[score] - mean) / std)


@pytest.mark.parametrize("name", ["shared keys, RMSNorm", "attention factor", "partial rotation, LayerNorm"])
def test_frequencies_have_one_row_per_head_and_pair(made, name):
    table, layer = attngeo.score(made(name)), list(attngeo.attention_layers(made(name)))[1]
    rotary = layer.rotary
    assert table.frequencies.height == LAYERS * HEADS * len(rotary.turning)
    rows = table.frequencies.filter(layer=1, head=4).to_dicts()
    query, key = (w[0] * rotary.scale(SIZE) for w in factors(layer, 4, layer.key))
    energies = []
    for row, (a, b), theta in zip(rows, rotary.turning, rotary.turning_frequencies, strict=True):
        x = query[:, [a, b]].T @ key[:, [a, b]]
        assert row["frequency"] == theta
        assert row["alpha"] == pytest.approx((x[0, 0] + x[1, 1]) / 2, rel=1e-5)
        assert row["beta"] == pytest.approx((x[1, 0] - x[0, 1]) / 2, rel=1e-5)
        assert row["phase"] == pytest.approx(math.atan2(row["beta"], row["alpha"]))
        assert row["preferred_offset"] == pytest.approx(row["phase"] / theta)
        energies.append((query[:, [a, b]] ** 2).sum() * (key[:, [a, b]] ** 2).sum())
    assert [row["energy"] for row in rows] == pytest.approx(np.array(energies) / sum(energies), rel=1e-5)
    if len(rotary.fixed(SIZE)) == 0:  # tr M_Δ = Σ_f 2√(α² + β²) cos(Δθ − φ)
        form = Form(*(w[0] for w in factors(layer, 4, layer.key)), rotary)
        for offset in (0.0, 1.0, -3.0, 20.0):
            sizes = [2 * math.hypot(row["alpha"], row["beta"]) for row in rows]
            angles = [offset * row["frequency"] - row["phase"] for row in rows]
            waves = sum(size * math.cos(angle) for size, angle in zip(sizes, angles, strict=True))
            assert waves == pytest.approx(np.trace(form.at(offset).dense()), rel=1e-5)


@both_devices
def test_the_scale_of_the_weights_changes_nothing_but_norms(made, device):
    frame, small = (attngeo.score(made("attention factor", scale=s), device=device) for s in (1.0, 2.0**-100))
    for name in ("symmetry", "directionality", "symmetry_rope", "directionality_rope", "dominance", "symmetry_repaired",
                 "symmetry_folded", "directionality_folded", "rank_skew"):  # fmt: skip
        np.testing.assert_allclose(small.frame[name], frame.frame[name], atol=1e-6, rtol=1e-6, err_msg=name)
    for name in ("energy", "phase", "preferred_offset"):
        np.testing.assert_allclose(small.frequencies[name], frame.frequencies[name], rtol=1e-6, err_msg=name)


@both_devices
def test_layers_that_share_keys_are_no_null_for_each_other(made, device):
    """The form of layer 2 would be paired with its own keys; those of the others with other keys."""
    key = tensors_of("one key head")["model.layers.1.self_attn.k_proj.weight"]
    frame = attngeo.score(made("one key head", **{"model.layers.2.self_attn.k_proj.weight": key}), device=device).frame
    assert frame.filter(layer=2)["symmetry_repaired"].null_count() == 1 + HEADS
    assert frame.filter(frame["layer"] < 2)["symmetry_repaired"].null_count() == 0
    (single,) = {row["symmetry_repaired"] for row in attngeo.score(made("one key head", 1)).frame.to_dicts()}
    assert single is None  # the only layer of its shape


def test_heads_that_cancel_each_other_keep_their_digits():
    """The sum of the heads of a group is 1e-5 of each; added up in float32 it would be mostly rounding."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((4, 180, 600), dtype=np.float32)
    query[1::2] = -query[::2] + np.float32(1e-5) * query[1::2]
    key = rng.standard_normal((2, 180, 600), dtype=np.float32)
    state = {f"layers.0.{side}_proj.weight": w.reshape(-1, 600) for side, w in (("q", query), ("k", key))}
    row = attngeo.score(state, num_heads=4, nulls=False).frame.row(0, named=True)
    form = sum(dense.form(q.T, key[h // 2].T) for h, q in enumerate(query))
    assert row["symmetry"] == pytest.approx(dense.symmetry(form), abs=2e-6)
    assert row["directionality"] == pytest.approx(dense.directionality(form), abs=2e-6)


@pytest.mark.parametrize("device", ["cuda:99", "nowhere"])
def test_a_device_that_does_not_exist_is_one_line(made, device):
    pytest.importorskip("torch")
    with pytest.raises(attngeo.AttngeoError, match=f"device {device}: cannot be used") as error:
        attngeo.score(made("one key head"), device=device)
    assert "\n" not in str(error.value)


def test_cross_attention_has_no_score_of_tokens_that_attend_to_themselves():
    rng = np.random.default_rng(0)
    places = ("encoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.0.SelfAttention")
    places += ("decoder.block.0.layer.1.EncDecAttention",)
    state = {f"{place}.{side}.weight": rng.normal(size=(48, 48)) for place in places for side in "qk"}
    frame = attngeo.score(state, num_heads=6, unproven=True).frame
    assert frame["self_attending"].is_null().to_list() == frame["cross"].to_list()
    assert sorted(set(frame["stack"])) == ["cross", "decoder", "encoder"]
    assert frame["rank_skew"].null_count() == 0


@pytest.mark.parametrize("kind", ["gaussian", "cancelling groups", "tiny", "one large row"])
def test_rotary_scores_of_large_layers_are_as_precise_as_in_float64(made, kind):
    heads, groups, d, r = 16, 8, 1152, 32
    query = np.random.default_rng(0).standard_normal((heads, r, d), dtype=np.float32)
    key = np.random.default_rng(1).standard_normal((groups, r, d), dtype=np.float32)
    if kind == "cancelling groups":  # what half of the groups do, the others nearly undo
        key[4:] = key[:4]
        query[8:] = -query[:8] + np.float32(1e-3) * query[8:]
    elif kind == "tiny":
        query, key = query * np.float32(1e-18), key * np.float32(1e-15)
    elif kind == "one large row":
        query[:, :, 3] *= 100
    tensors = {
        f"model.layers.0.self_attn.{side}_proj.weight": w.reshape(-1, d) for side, w in (("q", query), ("k", key))
    }
    sizes = {"num_attention_heads": heads, "hidden_size": d, "num_key_value_heads": groups, "head_dim": r}
    folder = made("one key head", 1, sizes=sizes, only=tensors)
    row = attngeo.score(folder, nulls=False, heads=False).frame.row(0, named=True)
    (layer,) = attngeo.attention_layers(folder)
    summed = query.astype(float).reshape(groups, 2, r, d).sum(1).reshape(-1, d).T  # [d, G·r]
    average = rotary_average(summed, key.astype(float).reshape(-1, d).T, layer.rotary, groups)
    assert row["symmetry_rope"] == pytest.approx(float(average.symmetry), abs=2e-6)
    direction = float(directionality(average.rows, average.columns))
    assert row["directionality_rope"] == pytest.approx(direction, abs=2e-6)


@both_devices
def test_zero_heads_have_no_score_and_are_named_in_one_warning_and_one_note(made, device, tmp_path):
    name = "shared keys, RMSNorm"
    query, zero = "model.layers.1.self_attn.q_proj.weight", "model.layers.2.self_attn.k_proj.weight"
    changed = {query: tensors_of(name)[query].copy(), zero: np.zeros_like(tensors_of(name)[zero])}
    changed[query][5 * SIZE :] = 0
    folder = made(name, **changed)
    with pytest.warns(UserWarning) as caught:
        table = attngeo.score(folder, device=device)
    names = "L1H5, L2, L2H0, L2H1, L2H2, L2H3, L2H4, L2H5"
    text = f"{folder}: no score where the query, the key or their product is zero: {names}"
    assert [(str(w.message), w.category, w.filename) for w in caught] == [(text, NoteWarning, __file__)]
    assert table.notes == (table + table).notes == attngeo.ScoreTable.load(table.save(tmp_path / "t.parquet")).notes
    assert table.notes == (text,) and table.summary()["count"].to_list() == [2, 11]
    for row in table.frame.iter_rows(named=True):
        is_zero = row["layer"] == 2 or (row["layer"], row["head"]) == (1, 5)
        for score in (
            "symmetry",
            "directionality",
            "symmetry_rope",
            "directionality_rope",
            "dominance",
            "self_attending",
        ):
            assert {row[score] is None, row[f"{score}_z"] is None, row[f"{score}_chance"] is None} == {is_zero}
        for column in ("rank_symmetric", "rank_skew", "symmetry_folded", "directionality_p"):
            assert (row[column] is None) == is_zero
    pairs = table.frequencies.filter(layer=1, head=5)
    assert pairs.select("alpha", "beta").unique().rows() == [(0.0, 0.0)]
    assert pairs.select("energy", "phase", "preferred_offset").unique().rows() == [(None, None, None)]


def test_random_weights_lie_within_the_null(made):
    rng, tensors = np.random.default_rng(0), tensors_of("shared keys, RMSNorm")
    random = {name: rng.normal(size=w.shape).astype(np.float32) for name, w in tensors.items() if w.ndim == 2}
    frame = attngeo.score(made("shared keys, RMSNorm", **random)).frame
    assert frame["symmetry_z"].abs().max() < 5
    assert frame["directionality_p"].min() > 0.001
    assert frame["directionality_p"].mean() == pytest.approx(0.5, abs=0.25)
