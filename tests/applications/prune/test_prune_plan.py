"""Plans: made by every method, saved and loaded, uniform, by groups; what cannot be done is refused in one line."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import attngeo  # noqa: E402
from attngeo.applications.prune.curve import LossCurve, prune_folder  # noqa: E402
from attngeo.applications.prune.removal import prunable_layers as layers_of  # noqa: E402
from attngeo.errors import InputError  # noqa: E402
from attngeo.live.load import quiet_transformers  # noqa: E402
from tests.applications.prune.prunable_models import (  # noqa: E402
    assert_close,
    calibration_inputs,
    gated,
    removed_heads,
    tiny_model,
)

TEXT = (Path(__file__).parents[2] / "data" / "austen.txt").read_text()
METHODS = ("refit", "error", "sensitivity", "folders", "entropy", "random")
DECODER = attngeo.bundled("decoder")


def decoder() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(DECODER, dtype=torch.float32)


def llama_plan(model: Any = None, **options: Any) -> attngeo.PrunePlan:
    return attngeo.prune_plan(model or tiny_model("llama"), calibration_inputs("llama"), **options)


def kept_numbers(model: Any, plan: attngeo.PrunePlan) -> list[int]:
    """Return how many heads each layer keeps."""
    return [len(heads) for heads in plan.kept_heads(layers_of(model)).values()]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_a_plan_of_which_smaller_ones_are_the_beginning(method: str) -> None:
    plan = attngeo.prune_plan(DECODER, TEXT, method=method)
    assert len(plan.removed) == len(set(plan.heads)) == 5  # the nearest to 30% of 16
    assert plan.method == method and all(one.cost is not None for one in plan.removed)
    small = attngeo.prune_plan(DECODER, TEXT, method=method, heads=3)
    assert len(small.removed) == 3
    assert method == "folders" or small.removed == plan.removed[:3]
    model = decoder()
    assert attngeo.prune(model, plan, refit=False).num_parameters() < model.num_parameters()


@pytest.mark.parametrize("method", ["refit", "random"])
def test_whole_groups_go_by_default_where_query_heads_share_key_heads(method: str) -> None:
    model, ids = tiny_model("llama"), calibration_inputs("llama")[0]
    plan = llama_plan(model, share=0.5, method=method)
    by_layer = [sorted(one.head for one in plan.removed if one.layer == layer) for layer in range(2)]
    assert all(heads in ([0, 1, 2], [3, 4, 5]) for heads in by_layer) and plan.notes == ()
    assert len({one.cost for one in plan.removed[:3]}) == 1  # the cost is that of the group
    small = attngeo.prune(model, plan, refit=False)
    assert small.model.layers[0].self_attn.k_proj.out_features == 6  # one key head of size 6 is left
    assert small.model.layers[0].self_attn.config is small.model.config  # and needs no attention function of our own
    with torch.no_grad(), gated(model, list(plan.labels)):
        assert_close(small(**ids).logits, model(**ids).logits)


@pytest.mark.parametrize("method", ["refit", "error"])
def test_single_query_heads_go_from_every_group_of_a_layer(method: str) -> None:
    model, ids = tiny_model("llama"), calibration_inputs("llama")[0]
    plan = llama_plan(model, heads=6, method=method, unit="query")
    groups = Counter((one.layer, one.head // 3) for one in plan.removed)
    assert all(groups[layer, 0] == groups[layer, 1] for layer in range(2)) and groups.total() == 6
    small = attngeo.prune(model, plan, refit=False)
    with torch.no_grad(), gated(model, list(plan.labels)):
        assert_close(small(**ids).logits, model(**ids).logits)


@pytest.mark.parametrize(
    ("options", "removed", "reason"),
    [
        ({"heads": 1}, 3, "3 heads are removed instead of 1: only whole groups go"),
        ({"heads": 5}, 6, "6 heads are removed instead of 5: only whole groups go"),
        ({"share": 0.9}, 6, "6 heads are removed instead of 11: every layer keeps at least one group"),
        (
            {"heads": 5, "unit": "query"},
            4,
            "4 heads are removed instead of 5: every group of a layer loses equally many",
        ),
        (
            {"heads": 11, "unit": "query"},
            8,
            "8 heads are removed instead of 11: every group keeps at least one query head",
        ),
    ],
)
def test_other_numbers_of_heads_than_asked_for_are_explained(
    options: dict[str, Any], removed: int, reason: str
) -> None:
    plan = llama_plan(method="random", **options)
    assert len(plan.removed) == removed and plan.notes == (reason,)


def test_every_layer_keeps_a_head() -> None:
    plan = attngeo.prune_plan(DECODER, TEXT, share=0.99, method="random")  # 0.99 · 16 rounds to all heads
    assert plan.notes == ("12 heads are removed instead of 16: every layer keeps at least one query head",)
    assert kept_numbers(decoder(), plan) == [1, 1, 1, 1]
    assert len(attngeo.prune_plan(DECODER, TEXT, share=0.001, method="random").heads) == 1


def test_stacks_of_single_heads_keep_them() -> None:
    """The other stacks of the model can still lose heads."""
    config = tiny_model("bart").config
    config.encoder_attention_heads = 1
    model = transformers.BartForConditionalGeneration(config).eval()
    plan = attngeo.prune_plan(model, calibration_inputs("bart"), heads=9, method="error")
    assert len(plan.heads) == 9 and not any(label.startswith("encoder") for label in plan.labels)


@pytest.mark.parametrize(("kind", "unit"), [("llama", "query"), ("qwen3", "group")])
def test_uniform_plans_are_loaded_by_transformers(kind: str, unit: str, tmp_path: Path) -> None:
    model, rows = tiny_model(kind), calibration_inputs(kind)
    plan = attngeo.prune_plan(model, rows, share=0.3, unit=unit, uniform=True, method="error")
    small = attngeo.prune(model, plan, refit=False)
    assert kept_numbers(model, plan) == ([4, 4] if unit == "query" else [3, 3])
    with quiet_transformers():
        small.save_pretrained(tmp_path)
        stock = type(model).from_pretrained(tmp_path)
    with torch.no_grad():
        assert_close(stock(**rows[0]).logits, small(**rows[0]).logits)
        assert torch.equal(attngeo.load_pruned(tmp_path)(**rows[0]).logits, stock(**rows[0]).logits)
    scored = attngeo.score(tmp_path, nulls=False).frame.drop_nulls("head")
    kept = plan.kept_heads(layers_of(model))
    expected = {(*key, head) for key, heads in kept.items() for head in heads}
    assert set(scored.select("stack", "layer", "head").iter_rows()) == expected
    if unit == "group":
        assert plan.notes == ("6 heads are removed instead of 4: the nearest number that the config accepts",)


def test_a_count_that_the_config_rejects_is_not_used() -> None:
    """The width 48 is no multiple of 7 or 5 heads."""
    config = {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 6, "num_hidden_layers": 2}
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(hidden_size=48, intermediate_size=16, vocab_size=50, **config)
    )
    plan = llama_plan(model, method="error", share=1 / 8, unit="query", uniform=True)
    assert plan.notes == ("4 heads are removed instead of 2: the nearest number that the config accepts",)
    assert attngeo.prune(model, plan, refit=False).config.num_attention_heads == 6
    with pytest.raises(InputError, match="unit 'group': every layer has a single group, which has to be kept"):
        llama_plan(model, method="error", share=0.3, uniform=True)


def test_plans_are_saved_with_their_statistics(tmp_path: Path) -> None:
    plan, model, path = attngeo.prune_plan(DECODER, TEXT, heads=4), decoder(), tmp_path / "plan.json"
    line = f"4 of 16 heads (25.0%) of bert, chosen by refit: {', '.join(plan.labels)}"
    assert (str(plan), repr(plan)) == (line, f"PrunePlan({line})")
    plan.save(path)
    loaded = attngeo.PrunePlan.load(path)
    assert loaded == plan
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the refit was not applied")
        small, again = (attngeo.prune(model, one) for one in (plan, loaded))
    for name, value in small.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    by_hand = attngeo.PrunePlan.from_heads(model, ["L0H1"])
    by_hand.save(path)  # the statistics of the plan that it replaces are not taken for its own
    loaded = attngeo.PrunePlan.load(path)
    assert loaded == by_hand and loaded.statistics is None
    with pytest.raises(InputError, match="refit: no calibration; pass inputs="):
        attngeo.prune(model, loaded)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"plan\.json"):
        attngeo.PrunePlan.load(path)


def test_statistics_of_rows_without_targets_are_saved(tmp_path: Path) -> None:
    model = tiny_model("vit")
    plan = attngeo.prune_plan(model, calibration_inputs("vit"), heads=2, method="error")
    plan.save(tmp_path / "plan.json")
    (batch,) = attngeo.PrunePlan.load(tmp_path / "plan.json").statistics.held_out
    (expected,) = plan.statistics.held_out
    assert torch.equal(batch.inputs["pixel_values"], expected.inputs["pixel_values"]) and batch.targets is None


@pytest.mark.filterwarnings("ignore:the refit was not applied")
def test_losses_are_measured_for_the_shares_and_methods_that_are_asked_for(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    found = prune_folder(
        str(DECODER), TEXT, tmp_path / "one", heads=3, progress=lambda done, total: steps.append((done, total))
    )
    assert found.plan.heads == attngeo.prune_plan(DECODER, TEXT, heads=3).heads
    assert [(one.heads, one.refit) for one in found.curve.points] == [(3, False), (3, True)]
    assert LossCurve.load(tmp_path / "one" / "losses.json") == found.curve
    assert found.curve.plot().axes[0].get_legend() is not None
    assert [done for done, _ in steps] == list(range(1, len(steps) + 1)) and steps[-1][0] == steps[-1][1]
    own = {"share": 0.3, "method": "random", "evaluation": TEXT[:300], "refit": False}
    curve = prune_folder(str(DECODER), TEXT, tmp_path / "curve", curve=True, **own).curve
    counts = Counter(one.heads for one in curve.points)
    assert counts == {2: 5, 5: 5, 8: 5, 11: 5}  # five seeds each; 30% and 31.25%, which are both 5 heads, once


def test_the_losses_of_a_uniform_removal_are_those_of_uniform_plans(tmp_path: Path) -> None:
    model, tokenizer = tiny_model("llama"), transformers.AutoTokenizer.from_pretrained(DECODER)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    options: dict[str, Any] = {"share": 0.3, "unit": "query", "method": "error", "refit": False}
    found = prune_folder(str(tmp_path / "llama"), TEXT, tmp_path / "small", **options, uniform=True, compare=True)
    own = [one for one in found.curve.points if one.method == "error"]
    assert [one.heads for one in own] == [4] and own[0].loss == found.loss
    assert len({one.heads for one in found.curve.points}) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.3, "heads": 2}, "share is 0.3 and heads is 2: expected one of the two"),
        ({"share": 1.0}, "share is 1.0, expected a number above 0 and below 1"),
        ({"heads": 0}, "heads is 0, expected a whole number from 1 on"),
        ({"heads": 16}, "heads is 16, but the model has 16; expected fewer"),
        ({"method": "best"}, "method 'best': expected one of refit, error, sensitivity, folders, entropy, random"),
        ({"unit": "layer"}, "unit 'layer': expected one of query, group"),
        ({"uniform": True}, "uniform: model type bert; only configs of .* can state the head size"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attngeo.prune_plan(DECODER, TEXT, **{"method": "random"} | options)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (["L0H1", "L0H1"], "L0H1: named twice"),
        (["L0H9"], "L0H9: no such head; layer 0 has the heads 0 to 5"),
        (["L7H0"], "L7H0: no such layer; the layers are 0 to 1"),
        ([f"L0H{head}" for head in range(6)], "L0: all heads of the layer would be removed"),
        (
            ["L1H4"],
            r"L1: the group of H3 to H5 would keep 2 query heads and that of H0 to H2 would keep 3; remove whole",
        ),
        (["head 3"], "'head 3': not the label of a head"),
        (["cross/L0H1"], "cross/L0H1: the model has no stack cross; it has decoder"),
        ("L0H1", "heads: expected a list of labels"),
    ],
)
def test_heads_that_cannot_be_removed_are_refused(heads: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attngeo.PrunePlan.from_heads(tiny_model("llama"), heads)


def test_a_stack_has_to_be_named_where_there_are_several() -> None:
    with pytest.raises(InputError, match="L0H1: the model has the stacks cross, decoder, encoder; write for example"):
        attngeo.PrunePlan.from_heads(tiny_model("bart"), ["L0H1"])


def quantised(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces another package for this function
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def adapted(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"])).get_base_model()


def broken(model: Any) -> Any:
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[0, 0] = torch.nan
    return model


def pruned(model: Any) -> Any:
    return attngeo.prune(model, attngeo.PrunePlan.from_heads(model, removed_heads("llama")), refit=False)


def of_unknown_type(model: Any) -> Any:
    return transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=16, n_head=2, n_layer=1, vocab_size=20))


def with_another_norm(model: Any) -> Any:
    settings = {"conv_dim": (16,), "conv_stride": (5,), "conv_kernel": (10,), "num_conv_pos_embedding_groups": 4}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    return transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**settings, **sizes, do_stable_layer_norm=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_another_norm, "do_stable_layer_norm is True, with which removing heads was never checked"),
        (of_unknown_type, "model type bloom: removing heads is supported for "),
        (broken, r"layers\.1\.self_attn\.v_proj\.weight: contains NaN"),
        (quantised, r"q_proj\._packed_params\.dtype: is no tensor, so the module is quantised"),
        (adapted, r"layers\.0\.self_attn\.q_proj: has an adapter; merge it before"),
        (pruned, "has lost heads already"),
        (lambda model: "folder", "str: expected a transformers model"),
    ],
)
def test_models_that_cannot_be_pruned_are_refused(change: Any, message: str) -> None:
    model = change(tiny_model("llama"))
    with pytest.raises(InputError, match=message):
        attngeo.PrunePlan.from_heads(model, ["L0H1"])


def test_a_plan_belongs_to_one_model() -> None:
    model = tiny_model("llama")
    plan = attngeo.PrunePlan.from_heads(model, removed_heads("llama"))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].self_attn.k_proj.weight[0, 0] += 1e-6
    with pytest.raises(InputError, match="the plan was made for another model"):
        attngeo.prune(other, plan, refit=False)
    assert attngeo.prune(model.model, plan, refit=False) is not None  # with and without its head it is the same model


def test_shared_layers_have_the_mean_entropy_of_their_uses() -> None:
    """ALBERT runs one layer three times; its four heads are captured as twelve."""
    model, rows = tiny_model("albert").base_model, calibration_inputs("albert")
    plan = attngeo.prune_plan(model, rows, heads=3, method="entropy")
    captured = [attngeo.capture(model, row) for row in rows[:3] + rows[4:5]]  # the first rows that are not held out
    assert captured[0].heads == tuple(f"L{use}H{head}" for use in range(3) for head in range(4))
    entropies = [attngeo.organize(one, refine=False).expand().entropy("head", normalised=True) for one in captured]
    mean = np.mean(entropies, 0).reshape(3, 4).mean(0)  # [uses · H] → [H]
    assert [one.head for one in plan.removed] == list(np.argsort(-mean)[:3])
    assert [one.cost for one in plan.removed] == pytest.approx(sorted(-mean)[:3])
    folders = attngeo.prune_plan(model, rows, heads=2, method="folders")
    assert {one.layer for one in folders.removed} == {0} and len(folders.removed) == 2
    small = attngeo.prune(model, folders, refit=False)
    assert attngeo.capture(small, rows[0]).shape[2] == 6  # two heads, used three times
