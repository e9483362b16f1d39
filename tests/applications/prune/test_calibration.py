"""What a plan finds on calibration inputs equals what plain hooks, autograd and dense matrices give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import attngeo  # noqa: E402
from attngeo.applications.prune.removal import prunable_layers as layers_of  # noqa: E402
from attngeo.errors import InputError  # noqa: E402
from tests.applications.prune.prunable_models import (  # noqa: E402
    GROUPED_KINDS,
    calibration_inputs,
    headless_model,
    record,
    removed_heads,
    tiny_model,
)

TEXT = (Path(__file__).parents[2] / "data" / "austen.txt").read_text()
HEADS = (0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 2, 3) * 2  # layers and heads of the small GPT-2
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)


def split(rows: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the rows to fit with and those held out, every fourth one."""
    return [row for at, row in enumerate(rows) if at % 4 != 3], rows[3::4]


def second_moments(z: np.ndarray) -> np.ndarray:
    return z.T @ z / len(z)


@pytest.mark.parametrize("kind", ["albert", "gpt2", "llama", "t5", "whisper", "vit"])
def test_moments_are_those_of_the_head_outputs_without_padding(kind: str) -> None:
    """Rows of different lengths are padded in one batch, and some rows are padded by the user."""
    model, rows = headless_model(kind), calibration_inputs(kind, padded=True)
    plan = attngeo.prune_plan(model, rows, heads=1, method="error", unit="group" if kind in GROUPED_KINDS else None)
    for layer in layers_of(model):
        found = plan.statistics.layers[layer.stack, layer.layer]
        for moments, own in zip((found.fit, found.held_out), split(rows), strict=True):
            uses = [second_moments(z) for z in record(model, layer, own)]
            expected = np.sum(uses, 0)  # a layer that is used many times adds up its uses
            np.testing.assert_allclose(moments, expected, atol=1e-5 * np.abs(expected).max())
        assert found.tokens == len(record(model, layer, split(rows)[0])[0])


def dense_costs(kind: str, method: str, model: Any, rows: list[Any], removed: list[str]) -> float:
    """Return what the removal of these heads costs by a criterion, from dense matrices; all are in one layer."""
    layer = next(one for one in layers_of(model) if str(one.layer) == removed[0][1])
    (z,) = record(model, layer, split(rows)[0])
    weight = layer.output.weight.detach().double().numpy()
    weight = weight if kind == "gpt2" else weight.T  # [H·r, d]
    size = layer.heads.size
    gone = np.concatenate([np.arange(size * head, size * head + size) for head in (int(one[3:]) for one in removed)])
    if method == "error":
        return float(((z[:, gone] @ weight[gone]) ** 2).sum(1).mean())
    n = len(weight)
    c = second_moments(z)
    if layer.output.bias is not None:  # the bias gives back the mean of what is lost
        c = c[:n, :n] - np.outer(c[:n, n], c[:n, n]) / c[n, n]
    c = c + 0.01 * np.mean(np.diag(c)) * np.eye(n)
    stays = np.setdiff1d(np.arange(n), gone)
    left = c[np.ix_(gone, gone)] - c[np.ix_(gone, stays)] @ np.linalg.solve(
        c[np.ix_(stays, stays)], c[np.ix_(stays, gone)]
    )
    gamma = stream_gradients(model, layer, split(rows)[0]) if method == "sensitivity" else np.eye(weight.shape[1])
    return float(np.trace(weight[gone].T @ left @ weight[gone] @ gamma))


def stream_gradients(model: Any, layer: Any, rows: list[Any]) -> np.ndarray:
    """Return E[‖x‖² g gᵀ] of the next-token loss, g its gradient where the layer's output is added to the stream x."""
    found, tokens = 0.0, 0
    for row in rows:
        kept: list[Any] = []

        def keep(_: Any, args: Any, named: Any, kept: list[Any] = kept) -> None:
            kept.append((args[0] if args else named["hidden_states"]).detach())

        def follow(_: Any, __: Any, output: Any, kept: list[Any] = kept) -> None:
            output.retain_grad()
            kept.append(output)

        stream = layer.stream_module(model).register_forward_pre_hook(keep, with_kwargs=True)
        hook = layer.output.register_forward_hook(follow)
        logits, ids = model(**row).logits[0], row["input_ids"][0]
        torch.nn.functional.cross_entropy(logits[:-1], ids[1:]).backward()
        stream.remove()
        hook.remove()
        x, g = kept[0][0].double().numpy(), kept[1].grad[0].double().numpy()
        weighted = g * np.linalg.norm(x, axis=1, keepdims=True)
        found, tokens = found + weighted.T @ weighted, tokens + len(x)
    return found / tokens


