"""`LossCurve`: the loss of a model without a growing share of its heads, by criterion, with and without the refit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.applications.prune.plan import PrunePlan
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, save_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attngeo.applications.prune.calibrate import Calibration
    from attngeo.applications.prune.calibration.rows import Batch

SHARES = (0.1, 0.3, 0.5, 0.7)
_KIND = "pruning losses"
_DRAWN_FOR_SHARE = ("folders",)  # criteria whose choice for a small share is not the beginning of that for a large one


@dataclass(frozen=True)
class LossPoint:
    """The loss after one removal."""

    method: str
    heads: int  # removed
    share: float  # of all query heads
    refit: bool  # whether the refit was asked for; one that raises the held-out loss is not applied
    loss: float
    seed: int = 0


@dataclass(frozen=True)
class LossCurve(Drawable):
    """Losses of one model without more and more of its heads, on evaluation inputs."""

    model: str
    objective: str  # "next token", "masked tokens" or "output"
    full: float  # the loss of the full model
    points: tuple[LossPoint, ...] = field(default=())

    def increase(self, method: str, share: float, refit: bool) -> float:
        """Return the increase of the loss by one method at the measured share nearest to `share`, mean over seeds."""
        own = [point for point in self.points if point.method == method and point.refit == refit]
        if not own:
            raise InputError(f"method {method!r}: was not measured")
        nearest = min((point.share for point in own), key=lambda found: abs(found - share))
        losses = [point.loss for point in own if point.share == nearest]
        return sum(losses) / len(losses) - self.full

    def plot(self) -> Figure:
        """Draw the loss against the share of heads removed."""
        return draw("pruning_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write the losses to a JSON file."""
        return save_json(path, _KIND, as_plain(self))

    @classmethod
    def load(cls, path: str | Path) -> LossCurve:
        """Read what `save` wrote."""
        plain = load_json(path, _KIND)
        with naming_file(path):
            return from_plain(cls, plain)


def loss_curve(
    calibration: Calibration,
    batches: Sequence[Batch],
    methods: Sequence[str],
    *,
    shares: Sequence[float] = SHARES,
    refits: Sequence[bool] = (False, True),
    unit: str | None = None,
    uniform: bool = False,
    seeds: Sequence[int] = (0,),
    progress: Callable[[int, int], None] | None = None,
) -> LossCurve:
    """Return the losses on `batches` after removing each share of the heads by each method.

    batches: evaluation inputs, best not those of the calibration
    refits:  without the refit, with it, or both
    unit, uniform: as in `prune_plan`
    seeds:   of random choices; only the method "random" is repeated
    """
    from attngeo.applications.prune.calibration.losses import mean_loss, reference_outputs
    from attngeo.applications.prune.prune import prune

    reference = reference_outputs(calibration.model, batches)
    full = mean_loss(calibration.model, batches, reference)
    runs = []
    for method in methods:
        for seed in seeds if method == "random" else seeds[:1]:
            found = plans(calibration, method, shares, unit, seed, uniform=uniform)
            unique = {plan.labels: plan for plan in found}  # of a small model, several shares may be the same heads
            runs += [(seed, plan, refit) for plan in unique.values() for refit in refits]
    points = []
    for seed, plan, refit in runs:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the refit was not applied")
            pruned = prune(calibration.model, plan, refit=refit)
        loss = mean_loss(pruned, batches, reference)
        points.append(LossPoint(plan.method, len(plan.removed), plan.share, refit, loss, seed))
        if progress is not None:
            progress(len(points), len(runs))
    return LossCurve(calibration.name, calibration.objective.kind, full, tuple(points))


def plans(
    calibration: Calibration,
    method: str,
    shares: Sequence[float],
    unit: str | None = None,
    seed: int = 0,
    *,
    uniform: bool = False,
) -> Iterator[PrunePlan]:
    """Yield the plan of each share; where the choice is greedy, smaller plans are the beginning of the largest."""
    from attngeo.applications.prune.prune_plan import choose_heads

    grouped = any(one.layer.heads.group > 1 for one in calibration.measured)
    if method in _DRAWN_FOR_SHARE or grouped or uniform:
        for share in shares:
            yield choose_heads(calibration, method, share=share, unit=unit, uniform=uniform, seed=seed)
        return
    largest = choose_heads(calibration, method, share=max(shares), unit=unit, seed=seed)
    for share in shares:
        yield largest.first(min(max(1, round(share * largest.total)), len(largest.removed)))
