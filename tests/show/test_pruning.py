"""Pruning as text: which heads each layer loses, and the increase of the loss without and with the refit."""

from __future__ import annotations

from attngeo.applications.prune.curve import LossCurve, LossPoint
from attngeo.applications.prune.plan import PrunePlan, RemovedHead
from attngeo.show.pruning import loss_table, pruning_report

CURVE = LossCurve(
    "made",
    "next token",
    3.0,
    (
        LossPoint("sensitivity", 2, 0.1, False, 3.5),
        LossPoint("sensitivity", 2, 0.1, True, 3.125),
        LossPoint("sensitivity", 6, 0.3, True, 3.25),
        LossPoint("random", 2, 0.1, False, 4.0, seed=0),
        LossPoint("random", 2, 0.1, False, 5.0, seed=1),
    ),
)


def test_losses_are_increases_without_and_with_refit_and_means_over_seeds() -> None:
    head, *rows = loss_table(CURVE)
    assert head == "made: next token loss 3.0000 with all heads; increase without / with refit"
    assert [row.split() for row in rows] == [
        ["method", "10%", "30%"],
        ["sensitivity", "+0.500", "/", "+0.125", "+0.250"],
        ["random", "+1.500", "-"],
    ]


def test_the_report_lists_the_heads_of_each_layer_with_their_costs() -> None:
    removed = (RemovedHead("decoder", 3, 7, 0.25), RemovedHead("decoder", 0, 1, 0.5), RemovedHead("decoder", 3, 2, 1.0))
    plan = PrunePlan("made", "llama", "", ("decoder",), 20, "sensitivity", "query", removed, notes=("a note",))
    lines = pruning_report(plan, CURVE).splitlines()
    assert lines[:3] == ["3 of 20 heads (15.0%) of llama, chosen by sensitivity", "a note", ""]
    assert [line.split() for line in lines[3:6]] == [
        ["layer", "removed", "cost"],
        ["L0", "H1", "0.5"],
        ["L3", "H7", "H2", "0.25", "1"],
    ]