@pytest.mark.parametrize("method", ["error", "refit", "sensitivity"])
@pytest.mark.parametrize(("kind", "unit"), [("gpt2", "query"), ("llama", "query"), ("llama", "group")])
def test_costs_are_those_of_dense_matrices(kind: str, unit: str, method: str) -> None:
    """Summed over the steps in which a layer loses heads."""
    model, rows = tiny_model(kind), calibration_inputs(kind)
    plan = attngeo.prune_plan(model, rows, heads=6, method=method, unit=unit)
    costs = {label: one.cost or 0 for label, one in zip(plan.labels, plan.removed, strict=True)}
    own = [label for label in costs if label[:2] == plan.labels[0][:2]]  # what the layer of the first head loses
    total = sum(costs[label] for label in own) / (3 if unit == "group" else 1)  # each head has the cost of its group
    assert total == pytest.approx(dense_costs(kind, method, model, rows, own), rel=1e-4)
    if kind == "gpt2":  # the first head alone, and no other is cheaper
        alone = {label: dense_costs(kind, method, model, rows, [label]) for label in map("L{}H{}".format, *HEADS)}
        assert alone[plan.labels[0]] == min(alone.values()) == pytest.approx(costs[plan.labels[0]], rel=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5", "vit"])
def test_the_refit_is_the_best_of_the_least_squares_solutions(kind: str) -> None:
    """Ridge regression with five penalties, of which the one with the least error on held-out rows is taken."""
    model, rows = headless_model(kind), calibration_inputs(kind)
    plan = attngeo.PrunePlan.from_heads(model, removed_heads(kind))
    small, bare = attngeo.prune(model, plan, inputs=rows), attngeo.prune(model, plan, refit=False)
    assert small.config.attngeo_pruned["refit"]["applied"]
    layer = layers_of(model)[0]
    kept = plan.kept_heads(layers_of(model))[layer.stack, layer.layer]
    size, biased = layer.heads.size, layer.output.bias is not None
    stays = np.concatenate([np.arange(size * head, size * head + size) for head in kept])
    fit, held = (record(model, layer, some)[0] for some in split(rows))
    weight = layer.output.weight.detach().double().numpy()
    weight = weight if kind == "gpt2" else weight.T
    n = len(weight)
    gone = np.setdiff1d(np.arange(n), stays)
    inside = np.append(stays, n) if biased else stays
    scale = np.mean(fit[:, :n] ** 2)
    solutions = []
    for penalty in PENALTIES:  # as further rows of the least-squares problem; the constant is not penalised
        ridge = np.sqrt(penalty * scale * len(fit)) * np.eye(len(stays), len(inside))
        left, right = np.vstack([fit[:, inside], ridge]), fit[:, gone] @ weight[gone]
        solutions.append(np.linalg.lstsq(left, np.vstack([right, np.zeros((len(stays), right.shape[1]))]))[0])
    errors = [np.sum((held[:, gone] @ weight[gone] - held[:, inside] @ one) ** 2) for one in solutions]
    change = solutions[int(np.argmin(errors))]
    assert min(errors) < np.sum((held[:, gone] @ weight[gone]) ** 2)
    new, old = (one.get_submodule(layer.output_path) for one in (small, bare))
    difference = (new.weight - old.weight).detach().double().numpy()
    np.testing.assert_allclose(
        difference if kind == "gpt2" else difference.T, change[: len(stays)], atol=2e-4 * np.abs(change).max()
    )
    if biased:
        found = (new.bias - old.bias).detach().double().numpy()
        np.testing.assert_allclose(found, change[-1], atol=2e-4 * np.abs(change).max())


@pytest.mark.filterwarnings("ignore:the refit was not applied")
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_refit_is_judged_by_the_loss_on_held_out_rows(kind: str) -> None:
    """Next tokens, or the distance from the full model's output, over all positions that are no padding."""
    model = tiny_model(kind) if kind == "gpt2" else headless_model(kind)
    rows = calibration_inputs(kind, padded=True)
    plan = attngeo.PrunePlan.from_heads(model, removed_heads(kind))
    found = attngeo.prune(model, plan, inputs=rows).config.attngeo_pruned["refit"]
    bare, total, count = attngeo.prune(model, plan, refit=False), 0.0, 0.0
    for row in rows[3::4]:
        mask = row.get("attention_mask", torch.ones_like(row["input_ids"]))[0].bool()
        with torch.no_grad():
            full, small = model(**row), bare(**row)
        if kind == "gpt2":
            known = mask[:-1] & mask[1:]
            losses = torch.nn.functional.cross_entropy(small.logits[0, :-1][known], row["input_ids"][0, 1:][known])
            total, count = total + float(losses) * int(known.sum()), count + int(known.sum())
        else:
            difference = small.last_hidden_state - full.last_hidden_state
            total += float(difference[0, mask].square().sum())
            count += float(full.last_hidden_state[0, mask].square().sum())
    assert found["loss_without"] == pytest.approx(total / count, rel=1e-4)
    assert found["applied"] == (found["loss_with"] <= found["loss_without"])


def test_a_refit_that_raises_the_loss_is_not_applied() -> None:
    """Calibrated on far too short a text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(attngeo.bundled("decoder"), dtype=torch.float32)
    plan = attngeo.PrunePlan.from_heads(model, ["L0H1", "L1H0", "L2H3", "L3H1"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(attngeo.bundled("decoder"))
    with pytest.warns(UserWarning, match="the refit was not applied: it changes the loss"):
        small = attngeo.prune(model, plan, inputs=TEXT, tokenizer=tokenizer)
    facts = small.config.attngeo_pruned["refit"]
    assert not facts["applied"] and facts["loss_with"] > facts["loss_without"]
    bare = attngeo.prune(model, plan, refit=False)
    assert all(torch.equal(value, bare.state_dict()[name]) for name, value in small.state_dict().items())


def test_heads_without_outputs_are_removed_first_and_hinder_nothing() -> None:
    model, rows = tiny_model("llama"), calibration_inputs("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[6:].zero_()  # of the second group of layer 1
        model.model.layers[1].self_attn.v_proj.bias[6:].zero_()
    for method in ("refit", "error", "sensitivity"):
        plan = attngeo.prune_plan(model, rows, heads=6, method=method)
        assert plan.labels[:3] == ("L1H3", "L1H4", "L1H5")
        assert plan.removed[0].cost < 0.05 * plan.removed[3].cost  # the penalty costs a little
        assert attngeo.prune(model, plan).config.attngeo_pruned["refit"]["applied"]


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_text_becomes_rows_with_targets(name: str) -> None:
    """Every fourth row is kept with the plan: masked words for an encoder, the next tokens for a decoder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(attngeo.bundled(name))
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    plan = attngeo.prune_plan(attngeo.bundled(name), TEXT, heads=1)
    special, read, masked = set(tokenizer.all_special_ids), 0, 0
    for batch in plan.statistics.held_out:
        for row, targets in zip(batch.inputs["input_ids"].tolist(), batch.targets.tolist(), strict=True):
            whole = [read if target == -100 else target for read, target in zip(row, targets, strict=True)]
            if name == "decoder":
                assert targets == [*row[1:], -100]
                whole = row
            words = [token for token in whole if token not in special]
            assert any(ids[at : at + len(words)] == words for at in range(len(ids)))
            read, masked = read + len(row), masked + sum(target != -100 for target in targets)
    assert 0.1 < masked / read < 0.2 or name == "decoder"
    assert plan.statistics.tokens == pytest.approx(0.75 * len(ids), rel=0.15)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_the_padding_of_a_user_is_not_predicted(name: str, left: bool) -> None:
    words, padding = torch.arange(10, 40), torch.zeros(20, dtype=torch.long)
    ids = torch.cat([padding, words] if left else [words, padding])[None]
    rows = [{"input_ids": ids, "attention_mask": (ids != 0).long()}] * 8
    (batch,) = attngeo.prune_plan(attngeo.bundled(name), rows, heads=1).statistics.held_out
    known = batch.targets != -100
    assert (batch.inputs["input_ids"][ids.expand(2, -1) == 0] == 0).all() and not known[ids.expand(2, -1) == 0].any()
    assert known.sum(1).tolist() == [29 if name == "decoder" else 4] * 2  # 15% of 30 words are masked


def test_of_a_long_text_windows_are_drawn_from_all_of_it() -> None:
    words = [f"word {number}" for number in range(3000)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(attngeo.bundled("decoder"))
    plans = [
        attngeo.prune_plan(attngeo.bundled("decoder"), " ".join(words), heads=1, tokens=2048, seed=seed)
        for seed in (0, 0, 1)
    ]
    for plan in plans:
        held = sum(batch.inputs["input_ids"].numel() for batch in plan.statistics.held_out)
        assert 2048 <= plan.statistics.tokens + held <= 2048 + 128
    texts = [tokenizer.decode(batch.inputs["input_ids"].flatten()) for batch in plans[0].statistics.held_out]
    numbers = [int(word) for word in " ".join(texts).split() if word.isdigit() and len(word) == 4]
    assert min(numbers) < 1500 and max(numbers) > 2200
    first, again, other = (next(iter(plan.statistics.layers.values())).fit for plan in plans)
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_the_state_of_the_model_is_restored() -> None:
    model = tiny_model("llama").train()
    model.lm_head.weight.requires_grad_(False)
    attngeo.prune_plan(model, calibration_inputs("llama"), heads=3, method="sensitivity")
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [name for name, value in model.named_parameters() if not value.requires_grad] == ["lm_head.weight"]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


IDS = torch.randint(3, 50, (4, 200), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("  \n", {}, "calibration text: empty"),
        (" ".join(TEXT.split()[:10]), {}, r"tokens to fit with, the refit needs at least 32 \(about 42 in all"),
        ("one word", {}, "1 row, expected at least 2"),
        (TEXT, {"window": 9999}, "window is 9999, expected"),
        ({"input_ids": IDS}, {}, "a row of 200 tokens, but the model reads at most 128"),
    ],
)
def test_inputs_that_cannot_calibrate_are_refused(inputs: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attngeo.prune_plan(attngeo.bundled("decoder"), inputs, heads=2, **options)
