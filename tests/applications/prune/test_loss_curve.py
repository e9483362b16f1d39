"""Plans of several shares: how many heads each removes, and that smaller ones are the beginning of larger ones."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from attngeo.applications.prune.loss_curve import LossCurve, LossPoint, plans
from attngeo.applications.prune.plan import PrunePlan, RemovedHead
from attngeo.applications.prune.prune_plan import prune_plan


def made_plan(count: int) -> PrunePlan:
    removed = tuple(RemovedHead("decoder", 0, head) for head in range(count))
    return PrunePlan("made", "llama", "", ("decoder",), 16, "error", "query", removed)


def test_a_plan_prints_as_one_short_line() -> None:
    line = "2 of 16 heads (12.5%) of llama, chosen by error: L0H0, L0H1"
    assert (str(made_plan(2)), repr(made_plan(2))) == (line, f"PrunePlan({line})")


def test_smaller_plans_are_the_beginning_of_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 heads, 30% are 4.8: the nearest number is removed, as `prune_plan` does."""
    asked: list[float] = []
    measured = SimpleNamespace(measured=[])

    def choose(*_: Any, share: float, **__: Any) -> PrunePlan:
        asked.append(share)
        return made_plan(max(1, round(share * 16)))

    monkeypatch.setattr(sys.modules[prune_plan.__module__], "choose_heads", choose)
    found = list(plans(measured, "error", (0.01, 0.3, 0.5, 0.7)))  # type: ignore[arg-type]
    assert [len(plan.removed) for plan in found] == [1, 5, 8, 11] and asked == [0.7]
    assert all(plan.removed == found[-1].removed[: len(plan.removed)] for plan in found)
    asked.clear()
    assert [len(plan.removed) for plan in plans(measured, "folders", (0.3, 0.7))] == [5, 11]  # type: ignore[arg-type]
    assert asked == [0.3, 0.7]  # whose small choices are not the beginning of large ones


def test_an_increase_is_the_mean_over_seeds_at_the_nearest_share() -> None:
    points = [LossPoint("random", 2, 0.1, True, loss, seed) for seed, loss in enumerate((3.5, 4.5))]
    points += [LossPoint("random", 8, 0.5, True, 6.0), LossPoint("random", 2, 0.1, False, 9.0)]
    curve = LossCurve("made", "next token", 3.0, tuple(points))
    assert curve.increase("random", 0.2, True) == pytest.approx(1.0)
    assert curve.increase("random", 0.4, True) == 3.0 and curve.increase("random", 0.1, False) == 6.0
