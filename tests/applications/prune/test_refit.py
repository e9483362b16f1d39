"""The refit and the greedy costs follow their formulas; a refit that hurts is not applied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from attngeo.applications.prune.calibration.measure import LayerMeasurement  # noqa: E402
from attngeo.applications.prune.calibration.statistics import LayerMoments, Statistics  # noqa: E402
from attngeo.applications.prune.criteria.downdate import PENALTY, ErrorCosts, RefitCosts  # noqa: E402
from attngeo.applications.prune.plan import PrunePlan  # noqa: E402
from attngeo.applications.prune.prune import prune  # noqa: E402
from attngeo.applications.prune.prune_plan import prune_plan  # noqa: E402
from attngeo.applications.prune.refit import PENALTIES, refit_layer  # noqa: E402
from attngeo.applications.prune.removal.layers import prunable_layers  # noqa: E402
from attngeo.data import bundled  # noqa: E402
from attngeo.errors import InputError  # noqa: E402
from attngeo.live.load import load_model  # noqa: E402
from tests.applications.prune.prunable_models import tiny_model  # noqa: E402

HEADS, SIZE, WIDTH, TOKENS = 4, 3, 5, 200


def outputs(seed: int, tokens: int = TOKENS) -> np.ndarray:
    """Return head outputs [tokens, H·r] with correlated heads and a mean that is not 0."""
    generator = np.random.default_rng(seed)
    hidden = generator.normal(size=(tokens, 7)) + 0.5
    mixing = np.random.default_rng(99).normal(size=(7, HEADS * SIZE))
    return hidden @ mixing + 0.3 * generator.normal(size=(tokens, HEADS * SIZE))


def moments(z: np.ndarray, biased: bool) -> np.ndarray:
    z = np.hstack([z, np.ones((len(z), 1))]) if biased else z
    return z.T @ z / len(z)


@pytest.mark.parametrize("biased", [False, True])
def test_the_refit_is_the_least_squares_solution(biased: bool) -> None:
    z, held = outputs(0), outputs(1)
    weight = np.random.default_rng(2).normal(size=(HEADS * SIZE, WIDTH))
    stays = np.array([0, 1, 2, 6, 7, 8])
    refit = refit_layer(LayerMoments(moments(z, biased), moments(held, biased), TOKENS), weight, stays)
    assert refit.penalty in PENALTIES
    # Least squares with the penalty as further rows: the constant, if there is one, is not penalised.
    scale = np.sqrt(refit.penalty * np.mean(z**2))
    inputs = np.hstack([z[:, stays], np.ones((TOKENS, 1))]) if biased else z[:, stays]
    rows = np.vstack([inputs / np.sqrt(TOKENS), scale * np.eye(len(stays), inputs.shape[1])])
    lost = z[:, np.setdiff1d(np.arange(12), stays)] @ weight[np.setdiff1d(np.arange(12), stays)]
    expected, *_ = np.linalg.lstsq(rows, np.vstack([lost / np.sqrt(TOKENS), np.zeros((len(stays), WIDTH))]), rcond=None)
    np.testing.assert_allclose(refit.weight, expected[: len(stays)], atol=1e-10)
    if biased:
        np.testing.assert_allclose(refit.bias, expected[-1], atol=1e-10)
    # The errors are those on the held-out tokens, and no other penalty does better there.
    inside = np.hstack([held[:, stays], np.ones((TOKENS, 1))]) if biased else held[:, stays]
    lost = held[:, np.setdiff1d(np.arange(12), stays)] @ weight[np.setdiff1d(np.arange(12), stays)]
    np.testing.assert_allclose(refit.lost, (lost**2).sum(1).mean(), rtol=1e-10)
    np.testing.assert_allclose(refit.left, ((lost - inside @ expected) ** 2).sum(1).mean(), rtol=1e-8)
    assert refit.left < 0.5 * refit.lost


def test_weights_stay_where_no_penalty_helps() -> None:
    fit, held = moments(outputs(0), False), np.diag(np.full(12, 1.0))  # nothing is correlated on the held-out tokens
    refit = refit_layer(LayerMoments(fit, held, TOKENS), np.ones((12, WIDTH)), np.arange(6))
    assert refit.penalty == np.inf
    assert not refit.weight.any()
    assert refit.left == refit.lost


def test_a_refit_that_is_not_finite_is_an_error() -> None:
    unknown = np.full((13, 13), np.nan)
    with pytest.raises(InputError, match="refit: is not finite"):
        refit_layer(LayerMoments(unknown, unknown, TOKENS), np.ones((12, WIDTH)), np.arange(6))


@pytest.mark.parametrize("biased", [False, True])
def test_a_layer_whose_heads_have_zero_outputs_stays_as_it_is(biased: bool) -> None:
    dead = moments(np.zeros((TOKENS, 12)), biased)
    refit = refit_layer(LayerMoments(dead, dead, TOKENS), np.ones((12, WIDTH)), np.arange(6))
    assert (refit.penalty, refit.lost, refit.left) == (np.inf, 0, 0) and not refit.weight.any()


@pytest.mark.parametrize("biased", [False, True])
def test_a_head_that_stays_but_has_zero_outputs_does_not_hinder_the_others(biased: bool) -> None:
    z, weight = outputs(0), np.random.default_rng(2).normal(size=(12, WIDTH))
    z[:, 3:6] = 0  # the second of the heads that stay
    own = moments(z, biased)
    refit = refit_layer(LayerMoments(own, own, TOKENS), weight, np.arange(9))
    assert refit.left < 0.5 * refit.lost
    assert not refit.weight[3:6].any() and refit.weight[:3].all() and refit.weight[6:].all()


@pytest.mark.parametrize("measure", ["stream", "sensitivity", "share"])
@pytest.mark.parametrize("constant", [0.0, 0.7])
@pytest.mark.parametrize("biased", [False, True])
def test_heads_that_add_nothing_cost_nothing(measure: Any, constant: float, biased: bool) -> None:
    """Their outputs are zero, or constant where the bias can give them back."""
    z, weight = np.full((TOKENS, 12), constant), np.random.default_rng(2).normal(size=(12, WIDTH))
    costs = RefitCosts(measurement(z, weight, biased), [(0,), (1,), (2,), (3,)], measure)
    for unit in (2, 0, 3):
        if biased or not constant:
            assert abs(costs.costs()[unit].cost) < 1e-5 or measure == "share"
        assert all(np.isfinite(cost.cost) for cost in costs.costs().values())
        costs.remove(unit)


def measurement(z: np.ndarray, weight: np.ndarray, biased: bool) -> LayerMeasurement:
    layer: Any = SimpleNamespace(heads=SimpleNamespace(queries=HEADS, size=SIZE))
    own = moments(z, biased)
    fisher, gamma = np.array([3.0, 1, 2, 5]), np.diag(np.arange(1.0, WIDTH + 1))
    return LayerMeasurement(layer, LayerMoments(own, own, TOKENS), weight, fisher, fisher, gamma, fisher, gamma)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("units", [[(0,), (1,), (2,), (3,)], [(0, 1), (2, 3)]])
def test_steps_of_the_refit_cost_add_up_to_the_whole(biased: bool, units: list[tuple[int, ...]]) -> None:
    z, weight = outputs(0), np.random.default_rng(2).normal(size=(12, WIDTH))
    costs = RefitCosts(measurement(z, weight, biased), units, "stream")
    removed, total = [0] if len(units) == 2 else [2, 0, 3], 0.0
    for unit in removed:
        total += costs.costs()[unit].cost
        costs.remove(unit)
    second = np.cov(z.T, bias=True) if biased else moments(z, False)
    matrix = second + PENALTY * np.mean(np.diag(second)) * np.eye(12)
    gone = np.concatenate([np.arange(3 * head, 3 * head + 3) for unit in removed for head in units[unit]])
    stays = np.setdiff1d(np.arange(12), gone)
    explained = matrix[np.ix_(gone, stays)] @ np.linalg.solve(matrix[np.ix_(stays, stays)], matrix[np.ix_(stays, gone)])
    expected = np.trace(weight[gone].T @ (matrix[np.ix_(gone, gone)] - explained) @ weight[gone])
    np.testing.assert_allclose(total, expected, rtol=1e-8)


def test_unexplained_share_in_the_metric_of_the_loss() -> None:
    z, weight = outputs(0), np.random.default_rng(2).normal(size=(12, WIDTH))
    measured = measurement(z, weight, biased=False)
    found = RefitCosts(measured, [(0,), (1,), (2,), (3,)], "share").costs()[1]
    second, rows = moments(z, False), np.arange(3, 6)
    inverse = np.linalg.inv(second + PENALTY * np.mean(np.diag(second)) * np.eye(12))
    inner = np.linalg.inv(inverse[np.ix_(rows, rows)])
    share = np.trace(weight[rows].T @ inner @ weight[rows] @ measured.gamma)
    share /= np.trace(weight[rows].T @ second[np.ix_(rows, rows)] @ weight[rows] @ measured.gamma)
    assert found.figures == pytest.approx({"fisher": 1.0, "unexplained_share": share})
    assert found.cost == pytest.approx(share)


def test_sensitivity_weights_what_the_others_cannot_give_back() -> None:
    z, weight = outputs(0), np.random.default_rng(2).normal(size=(12, WIDTH))
    measured = measurement(z, weight, biased=False)
    second, rows = moments(z, False), np.arange(3, 6)
    inverse = np.linalg.inv(second + PENALTY * np.mean(np.diag(second)) * np.eye(12))
    left = weight[rows].T @ np.linalg.inv(inverse[np.ix_(rows, rows)]) @ weight[rows]
    found = RefitCosts(measured, [(0,), (1,), (2,), (3,)], "sensitivity").costs()[1]
    assert found.cost == pytest.approx(np.trace(left @ measured.sensitivity))
    plain = replace(measured, sensitivity=np.eye(WIDTH))
    assert RefitCosts(plain, [(0,), (1,), (2,), (3,)], "sensitivity").costs()[1].cost == pytest.approx(np.trace(left))


def test_errors_without_refit_add_up_with_their_cross_terms() -> None:
    z, weight = outputs(0), np.random.default_rng(2).normal(size=(12, WIDTH))
    costs = ErrorCosts(measurement(z, weight, biased=True), [(0,), (1,), (2,), (3,)])
    total = 0.0
    for unit in (3, 1):
        total += costs.costs()[unit].cost
        costs.remove(unit)
    gone = np.array([3, 4, 5, 9, 10, 11])
    np.testing.assert_allclose(total, ((z[:, gone] @ weight[gone]) ** 2).sum(1).mean(), rtol=1e-10)
    assert set(costs.costs()) == {0, 2}


def calibration_inputs(kind: str, rows: int = 24) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(3)
    if kind == "vit":
        return [{"pixel_values": torch.randn(1, 3, 32, 32, generator=generator)} for _ in range(rows)]
    ids = torch.randint(3, 50, (rows, 20), generator=generator)
    return [{"input_ids": row[None]} for row in ids]


def headless_model(kind: str) -> Any:
    """Return the model without its language-model head: its loss is the distance from its own full output."""
    model = tiny_model(kind)
    if kind != "t5":
        return model.base_model
    headless = transformers.T5Model(model.config)
    headless.load_state_dict(model.state_dict(), strict=False)
    return headless.eval()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5", "vit", "opt"])
def test_refitted_weights_are_those_of_the_formula(kind: str) -> None:
    """From the tokens themselves, recorded by plain hooks: weighted least squares with the penalty that was chosen."""
    model, rows = headless_model(kind), calibration_inputs(kind)
    plan = prune_plan(model, rows, heads=3, method="output")
    small, bare = prune(model, plan), prune(model, plan, refit=False)
    assert small.config.attngeo_pruned["refit"]["applied"]
    layers = prunable_layers(model)
    kept = plan.kept_heads(layers)
    layer = next(one for one in layers if len(kept[one.stack, one.layer]) < one.heads.queries)
    z, weight = record(model, layer, [row for index, row in enumerate(rows) if index % 4 != 3])
    stays = np.concatenate(
        [np.arange(h * layer.heads.size, (h + 1) * layer.heads.size) for h in kept[layer.stack, layer.layer]]
    )
    refit = refit_layer(plan.statistics.layers[layer.stack, layer.layer], weight, stays)
    gone = np.setdiff1d(np.arange(len(weight)), stays)
    biased = layer.output.bias is not None
    inputs = z if biased else z[:, :-1]
    columns = np.append(stays, z.shape[1] - 1) if biased else stays
    second = inputs.T @ inputs / len(z)
    penalty = refit.penalty * np.mean(np.diag(second)[: len(weight)]) * np.eye(len(columns))
    if biased:
        penalty[-1, -1] = 0
    change = np.linalg.solve(second[np.ix_(columns, columns)] + penalty, second[np.ix_(columns, gone)] @ weight[gone])
    new, old = (one.get_submodule(layer.output_path) for one in (small, bare))
    difference = (new.weight - old.weight).detach().double().numpy()
    difference = difference if kind == "gpt2" else difference.T
    np.testing.assert_allclose(difference, change[: len(stays)], atol=2e-4 * np.abs(change).max())
    if biased:
        found = (new.bias - old.bias).detach().double().numpy()
        np.testing.assert_allclose(found, change[-1], atol=2e-4 * np.abs(change).max())


def record(model: Any, layer: Any, rows: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of the heads and 1, divided by the norm of the stream, [tokens, H·r + 1], and W_o."""
    streams, outputs_of_heads = [], []
    stream = layer.stream_module(model)
    hooks = [
        stream.register_forward_pre_hook(
            lambda _, args, named: streams.append(args[0] if args else named["hidden_states"]), with_kwargs=True
        ),
        layer.output.register_forward_pre_hook(lambda _, args: outputs_of_heads.append(args[0])),
    ]
    with torch.no_grad():
        for row in rows:
            if model.config.is_encoder_decoder:
                start = torch.full_like(row["input_ids"][:, :1], model.config.decoder_start_token_id)
                row = row | {"decoder_input_ids": torch.cat([start, row["input_ids"][:, :-1]], 1)}
            model(**row)
    for hook in hooks:
        hook.remove()
    z, x = (torch.cat([part.flatten(0, 1) for part in parts]).double() for parts in (outputs_of_heads, streams))
    z = torch.cat([z, torch.ones_like(z[:, :1])], 1) / x.norm(dim=1, keepdim=True)
    return z.numpy(), layer.output_weight.detach().double().numpy()


