"""What the calibration pass collects equals what plain hooks and finite differences give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.applications.prune.calibration.losses import mean_loss, row_losses, token_losses  # noqa: E402
from attngeo.applications.prune.calibration.measure import measure  # noqa: E402
from attngeo.applications.prune.calibration.objective import IGNORED, MASKED, objective_of  # noqa: E402
from attngeo.applications.prune.calibration.rows import Batch, batched, read_rows, split_rows  # noqa: E402
from attngeo.applications.prune.calibration.statistics import Statistics  # noqa: E402
from attngeo.applications.prune.removal.layers import prunable_layers  # noqa: E402
from attngeo.data import bundled  # noqa: E402
from attngeo.errors import InputError  # noqa: E402
from attngeo.live.load import load_model  # noqa: E402
from tests.applications.prune.prunable_models import MODELS, inputs_for, tiny_model  # noqa: E402

TEXT = (Path(__file__).parents[2] / "data" / "austen.txt").read_text()


def batch_of(kind: str) -> Batch:
    """Return three padded rows with random targets for all tokens that are no padding."""
    inputs = inputs_for(kind)
    if kind == "vit":
        return Batch(inputs, None)
    read = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    targets = torch.randint(3, 50, read.shape, generator=torch.Generator().manual_seed(4))
    if "decoder_input_ids" not in inputs:
        targets = targets.masked_fill(inputs["attention_mask"] == 0, IGNORED)
    return Batch(inputs, targets)


@pytest.mark.parametrize("kind", MODELS)
def test_moments_and_output_norms(kind: str) -> None:
    model, batch = tiny_model(kind), batch_of(kind)
    layers = prunable_layers(model)
    measured = measure(model, layers, [batch], [batch], gradients=False)
    for layer, found in zip(layers, measured, strict=True):
        z, x, mask = recorded(model, layer, batch)  # one entry per use of the layer
        tokens = int(mask.sum())
        second, norms = 0.0, 0.0
        for outputs, stream in zip(z, x, strict=True):
            rows = outputs[mask]
            if layer.output.bias is not None:
                rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
            rows = rows / stream[mask].norm(dim=1, keepdim=True)
            second = second + rows.T @ rows / tokens
            by_head = outputs[mask].unflatten(1, (layer.heads.queries, -1))  # [N, H, r]
            weight = layer.output_weight.detach().double().unflatten(0, (layer.heads.queries, -1))  # [H, r, d]
            norms = norms + torch.einsum("nhr,hrd->nhd", by_head, weight).norm(dim=2).sum(0) / tokens
        scale = float(second.abs().max())
        np.testing.assert_allclose(found.moments.fit, second.numpy(), atol=1e-5 * scale)
        np.testing.assert_allclose(found.moments.held_out, found.moments.fit, atol=1e-12 * scale)
        np.testing.assert_allclose(found.output_norm, norms.numpy(), rtol=1e-4)
        assert found.moments.tokens == tokens


def recorded(model: Any, layer: Any, batch: Batch) -> tuple[list[Any], list[Any], Any]:
    outputs: list[Any] = []
    streams: list[Any] = []

    def keep_stream(_: Any, args: Any, named: Any) -> None:
        streams.append((args[0] if args else named["hidden_states"]).double())

    hooks = [
        layer.stream_module(model).register_forward_pre_hook(keep_stream, with_kwargs=True),
        layer.output.register_forward_pre_hook(lambda _, args: outputs.append(args[0].double())),
    ]
    with torch.no_grad():
        model(**batch.inputs)
    for hook in hooks:
        hook.remove()
    encodes = layer.stack == "encoder" or "decoder_input_ids" not in batch.inputs
    mask = batch.inputs.get("attention_mask") if encodes else None
    mask = torch.ones(outputs[0].shape[:2]) if mask is None else mask
    return outputs, streams, mask.bool()


@pytest.mark.parametrize("kind", ["bert", "albert", "gpt2", "llama", "t5", "whisper", "vit"])
def test_gates_are_derivatives_of_the_loss_of_each_row(kind: str) -> None:
    model, batch = tiny_model(kind, dtype=torch.float64), batch_of(kind)
    batch = batch.to(torch.device("cpu"), torch.float64)
    layers = prunable_layers(model)
    measured = measure(model, layers, [batch], [batch], seed=0)
    for index, head in ((0, 1), (len(layers) - 1, 2)):
        losses = [gated_losses(model, layers[index], head, 1 + step, batch) for step in (1e-3, -1e-3)]
        slope = (losses[0] - losses[1]) / 2e-3  # [B]; some models normalise in float32, so the step is large
        assert measured[index].gate_magnitude[head] == pytest.approx(float(slope.abs().mean()), rel=1e-3)
        assert measured[index].gate_fisher[head] == pytest.approx(float(slope.square().mean()), rel=1e-3)


def test_every_row_of_every_batch_counts_once() -> None:
    model, batch = tiny_model("gpt2"), batch_of("gpt2")
    parts = [
        Batch({name: value[some] for name, value in batch.inputs.items()}, batch.targets[some])
        for some in (slice(0, 1), slice(1, 3))
    ]
    parts[1].inputs["position_ids"] = torch.arange(batch.targets.shape[1]).expand(2, -1)  # so they stay apart
    layers = prunable_layers(model)
    together, *separate = (measure(model, layers, some, some)[0] for some in ([batch], [parts[0]], [parts[1]]))
    by_parts = measure(model, layers, parts, parts)[0]
    for name in ("gate_magnitude", "gate_fisher"):
        expected = np.average([getattr(one, name) for one in separate], 0, [1, 2])
        for found in (together, by_parts):
            np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-4)


@torch.no_grad()
def gated_losses(model: Any, layer: Any, head: int, gate: float, batch: Batch) -> Any:
    scale = torch.ones(layer.heads.queries, dtype=torch.float64)
    scale[head] = gate
    scale = scale.repeat_interleave(layer.heads.size)
    hook = layer.output.register_forward_pre_hook(lambda _, args: (args[0] * scale,))
    losses = row_losses(model(**batch.inputs), batch, torch.Generator().manual_seed(0)).double()
    hook.remove()
    return losses


def test_the_loss_of_a_row_is_the_mean_over_what_it_predicts() -> None:
    """Positions without a target, and the padding of short rows, do not count."""
    logits = torch.randn(3, 6, 9, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, -100, -100, -100, -100], [-100, 8, -100, 0, -100, 7]])
    rows = ((row[own >= 0], own[own >= 0]) for row, own in zip(logits, targets, strict=True))
    expected = [torch.nn.functional.cross_entropy(*row) for row in rows]
    assert torch.allclose(token_losses(logits, targets), torch.stack(expected))
    assert token_losses(logits, torch.full((3, 6), -100)).tolist() == [0.0, 0.0, 0.0]


def test_gradients_at_the_output_give_gamma() -> None:
    model, batch = tiny_model("gpt2"), batch_of("gpt2")
    layer = prunable_layers(model)[1]
    (_, found) = measure(model, prunable_layers(model), [batch], [batch])
    kept: list[Any] = []
    hook = layer.output.register_forward_hook(lambda _, __, output: (output.retain_grad(), kept.append(output))[0])
    output = model(**batch.inputs, output_hidden_states=True)
    row_losses(output, batch, torch.Generator()).sum().backward()
    hook.remove()
    gradient = kept[0].grad.flatten(0, 1).double()
    stream = output.hidden_states[1].detach().flatten(0, 1).double()  # what the output of layer 1 is added to
    for own, weighted in ((found.gamma, gradient), (found.sensitivity, gradient * stream.norm(dim=1, keepdim=True))):
        expected = weighted.T @ weighted / int(batch.inputs["attention_mask"].sum())
        np.testing.assert_allclose(own, expected.numpy(), atol=1e-5 * float(expected.abs().max()))


def test_the_state_of_the_model_is_restored() -> None:
    model = tiny_model("llama").train()
    model.lm_head.weight.requires_grad_(False)
    measure(model, prunable_layers(model), [batch_of("llama")], [batch_of("llama")])
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [name for name, value in model.named_parameters() if not value.requires_grad] == ["lm_head.weight"]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_text_becomes_rows_with_targets(name: str) -> None:
    loaded = load_model(bundled(name), head=True)
    objective = objective_of(loaded)
    rows = read_rows(TEXT, loaded, objective)
    ids = loaded.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    special = set(loaded.tokenizer.all_special_ids)
    assert 8 <= len(rows) <= 10
    read = [[token for token in row.inputs["input_ids"][0].tolist()] for row in rows]
    targets = [row.targets[0].tolist() for row in rows]
    if objective.kind == MASKED:
        original = [
            [label if label != IGNORED else token for token, label in zip(row, labels, strict=True)]
            for row, labels in zip(read, targets, strict=True)
        ]
        predicted = sum(label != IGNORED for labels in targets for label in labels)
        assert 0.1 < predicted / sum(map(len, read)) < 0.2
    else:
        original = read
        assert all(labels == [*row[1:], IGNORED] for row, labels in zip(read, targets, strict=True))
    flat = [token for row in original for token in row if token not in special]
    assert flat == [token for token in ids if token not in special][: len(flat)]
    assert len(flat) >= len(ids) - 2
    fit, held = split_rows(rows)
    assert (len(fit), len(held)) == (len(rows) - len(rows) // 4, len(rows) // 4)
    again = read_rows(TEXT, loaded, objective)
    assert all(torch.equal(a.inputs["input_ids"], b.inputs["input_ids"]) for a, b in zip(rows, again, strict=True))


def test_the_loss_is_the_mean_over_all_predicted_tokens() -> None:
    """Of all batches together: rows and batches that predict more tokens weigh more."""
    model, batch = tiny_model("gpt2"), batch_of("gpt2")
    first = Batch({name: value[:1] for name, value in batch.inputs.items()}, batch.targets[:1])
    with torch.no_grad():
        logits = [model(**one.inputs).logits for one in (batch, first)]
    known = [one.targets != IGNORED for one in (batch, first)]
    expected = torch.nn.functional.cross_entropy(
        torch.cat([values[read] for values, read in zip(logits, known, strict=True)]),
        torch.cat([batch.targets[known[0]], first.targets[known[1]]]),
    )
    assert mean_loss(model, [batch, first]) == pytest.approx(float(expected), rel=1e-5)


def test_without_targets_the_loss_is_the_squared_difference_from_the_full_model() -> None:
    model, batch = tiny_model("vit"), batch_of("vit")
    with torch.no_grad():
        output = model(**batch.inputs).logits
    full = output + torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    expected = float((output - full).square().sum() / full.square().sum())
    assert mean_loss(model, [batch], [full]) == pytest.approx(expected, rel=1e-5)


def test_padding_does_not_change_the_loss() -> None:
    loaded = load_model(bundled("encoder"), head=True)
    texts = [TEXT[:200], TEXT[200:260], TEXT[260:500]]
    rows = read_rows(texts, loaded, objective_of(loaded))
    single, together = mean_loss(loaded.model, rows), mean_loss(loaded.model, batched(rows))
    assert len(batched(rows)) == 1
    assert single == pytest.approx(together, rel=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "vit"])  # with and without targets
def test_statistics_are_saved_with_their_rows(kind: str, tmp_path: Path) -> None:
    model, batch = tiny_model(kind), batch_of(kind)
    layers = prunable_layers(model)
    measured = measure(model, layers, [batch], [batch], gradients=False)
    moments = {(layer.stack, layer.layer): one.moments for layer, one in zip(layers, measured, strict=True)}
    saved = Statistics("print", moments, (batch,)).save(tmp_path / "statistics.npz")
    again = Statistics.load(saved)
    assert again.fingerprint == "print" and list(again.layers) == list(moments) and len(again.held_out) == 1
    for key, one in moments.items():
        assert again.layers[key].tokens == one.tokens
        np.testing.assert_allclose(again.layers[key].fit, one.fit, rtol=1e-6)
        np.testing.assert_allclose(again.layers[key].held_out, one.held_out, rtol=1e-6)
    (row,) = again.held_out
    assert row.inputs.keys() == batch.inputs.keys()
    assert all(torch.equal(row.inputs[name], value) for name, value in batch.inputs.items())
    assert row.targets is None if batch.targets is None else torch.equal(row.targets, batch.targets)


def test_inputs_that_cannot_calibrate() -> None:
    loaded = load_model(bundled("decoder"), head=True)
    objective = objective_of(loaded)
    with pytest.raises(InputError, match="calibration text: empty"):
        read_rows("  \n", loaded, objective)
    with pytest.raises(InputError, match="window is 9999, expected"):
        read_rows(TEXT, loaded, objective, window=9999)
    with pytest.raises(InputError, match="1 row, expected at least 2"):
        split_rows(read_rows("one word", loaded, objective))
