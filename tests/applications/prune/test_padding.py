"""Padding changes nothing that a calibration finds: neither that of a user's tensors nor that of rows in one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.applications.prune.calibration.losses import mean_loss, reference_outputs  # noqa: E402
from attngeo.applications.prune.calibration.measure import measure  # noqa: E402
from attngeo.applications.prune.calibration.objective import (  # noqa: E402
    IGNORED,
    MASKED,
    NEXT_TOKEN,
    OUTPUT,
    Objective,
)
from attngeo.applications.prune.calibration.rows import Batch, batched  # noqa: E402
from attngeo.applications.prune.plan import PrunePlan  # noqa: E402
from attngeo.applications.prune.prune import prune  # noqa: E402
from attngeo.applications.prune.removal.layers import prunable_layers  # noqa: E402
from attngeo.training.data.masking import MaskedObjective  # noqa: E402
from tests.applications.prune.prunable_models import PAIRS, tiny_model  # noqa: E402

LENGTHS = (11, 6, 9)


def rows_of(kind: str, objective: Objective, masked: bool) -> list[Batch]:
    """Return three rows of different lengths, with or without masks."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for length in LENGTHS:
        ids = torch.randint(3, 50, (1, length), generator=generator)
        inputs = {"input_ids": ids} | ({"attention_mask": torch.ones_like(ids)} if masked else {})
        if kind in PAIRS:
            inputs["decoder_input_ids"] = torch.randint(3, 50, (1, length - 2), generator=generator)
        rows.append(Batch(*objective.prepare(inputs, generator)))
    return rows


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("kind", ["bart", "t5", "gpt2"])
def test_the_padding_of_short_rows_adds_no_moments(kind: str, masked: bool) -> None:
    model = tiny_model(kind)
    layers, rows = prunable_layers(model), rows_of(kind, Objective(NEXT_TOKEN), masked)
    assert len(batched(rows)) == 1
    together = measure(model, layers, rows, rows)
    single = [measure(model, layers, [row], [row], gradients=False) for row in rows]
    for index, found in enumerate(together):
        own = [one[index].moments for one in single]
        tokens = sum(one.tokens for one in own)
        expected = sum(one.fit * one.tokens for one in own) / tokens
        assert found.moments.tokens == tokens
        np.testing.assert_allclose(found.moments.fit, expected, atol=1e-5 * float(np.abs(expected).max()))


def test_rows_with_different_inputs_are_not_mixed() -> None:
    """Some rows may have a mask, positions or token types of their own; each row is read with what it has."""
    model, objective = tiny_model("bert"), Objective(OUTPUT)
    rows = rows_of("bert", objective, False) + rows_of("bert", objective, True)
    for row in rows[1:4]:
        ids = row.inputs["input_ids"]
        row.inputs["position_ids"] = torch.arange(40, 40 + ids.shape[1])[None]
    layers = prunable_layers(model)
    for order in (rows, rows[::-1]):
        assert [batch.rows for batch in batched(order)] in ([1, 3, 2], [2, 3, 1])
        found = measure(model, layers, order, order)[0].moments
        own = [measure(model, layers, [row], [row], gradients=False)[0].moments for row in order]
        expected = sum(one.fit * one.tokens for one in own) / found.tokens
        np.testing.assert_allclose(found.fit, expected, atol=1e-5 * float(np.abs(expected).max()))


def test_an_output_is_compared_where_there_is_no_padding() -> None:
    model = tiny_model("bert")
    base = model.bert
    rows = rows_of("bert", Objective(OUTPUT), True)
    gates = [measure(base, prunable_layers(base), [row], [row])[1].output_norm for row in rows]
    together = measure(base, prunable_layers(base), rows, rows)[1].output_norm
    np.testing.assert_allclose(together, np.average(gates, 0, LENGTHS), rtol=1e-4)
    pruned = prune(base, PrunePlan.from_heads(base, ["L0H1", "L1H2"]), refit=False)
    losses = [mean_loss(pruned, some, reference_outputs(base, some)) for some in (rows, batched(rows))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_gates_of_an_output_do_not_depend_on_padding() -> None:
    """What the model computes at padded positions has no part in the loss, so its gradient there is 0."""
    base = tiny_model("bert").bert
    layer = prunable_layers(base)[1]
    batch = batched(rows_of("bert", Objective(OUTPUT), True))[0]
    seen: list[Any] = []
    hook = layer.output.register_forward_hook(
        lambda _, __, output: output.register_hook(seen.append) and None if output.requires_grad else None
    )
    measure(base, prunable_layers(base), [batch], [batch])
    hook.remove()
    padding = batch.inputs["attention_mask"] == 0
    assert float(seen[0][~padding].abs().min()) > 0
    assert float(seen[0][padding].abs().max()) == 0


@pytest.mark.parametrize("left", [True, False])
def test_padding_in_the_tensors_of_a_user_is_not_predicted(left: bool) -> None:
    ids, padding = torch.arange(10, 20), torch.zeros(30, dtype=torch.long)
    joined = torch.cat([padding, ids] if left else [ids, padding])[None]
    mask = (joined != 0).long()
    inputs = {"input_ids": joined, "attention_mask": mask}
    _, targets = Objective(NEXT_TOKEN).prepare(inputs, torch.Generator())
    assert targets[targets != IGNORED].tolist() == ids[1:].tolist()
    assert (targets != IGNORED)[0, 30 if left else 0 :][:9].all()

    masking = MaskedObjective(mask=3, special=(0, 1, 2, 3), vocabulary=50, share=0.3)
    read, targets = Objective(MASKED, masking).prepare(inputs, torch.Generator().manual_seed(0))
    assert int((targets != IGNORED).sum()) == 3  # of ten tokens
    assert (targets[mask == 0] == IGNORED).all() and (read["input_ids"][mask == 0] == 0).all()
    alone = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids[None])}
    expected = Objective(MASKED, masking).prepare(alone, torch.Generator().manual_seed(0))
    assert torch.equal(read["input_ids"][mask != 0], expected[0]["input_ids"][0])
    assert torch.equal(targets[mask != 0], expected[1][0])


def test_rows_with_and_without_a_mask_are_batched() -> None:
    ids = torch.arange(10, 16)[None]
    masked = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 0, 0, 0]])}
    batch = batched([Batch({"input_ids": ids}, None), Batch(masked, None)])[0]
    assert batch.inputs["attention_mask"].sum(1).tolist() == [6, 3]