def test_a_refit_that_raises_the_loss_is_not_applied() -> None:
    model = load_model(bundled("decoder"), head=True).model
    text = (Path(__file__).parents[2] / "data" / "austen.txt").read_text()
    plan = prune_plan(model, text, heads=4, method="random")
    generator = np.random.default_rng(0)
    layers = {}
    for key, one in plan.statistics.layers.items():  # moments that have nothing to do with the model
        z = generator.normal(size=(400, 7)) @ generator.normal(size=(7, len(one.fit)))
        layers[key] = LayerMoments(z.T @ z, z.T @ z, one.tokens)
    wrong = Statistics(plan.fingerprint, layers, plan.statistics.held_out)
    with pytest.warns(UserWarning, match="the refit was not applied: it changes the loss"):
        small = prune(model, replace(plan, statistics=wrong))
    facts = small.config.attngeo_pruned["refit"]
    assert not facts["applied"]
    assert facts["loss_with"] > facts["loss_without"]
    bare = prune(model, plan, refit=False)
    assert all(torch.equal(value, bare.state_dict()[name]) for name, value in small.state_dict().items())


def test_a_refit_needs_calibration() -> None:
    model = tiny_model("llama")
    plan = PrunePlan.from_heads(model, ["L0H0", "L0H3"])
    with pytest.raises(InputError, match="refit: no calibration; pass inputs="):
        prune(model, plan)
    assert prune(model, plan, inputs=calibration_inputs("llama")).config.attngeo_pruned["refit"]["tokens"] == 360
