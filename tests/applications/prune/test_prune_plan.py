"""Plans: made by every method, saved and loaded, uniform, by groups; what cannot be done is refused in one line."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import attngeo  # noqa: E402
from attngeo.applications.prune.calibrate import Calibration, calibrate  # noqa: E402
from attngeo.applications.prune.calibration.losses import mean_loss  # noqa: E402
from attngeo.applications.prune.criteria.methods import METHODS  # noqa: E402
from attngeo.applications.prune.loss_curve import LossCurve, loss_curve, plans  # noqa: E402
from attngeo.applications.prune.plan import PrunePlan  # noqa: E402
from attngeo.applications.prune.prune import prune  # noqa: E402
from attngeo.applications.prune.prune_folder import prune_folder  # noqa: E402
from attngeo.applications.prune.prune_plan import choose_heads, prune_plan  # noqa: E402
from attngeo.applications.prune.removal.layers import prunable_layers  # noqa: E402
from attngeo.data import bundled  # noqa: E402
from attngeo.errors import InputError  # noqa: E402
from attngeo.live.load import load_model, quiet_transformers  # noqa: E402
from tests.applications.prune.prunable_models import assert_close, gated, removed_heads, tiny_model  # noqa: E402
from tests.applications.prune.test_refit import calibration_inputs  # noqa: E402

TEXT = (Path(__file__).parents[2] / "data" / "austen.txt").read_text()


@pytest.fixture(scope="module")
def decoder() -> Calibration:
    return calibrate(load_model(bundled("decoder"), head=True), TEXT)


@pytest.fixture(scope="module")
def llama() -> Calibration:
    return calibrate(load_model(tiny_model("llama")), calibration_inputs("llama"))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_a_plan(method: str, decoder: Calibration) -> None:
    plan = choose_heads(decoder, method, share=0.3)
    assert len(plan.removed) == len(set(plan.heads)) == 5
    assert plan.method == method
    assert all(one.cost is not None for one in plan.removed)
    assert plan == choose_heads(decoder, method, share=0.3)
    small = prune(decoder.model, plan, refit=False)
    assert small.num_parameters() < decoder.model.num_parameters()


def test_greedy_plans_contain_smaller_ones(decoder: Calibration) -> None:
    small, large = plans(decoder, "unexplained", (0.2, 0.5))
    assert (len(small.removed), len(large.removed)) == (3, 8)
    assert small.removed == choose_heads(decoder, "unexplained", heads=3).removed == large.removed[:3]


def test_a_copy_of_a_head_costs_nothing_after_the_refit() -> None:
    """Two equal heads: either can be given back by the other, but not without a refit."""
    model = tiny_model("gpt2")
    attention = model.transformer.h[1].attn
    with torch.no_grad():
        for block in range(3):  # queries, keys, values of head 2 → head 0
            attention.c_attn.weight[:, block * 32 : block * 32 + 8] = attention.c_attn.weight[
                :, block * 32 + 16 : block * 32 + 24
            ]
            attention.c_attn.bias[block * 32 : block * 32 + 8] = attention.c_attn.bias[
                block * 32 + 16 : block * 32 + 24
            ]
    for method in ("refit", "unexplained"):
        plan = prune_plan(model, calibration_inputs("gpt2"), heads=2, method=method)
        assert plan.labels[0] in ("L1H0", "L1H2")
        assert plan.removed[0].cost < 0.2 * plan.removed[1].cost  # the penalty costs a little
    assert "L1H0" not in prune_plan(model, calibration_inputs("gpt2"), heads=1, method="output").labels
    plan = PrunePlan.from_heads(model, ["L1H0"])
    small = prune(model.base_model, plan, inputs=calibration_inputs("gpt2"))
    ids = calibration_inputs("gpt2")[0]
    with torch.no_grad():
        assert_close(small(**ids).last_hidden_state, model.base_model(**ids).last_hidden_state, 0.01)


def test_whole_groups(llama: Calibration) -> None:
    plan = choose_heads(llama, "unexplained", heads=3, unit="group")
    layer = {one.layer for one in plan.removed}
    assert len(plan.removed) == 3
    assert len(layer) == 1
    assert {one.head // 3 for one in plan.removed} in ({0}, {1})
    assert len({one.cost for one in plan.removed}) == 1  # the cost is that of the group
    small = prune(llama.model, plan, refit=False)
    attention = small.model.layers[layer.pop()].self_attn
    assert attention.k_proj.out_features == 6  # one key head of size 6 is left
    assert attention.config is small.model.config  # no attention function of our own is needed


@pytest.mark.parametrize("method", METHODS)
def test_groups_by_every_method(method: str, llama: Calibration) -> None:
    plan = choose_heads(llama, method, share=0.5, unit="group")
    by_layer = [sorted(one.head for one in plan.removed if one.layer == layer) for layer in range(2)]
    assert all(heads in ([0, 1, 2], [3, 4, 5]) for heads in by_layer)
    assert plan.notes == ()
    small, ids = prune(llama.model, plan, refit=False), calibration_inputs("llama")[0]
    with torch.no_grad(), gated(llama.model, list(plan.labels)):
        assert_close(small(**ids).logits, llama.model(**ids).logits)


def test_groups_cost_what_their_heads_cost_together(llama: Calibration) -> None:
    first = choose_heads(llama, "error", heads=3, unit="group").removed[0]
    layer = llama.measured[first.layer]
    gone = np.concatenate([np.arange(6 * head, 6 * head + 6) for head in range(first.head, first.head + 3)])
    moments, weight = layer.moments.fit[np.ix_(gone, gone)], layer.weight[gone]
    assert first.cost == pytest.approx(np.trace(weight.T @ moments @ weight), rel=1e-8)
    group = choose_heads(llama, "fisher", heads=3, unit="group").removed[0]
    fisher = llama.measured[group.layer].gate_fisher
    assert group.cost == pytest.approx(fisher[group.head : group.head + 3].sum())


def test_numbers_of_heads_that_are_no_whole_groups(llama: Calibration) -> None:
    for wanted, removed in ((1, 3), (4, 3), (5, 6)):
        plan = choose_heads(llama, "random", heads=wanted, unit="group")
        assert len(plan.removed) == removed
        assert plan.notes == (f"{removed} heads are removed instead of {wanted}: only whole groups go",)
    plan = choose_heads(llama, "random", share=0.9, unit="group")
    assert plan.notes == ("6 heads are removed instead of 11: every layer keeps at least one group",)


def test_a_count_that_the_config_rejects_is_not_used() -> None:
    """The width 48 is no multiple of 7 or 5 heads."""
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=48, num_attention_heads=8, num_key_value_heads=1, head_dim=6, num_hidden_layers=2,
            intermediate_size=16, vocab_size=50,
        )
    )  # fmt: skip
    calibration = calibrate(load_model(model), calibration_inputs("llama"))
    plan = choose_heads(calibration, "output", share=1 / 8, unit="query", uniform=True)
    assert plan.notes == ("4 heads are removed instead of 2: the nearest number that the config accepts",)
    assert prune(model, plan, refit=False).config.num_attention_heads == 6
    with pytest.raises(InputError, match="unit 'group': every layer has a single group"):
        choose_heads(calibration, "output", share=0.3, uniform=True, unit="group")


def test_the_losses_of_a_uniform_removal_are_those_of_uniform_plans() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[-1].self_attn.o_proj.weight.mul_(20)  # without `uniform`, all heads would go elsewhere
    calibration = calibrate(load_model(model), calibration_inputs("llama"))
    plan = choose_heads(calibration, "output", share=0.5, unit="query", uniform=True)
    batches = list(calibration.statistics.held_out)
    options: dict[str, Any] = {"shares": [plan.share], "refits": [False], "unit": "query"}
    curve = loss_curve(calibration, batches, ["output"], **options, uniform=True)
    assert curve.points[0].loss == mean_loss(prune(model, plan, refit=False), batches)
    (other,) = loss_curve(calibration, batches, ["output"], **options).points
    assert other.heads == len(plan.removed) and other.loss != curve.points[0].loss


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
@pytest.mark.parametrize("unit", ["query", "group"])
def test_uniform_plans_are_loaded_by_transformers(kind: str, unit: str, tmp_path: Path) -> None:
    model = tiny_model(kind)
    plan = prune_plan(model, calibration_inputs(kind), share=0.3, unit=unit, uniform=True, method="output")
    small = prune(model, plan, refit=False)
    kept = plan.kept_heads(prunable_layers(model))
    assert {len(heads) for heads in kept.values()} == ({4} if unit == "query" else {3})
    with quiet_transformers():
        small.save_pretrained(tmp_path)
        stock = type(model).from_pretrained(tmp_path)
    ids = calibration_inputs(kind)[0]
    with torch.no_grad():
        assert_close(stock(**ids).logits, small(**ids).logits)
        assert torch.equal(attngeo.load_pruned(tmp_path)(**ids).logits, stock(**ids).logits)
    scored = attngeo.score(tmp_path, nulls=False).frame.drop_nulls("head")
    assert set(scored.select("stack", "layer", "head").iter_rows()) == {
        (*key, head) for key, heads in kept.items() for head in heads
    }
    if unit == "group":
        assert plan.notes == ("6 heads are removed instead of 4: the nearest number that the config accepts",)


def test_a_uniform_plan_has_equal_layers() -> None:
    model = tiny_model("llama")
    plan = replace(PrunePlan.from_heads(model, ["L0H0", "L0H3", "L1H3", "L1H4", "L1H5"]), uniform=True)
    with pytest.raises(InputError, match="its layers keep different numbers of heads"):
        prune(model, plan, refit=False)


def test_a_folder_is_pruned_by_the_plan_of_its_method(decoder: Calibration, tmp_path: Path) -> None:
    """The default method needs gradients, also where no other method is compared with it."""
    found = prune_folder(str(bundled("decoder")), TEXT, tmp_path / "small", heads=3, refit=False)
    assert found.plan.heads == choose_heads(decoder, "sensitivity", heads=3).heads


def test_a_share_of_less_than_one_head_removes_one(decoder: Calibration) -> None:
    assert len(choose_heads(decoder, "magnitude", share=0.001).heads) == 1


def test_stacks_of_single_heads_keep_them() -> None:
    """The other stacks of the model can still lose heads."""
    config = tiny_model("bart").config
    config.encoder_attention_heads = 1
    model = transformers.BartForConditionalGeneration(config).eval()
    ids = torch.randint(3, 50, (8, 12), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row[None], "decoder_input_ids": row[None]} for row in ids]
    plan = prune_plan(model, rows, heads=9, method="magnitude")
    assert len(plan.heads) == 9 and not any(label.startswith("encoder") for label in plan.labels)


def test_plans_are_saved_with_their_statistics(decoder: Calibration, tmp_path: Path) -> None:
    plan = choose_heads(decoder, "unexplained", heads=4)
    plan.save(tmp_path / "plan.json")
    loaded = PrunePlan.load(tmp_path / "plan.json")
    assert loaded == plan
    small, again = (prune(decoder.model, one, refit=True) for one in (plan, loaded))
    for name, value in small.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    (tmp_path / "plan.npz").unlink()
    with pytest.raises(InputError, match="refit: no calibration"):
        prune(decoder.model, PrunePlan.load(tmp_path / "plan.json"))
    for text in ("", "{}", (tmp_path / "plan.json").read_text().replace('"total"', '"totals"')):
        (tmp_path / "broken.json").write_text(text)
        with pytest.raises(InputError, match=r"broken\.json"):
            PrunePlan.load(tmp_path / "broken.json")


def test_losses_by_share(llama: Calibration, tmp_path: Path) -> None:
    batches = llama.statistics.held_out
    curve = loss_curve(llama, batches, ["output", "random"], shares=(0.25, 0.5), seeds=(0, 1))
    assert len(curve.points) == 2 * 2 + 2 * 2 * 2
    curve.save(tmp_path / "losses.json")
    assert LossCurve.load(tmp_path / "losses.json") == curve
    points = [one.loss for one in curve.points if one.method == "random" and one.heads == 3 and not one.refit]
    assert curve.increase("random", 0.25, refit=False) == pytest.approx(sum(points) / 2 - curve.full)
    assert curve.plot().axes[0].get_legend() is not None


def test_shares_that_remove_the_same_heads_are_measured_once(decoder: Calibration) -> None:
    """Of 16 heads, 30% and 31.25% are both 5."""
    batches, steps = decoder.statistics.held_out, []
    curve = loss_curve(
        decoder,
        batches,
        ["output", "folders", "random"],
        shares=(0.3, 0.3125),
        refits=(False,),
        seeds=(0, 1),
        progress=lambda done, total: steps.append((done, total)),
    )
    assert [(one.method, one.heads, one.seed) for one in curve.points] == [
        ("output", 5, 0),
        ("folders", 5, 0),
        ("random", 5, 0),
        ("random", 5, 1),
    ]
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_at_least_one_head_per_layer_is_kept(decoder: Calibration) -> None:
    plan = choose_heads(decoder, "random", share=0.9)
    assert len(plan.removed) == 12
    assert plan.notes == ("12 heads are removed instead of 14: every layer keeps at least one query head",)
    assert {len(heads) for heads in plan.kept_heads(prunable_layers(decoder.model)).values()} == {1}
    assert choose_heads(decoder, "random", share=0.99).removed == plan.removed  # 0.99 · 16 rounds to all heads


def test_shared_layers_have_the_mean_entropy_of_their_uses() -> None:
    """ALBERT runs one layer three times; its four heads are captured as twelve."""
    model, rows = tiny_model("albert").base_model, calibration_inputs("albert")
    calibration = calibrate(load_model(model), rows)
    plan = choose_heads(calibration, "entropy", heads=3)
    captured = [attngeo.capture(model, row.inputs) for row in calibration.rows[:4]]
    assert captured[0].heads == tuple(f"L{use}H{head}" for use in range(3) for head in range(4))
    entropies = [attngeo.organize(one, refine=False).expand().entropy("head", normalised=True) for one in captured]
    mean = np.mean(entropies, 0).reshape(3, 4).mean(0)  # [uses · H] → [H]
    assert [one.head for one in plan.removed] == list(np.argsort(-mean)[:3])
    assert [one.cost for one in plan.removed] == pytest.approx(sorted(-mean)[:3])
    folders = choose_heads(calibration, "folders", heads=2)
    assert {one.layer for one in folders.removed} == {0} and len(folders.removed) == 2
    small = prune(model, folders, refit=False)
    assert attngeo.capture(small, rows[0]).shape[2] == 6  # two heads, used three times


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.3, "heads": 2}, "share is 0.3 and heads is 2: expected one of the two"),
        ({"share": 1.0}, "share is 1.0, expected a number above 0 and below 1"),
        ({"share": 0.0}, "share is 0.0, expected a number above 0 and below 1"),
        ({"share": "0.3"}, "share is '0.3', expected a finite number"),
        ({"heads": 0}, "heads is 0, expected a whole number from 1 on"),
        ({"heads": 1.5}, "heads is 1.5, expected a whole number from 1 on"),
        ({"seed": 2**32}, "seed is 4294967296, expected a whole number from 0 to 4294967295"),
        ({"seed": -1}, "seed is -1, expected a whole number from 0 to"),
        ({"heads": 16}, "heads is 16, but the model has 16; expected fewer"),
        ({"method": "best"}, "method 'best': expected one of sensitivity, unexplained, refit"),
        ({"unit": "layer"}, "unit 'layer': expected one of query, group"),
        ({"uniform": True}, "uniform: model type bert; its config allows llama"),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str, decoder: Calibration) -> None:
    with pytest.raises(InputError, match=message):
        choose_heads(decoder, options.pop("method", "random"), **options)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (["L0H1", "L0H1"], "L0H1: named twice"),
        (["L0H9"], "L0H9: no such head; layer 0 has the heads 0, 1, 2, 3, 4, 5"),
        (["L7H0"], "L7H0: no such layer; the layers are 0 to 1"),
        ([f"L0H{head}" for head in range(6)], "L0: all heads of the layer would be removed"),
        (
            ["L1H4"],
            r"L1: the group of H3 to H5 would keep 2 query heads and that of H0 to H2 would keep 3; remove whole",
        ),
        (["head 3"], "'head 3': not the label of a head"),
        (["cross/L0H1"], "cross/L0H1: the model has no stack cross; it has decoder"),
        ([], "heads: expected a list of labels"),
        ("L0H1", "heads: expected a list of labels"),
    ],
)
def test_heads_that_cannot_be_removed(heads: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PrunePlan.from_heads(tiny_model("llama"), heads)


def test_a_stack_has_to_be_named_where_there_are_several() -> None:
    with pytest.raises(InputError, match="L0H1: the model has the stacks cross, decoder, encoder; write for example"):
        PrunePlan.from_heads(tiny_model("bart"), ["L0H1"])


def test_models_that_cannot_be_pruned() -> None:
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=16, n_head=2, n_layer=1, vocab_size=20))
    with pytest.raises(InputError, match="model type bloom: removing heads is supported for bert, roberta"):
        PrunePlan.from_heads(bloom, ["L0H1"])
    broken = tiny_model("llama")
    with torch.no_grad():
        broken.model.layers[1].self_attn.v_proj.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"layers\.1\.self_attn\.v_proj\.weight: contains NaN"):
        PrunePlan.from_heads(broken, ["L0H1"])
    for first, other in (
        ("0.self_attn.q_proj", "0.self_attn.k_proj"),
        ("0.self_attn.out_proj", "1.self_attn.out_proj"),
    ):
        tied = tiny_model("opt")
        tied.model.decoder.layers.set_submodule(other, tied.model.decoder.layers.get_submodule(first))
        with pytest.raises(InputError, match=rf"layers\.{other}: is the same module as .*\.layers\.{first}; expected"):
            PrunePlan.from_heads(tied, ["L1H1"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces another package for this function
        quantised = torch.ao.quantization.quantize_dynamic(tiny_model("llama"), {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(InputError, match=r"q_proj\._packed_params\.dtype: is no tensor, so the module is quantised"):
        PrunePlan.from_heads(quantised, ["L0H1"])
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(tiny_model("llama"), peft.LoraConfig(target_modules=["q_proj"])).get_base_model()
    with pytest.raises(InputError, match=r"layers\.0\.self_attn\.q_proj: has an adapter; merge it before"):
        PrunePlan.from_heads(adapted, ["L0H1"])
    model = tiny_model("llama")
    small = prune(model, PrunePlan.from_heads(model, removed_heads("llama")), refit=False)
    with pytest.raises(InputError, match="has lost heads already"):
        PrunePlan.from_heads(small, ["L0H0"])
    one_group = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16, num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=1, intermediate_size=16,
            vocab_size=50,
        )
    )  # fmt: skip
    with pytest.raises(InputError, match="unit 'group': every layer has a single group, which has to be kept"):
        prune_plan(one_group, calibration_inputs("llama"), heads=1, unit="group", method="random")


def test_a_plan_of_another_model() -> None:
    model = tiny_model("llama")
    plan = PrunePlan.from_heads(model, removed_heads("llama"))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].self_attn.k_proj.weight[0, 0] += 1e-6
    with pytest.raises(InputError, match="the plan was made for another model"):
        prune(other, plan, refit=False)
    assert prune(model.model, plan, refit=False) is not None  # with and without its head it is the same model
    with pytest.raises(InputError, match="L0H77: no such head"):
        prune(model, replace(plan, removed=(replace(plan.removed[0], head=77),)), refit=False)


def test_calibration_that_is_too_short() -> None:
    with pytest.raises(InputError, match=r"16 tokens to fit with, the refit needs at least 32 \(about 42 in all"):
        prune_plan(bundled("decoder"), " ".join(TEXT.split()[:10]), heads=2)
    with pytest.raises(InputError, match="calibration text: empty"):
        prune_plan(bundled("decoder"), "", heads=2)
    ids = torch.randint(3, 50, (4, 200))
    with pytest.raises(InputError, match="a row of 200 tokens, but the model reads at most 64"):
        prune_plan(tiny_model("gpt2"), {"input_ids": ids}, heads=2)
    with pytest.raises(InputError, match="calibration inputs: no row has a token to predict"):
        prune_plan(tiny_model("gpt2"), {"input_ids": ids[:, :1].repeat(30, 1)}, heads=2)


@pytest.mark.parametrize("window", [16.0, "16", True])
def test_a_window_is_a_whole_number_of_tokens(window: Any) -> None:
    with pytest.raises(InputError, match=f"window is {window!r}, expected a whole number"):
        prune_plan(bundled("decoder"), TEXT, heads=2, window=window)


@pytest.mark.parametrize("count", [-1, 0, 5, 2.0, True, None])
def test_a_smaller_plan_has_the_heads_that_are_asked_for_or_there_is_an_error(count: Any, decoder: Calibration) -> None:
    plan = choose_heads(decoder, "random", heads=4)
    assert plan.first(4) == plan and plan.first(2).removed == plan.removed[:2]
    with pytest.raises(InputError, match=r"count is .*, expected a whole number from 1 to 4"):
        plan.first(count)


def test_a_model_and_a_plan_are_needed_to_prune(decoder: Calibration) -> None:
    with pytest.raises(InputError, match="str: expected a transformers model"):
        prune("folder", choose_heads(decoder, "random", heads=1))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="plan: a list, expected a PrunePlan"):
        prune(decoder.model, ["L0H1"])  # type: ignore[arg-type]


def test_a_plan_without_statistics_does_not_get_those_of_a_plan_that_it_replaces(
    decoder: Calibration, tmp_path: Path
) -> None:
    choose_heads(decoder, "random", heads=2).save(tmp_path / "plan.json")
    by_hand = PrunePlan.from_heads(decoder.model, ["L0H1"])
    by_hand.save(tmp_path / "plan.json")
    loaded = PrunePlan.load(tmp_path / "plan.json")
    assert loaded == by_hand and loaded.statistics is None
    (tmp_path / "plan.npz").write_bytes(b"of somebody else")
    by_hand.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.npz").read_bytes() == b"of somebody else"
