"""Pruned models are saved and loaded, and scored, captured and monitored under the labels of the full model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoModelForMaskedLM, AutoTokenizer  # noqa: E402

import attngeo  # noqa: E402
from attngeo import PrunePlan, load_pruned, prune  # noqa: E402
from attngeo.errors import InputError, SourceError  # noqa: E402
from attngeo.live.load import load_model, quiet_transformers  # noqa: E402
from attngeo.training.monitoring.records import layer_values  # noqa: E402
from tests.applications.prune.prunable_models import (  # noqa: E402
    EAGER_ONLY,
    MODELS,
    assert_close,
    gated,
    inputs_for,
    removed_heads,
    tiny_model,
)


def small_model(kind: str, attention: str | None = None) -> tuple[Any, Any, PrunePlan]:
    """Return the full model, the pruned one and the plan."""
    model = tiny_model(kind, attention or ("eager" if kind in EAGER_ONLY else "sdpa"))
    plan = PrunePlan.from_heads(model, removed_heads(kind))
    return model, prune(model, plan, refit=False), plan


def save(model: Any, folder: Path) -> None:
    with quiet_transformers():
        model.save_pretrained(folder)


@pytest.mark.parametrize("kind", ["albert", "gpt2", "gpt_neox", "llama", "phi3", "t5", "vit"])
def test_a_saved_model_is_loaded_and_scored(kind: str, tmp_path: Path) -> None:
    model, small, plan = small_model(kind)
    save(small, tmp_path)
    loaded = load_pruned(tmp_path)
    assert type(loaded) is type(small)
    batch = inputs_for(kind)
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, small(**batch).logits)
    with quiet_transformers(), pytest.raises(RuntimeError, match="mismatch"):
        type(small).from_pretrained(tmp_path)
    full = attngeo.score(model, nulls=False).frame
    for ref in (tmp_path, small):
        heads = attngeo.score(ref, nulls=False).frame.drop_nulls("head")
        same = heads.join(full, on=["stack", "layer", "head"], suffix="_full")
        assert heads.height == same.height == plan.total - len(plan.removed)
        gone = {(one.stack, one.layer, one.head) for one in plan.removed}
        assert not gone & set(heads.select("stack", "layer", "head").iter_rows())
        np.testing.assert_allclose(same["norm"], same["norm_full"], rtol=1e-5)
        np.testing.assert_allclose(same["directionality"], same["directionality_full"], atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_bfloat16(kind: str, tmp_path: Path) -> None:
    save(tiny_model(kind).to(torch.bfloat16), tmp_path / "full")
    with quiet_transformers():
        model = MODELS[kind]()[0].from_pretrained(tmp_path / "full")
    small = prune(model, PrunePlan.from_heads(model, removed_heads(kind)), refit=False)
    save(small, tmp_path / "small")
    loaded = load_pruned(tmp_path / "small")
    assert loaded.dtype == torch.bfloat16
    with torch.no_grad():
        assert torch.equal(loaded(**inputs_for(kind)).logits, small(**inputs_for(kind)).logits)
    assert load_pruned(tmp_path / "small", dtype=torch.float32).dtype == torch.float32


def test_a_model_from_a_gguf_file_is_saved_and_loaded(tmp_path: Path) -> None:
    """transformers does not save a model that it read from such a file."""
    from tools.proof.gguf.archs import ARCHS
    from tools.proof.gguf.prove import build, write_gguf

    arch = ARCHS["llama"][0]
    write_gguf(tmp_path / "model.gguf", "llama", arch, build(arch))
    model, ids = load_model(tmp_path / "model.gguf", head=True).model, {"input_ids": torch.arange(1, 9)[None]}
    config = model.config
    group = config.num_attention_heads // config.num_key_value_heads
    heads = [f"L0H{head}" for head in range(group)]
    small = prune(model, PrunePlan.from_heads(model, heads), refit=False)
    save(small, tmp_path / "small")
    with torch.no_grad(), gated(model, heads):
        assert_close(load_pruned(tmp_path / "small")(**ids).logits, model(**ids).logits)


@pytest.mark.parametrize("kind", ["albert", "gpt2", "llama", "t5", "vit"])
def test_capture_names_heads_as_in_the_full_model(kind: str) -> None:
    model, small, plan = small_model(kind)
    batch = {name: value[:1] for name, value in inputs_for(kind, padded=False).items()}
    for stack in plan.stacks:
        full, some = (attngeo.capture(one, batch, stack=stack) for one in (model, small))
        gone = {
            f"H{one.head}" if kind == "albert" else f"L{one.layer}H{one.head}"
            for one in plan.removed
            if one.stack == stack
        }
        kept = [label for label in full.heads if not any(label.endswith(head) for head in gone)]
        assert list(some.heads) == kept
        # Before the first removed head can have had an effect, the logits are those of the full model.
        first = [label for label in kept if label.startswith("L0")]
        if stack != "cross":
            columns = [full.heads.index(label) for label in first]
            np.testing.assert_allclose(
                some.values[:, :, : len(first)], full.values[:, :, columns], rtol=1e-4, atol=1e-5
            )


def test_a_folder_runs_wherever_a_model_is_named(tmp_path: Path) -> None:
    """`capture`, and all that is built on it, takes the folder of a pruned model as it takes any other."""
    model = AutoModelForMaskedLM.from_pretrained(attngeo.bundled("encoder"), dtype=torch.float32).eval()
    plan = PrunePlan.from_heads(model, ["L0H1", "L3H2"])
    small = prune(model, plan, refit=False)
    save(small, tmp_path / "pruned")
    AutoTokenizer.from_pretrained(attngeo.bundled("encoder")).save_pretrained(tmp_path / "pruned")
    text = "It is a truth universally acknowledged"
    tokenizer = AutoTokenizer.from_pretrained(attngeo.bundled("encoder"))
    found, expected = attngeo.capture(tmp_path / "pruned", text), attngeo.capture(small, text, tokenizer=tokenizer)
    assert found.heads == expected.heads and len(found.heads) == 14
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5)
    assert load_model(tmp_path / "pruned", head=True).model.config.attngeo_pruned == small.config.attngeo_pruned
    assert type(load_model(tmp_path / "pruned").model).__name__ == "BertModel"


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_a_monitor_names_heads_as_in_the_full_model(kind: str) -> None:
    model, small, plan = small_model(kind)
    batch = inputs_for(kind)
    full, some = (layer_values(attngeo.Monitor()(0, one, batch)) for one in (model, small))
    gone = {f"{one.stack}/L{one.layer}H{one.head}/" for one in plan.removed}
    of_heads = [name for name in full if re.search(r"H\d+/", name) and not any(label in name for label in gone)]
    assert len(of_heads) > 20
    assert not any(label in name for name in some for label in gone)
    for name in of_heads:
        if name.endswith("max_logit") and "/L0" not in name:
            assert name in some  # logits of later layers depend on the removed heads
        elif "cross" not in name or not name.endswith("max_logit"):
            assert some[name] == pytest.approx(full[name], rel=1e-4, abs=1e-6)


def test_a_folder_that_is_not_pruned_or_damaged(tmp_path: Path) -> None:
    model, small, _ = small_model("llama")
    save(model, tmp_path / "full")
    with pytest.raises(InputError, match=r"config\.json has no attngeo_pruned"):
        load_pruned(tmp_path / "full")
    with pytest.raises(SourceError, match=r"no config\.json"):
        load_pruned(tmp_path)
    save(small, tmp_path / "small")
    config = tmp_path / "small" / "config.json"
    config.write_text(config.read_text().replace('"head_size": 6', '"head_size": 5'))
    with pytest.raises(attngeo.AttngeoError, match="rows, but the config declares heads that need"):
        attngeo.score(tmp_path / "small")
