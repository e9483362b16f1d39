"""Copies of a model as people make them: an adapter merged, a quantised GGUF file, a folder on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import attngeo
from attngeo.applications.compare import compare
from attngeo.errors import SourceError
from tests.applications.compare.llama_pairs import (
    GROUPS,
    HEADS,
    SIZE,
    dense_heads,
    random_model,
    save_model,
)


def test_a_merged_adapter_changes_the_layers_it_was_trained_in(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    from attngeo.live.load import quiet_transformers
    from tests.applications.prune.prunable_models import tiny_model

    model = tiny_model("llama")
    with quiet_transformers():
        model.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj"], layers_to_transform=[1], task_type="CAUSAL_LM")
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, config)
    optimizer = torch.optim.AdamW(adapted.parameters(), lr=0.02)
    ids = torch.randint(3, 50, (4, 12))
    for _ in range(10):
        adapted(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    unmerged = compare(tmp_path / "base", adapted, draws=99)
    with pytest.raises(SourceError, match=r"layers\.1\.self_attn\.q_proj has an adapter; merge it"):
        attngeo.score(adapted)
    merged = adapted.merge_and_unload()
    with quiet_transformers():
        merged.save_pretrained(tmp_path / "merged")
    found = compare(tmp_path / "base", tmp_path / "merged")
    layers = found.sorted(heads=False)
    assert layers["layer"].to_list() == [1, 0] and layers["change"][1] == 0 < layers["change"][0]
    before, after = (_forms(one.model.layers[1].self_attn) for one in (tiny_model("llama"), merged))
    expected = np.linalg.norm(before - after, axis=(1, 2)) / np.linalg.norm(before, axis=(1, 2))
    changes = found.changes.filter(pl.col("layer") == 1).drop_nulls("head")["change"]
    np.testing.assert_allclose(changes, expected, rtol=1e-4)
    assert found.related.p_value == 0.001 and found.related.cosine > 0.9
    np.testing.assert_allclose(unmerged.changes["change"], found.changes["change"], rtol=1e-3)
    assert unmerged.related.p_value == 0.01


def test_a_pruned_copy(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from attngeo.applications.prune.plan import PrunePlan
    from attngeo.applications.prune.prune import prune
    from tests.applications.prune.prunable_models import tiny_model

    model = tiny_model("llama")
    small = prune(model, PrunePlan.from_heads(model, ["L0H1", "L0H4", "L1H3", "L1H4", "L1H5"]), refit=False)
    found = compare(model, small)
    heads = found.changes.drop_nulls("head")
    assert heads.select("layer", "head").rows() == [(0, h) for h in (0, 2, 3, 5)] + [(1, h) for h in (0, 1, 2)]
    assert heads["change"].max() == 0 and (heads["match"] == heads["head"]).all()
    assert found.notes[0].endswith("without a counterpart in LlamaForCausalLM: L0H1, L0H4, L1H3, L1H4, L1H5")
    assert ", of 7 heads by 0%; most in L1, by " in found.words()[0]
    for row in found.changes.filter(pl.col("head").is_null()).iter_rows(named=True):
        forms = _forms(model.model.layers[row["layer"]].self_attn)
        gone = forms[[1, 4] if row["layer"] == 0 else [3, 4, 5]].sum(0)
        assert row["change"] == pytest.approx(np.linalg.norm(gone) / np.linalg.norm(forms.sum(0)), rel=1e-5)
    assert found.related.p_value == 0.001 and not found.identical
    small.save_pretrained(tmp_path)
    assert compare(model, tmp_path).changes.equals(found.changes)


def _forms(attention: Any) -> np.ndarray:
    """Return M [6, d, d] of the query heads of size 6."""
    return dense_heads(*(side.weight.detach().numpy() for side in (attention.q_proj, attention.k_proj)), 6)


@pytest.mark.parametrize(("kind", "largest"), [("Q8_0", 0.02), ("Q4_1", 0.3)])
def test_a_quantised_gguf_copy(tmp_path: Path, kind: str, largest: float) -> None:
    """The converter of llama.cpp also permutes the rows of each head, which changes no form."""
    gguf = pytest.importorskip("gguf")
    from tests.weights.made_checkpoints import gguf_bytes

    tensors = random_model(0, width=64, layers=2)
    base = save_model(tmp_path / "base", tensors)
    quantised, stored = {}, gguf.GGMLQuantizationType[kind]
    for layer in range(2):
        for side, count in (("q", HEADS), ("k", GROUPS)):
            weight = tensors[f"model.layers.{layer}.self_attn.{side}_proj.weight"]
            halves = weight.reshape(count, 2, SIZE // 2, 64).swapaxes(1, 2).reshape(weight.shape)
            values = gguf.quants.dequantize(gguf.quants.quantize(halves, stored), stored)
            quantised[f"blk.{layer}.attn_{side}.weight"] = values.astype(np.float32)
        quantised[f"blk.{layer}.attn_norm.weight"] = tensors[f"model.layers.{layer}.input_layernorm.weight"]
    quantised["token_embd.weight"] = tensors["model.embed_tokens.weight"]
    metadata = {"attention.head_count": HEADS, "attention.head_count_kv": GROUPS, "attention.key_length": SIZE}
    (tmp_path / "copy.gguf").write_bytes(gguf_bytes(metadata, quantised))
    found = compare(base, tmp_path / "copy.gguf")
    heads = found.changes.drop_nulls("head")
    assert heads.height == 2 * HEADS and (heads["match"] == heads["head"]).all()
    assert heads["change"].min() > 0 and heads["change"].max() < largest
    assert found.related.p_value == 0.001 and found.related.cosine > 0.95
