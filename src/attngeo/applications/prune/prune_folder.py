"""`prune_folder`: a reference and calibration inputs → a folder with the pruned model, its plan and its losses."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngeo.applications.prune.loss_curve import SHARES, LossCurve, loss_curve
from attngeo.applications.prune.plan import PrunePlan
from attngeo.applications.prune.prune import prune
from attngeo.applications.prune.prune_plan import check_options, choose_heads
from attngeo.errors import AttngeoError, first_line
from attngeo.io.files import atomic_folder, check_new_folder


@dataclass(frozen=True)
class PrunedFolder:
    """What `prune_folder` did."""

    plan: PrunePlan
    curve: LossCurve
    loss: float  # of the pruned model on the evaluation inputs
    parameters: tuple[int, int]  # of the full and of the pruned model
    refitted: bool | None  # None: no refit was asked for; False: it raised the held-out loss and was not applied

    @property
    def summary(self) -> str:
        """The loss and the size before and after, in one line."""
        how = {None: "without refit", True: "with refit", False: "the refit raised the held-out loss, so without it"}
        full, small = self.parameters
        return (
            f"loss {self.curve.full:.4f} → {self.loss:.4f} ({how[self.refitted]}), "
            f"{full:,} → {small:,} parameters ({small / full:.1%})"
        )


def prune_folder(
    ref: str,
    inputs: Any,
    out: Path,
    *,
    share: float | None = None,
    heads: int | None = None,
    method: str = "sensitivity",
    unit: str | None = None,
    uniform: bool = False,
    target: str | None = None,
    refit: bool = True,
    evaluation: Any = None,
    compare: bool = False,
    seed: int = 0,
    device: str | None = None,
    draw: Callable[[LossCurve, Path], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PrunedFolder:
    """Prune the model `ref` and write it to the new folder `out`, with plan.json, plan.npz, losses.json and losses.png.

    evaluation: inputs on which losses are measured; by default the held-out quarter of `inputs`
    compare:    measure all methods at 10, 30, 50 and 70%, with and without refit; otherwise only `method`
    draw:       writes the figure of a curve to a file; None: no figure
    Other options as in `prune_plan`.
    """
    from attngeo.live.load import check_torch, load_model, quiet_transformers

    check_torch()
    from attngeo.applications.prune.calibrate import calibrate
    from attngeo.applications.prune.calibration.losses import mean_loss, reference_outputs
    from attngeo.applications.prune.calibration.rows import batched, read_rows
    from attngeo.applications.prune.criteria.methods import METHODS, NEEDS_GRADIENTS

    check_options(share, heads, method, unit, seed)
    check_new_folder(out)
    loaded = load_model(ref, device=device, head=True)
    gradients = compare or method in NEEDS_GRADIENTS
    calibration = calibrate(loaded, inputs, target=target, seed=seed, gradients=gradients, progress=progress)
    batches = list(calibration.statistics.held_out)
    if evaluation is not None:
        batches = batched(read_rows(evaluation, loaded, calibration.objective, target=target, seed=seed + 1))
    plan = choose_heads(calibration, method, share=share, heads=heads, unit=unit, uniform=uniform, seed=seed)
    pruned = prune(loaded.model, plan, refit=refit)
    shares = sorted({*SHARES, plan.share} if not uniform else {plan.share})
    methods = METHODS if compare else (method,)
    curve = loss_curve(
        calibration, batches, methods, shares=shares, unit=unit, uniform=uniform, seeds=range(5), progress=progress
    )
    loss = mean_loss(pruned, batches, reference_outputs(loaded.model, batches))
    facts = pruned.config.attngeo_pruned.get("refit")
    with atomic_folder(out) as folder, quiet_transformers():
        _save_model(pruned, folder)
        _save_processors(loaded, folder)
        plan.save(folder / "plan.json")
        curve.save(folder / "losses.json")
        if draw is not None:
            draw(curve, folder / "losses.png")
    sizes = loaded.model.num_parameters(), pruned.num_parameters()
    return PrunedFolder(plan, curve, loss, sizes, None if facts is None else bool(facts["applied"]))


def _save_model(pruned: Any, folder: Path) -> None:
    """Write the model; the library that writes its weights has errors of its own for a full disk."""
    from safetensors import SafetensorError

    try:
        pruned.save_pretrained(folder)
    except SafetensorError as error:
        raise AttngeoError(f"{folder}: the weights cannot be written ({first_line(error)})") from error


def _save_processors(loaded: Any, folder: Path) -> None:
    """Write the tokenizer and the processors of the model beside it, where it has them."""
    import warnings

    for part in (loaded.tokenizer, loaded.image_processor, loaded.feature_extractor):
        if part is not None:
            try:
                part.save_pretrained(os.fspath(folder))
            except Exception as error:  # the model itself is complete without them
                warnings.warn(f"{type(part).__name__} was not saved ({first_line(error)})", UserWarning, stacklevel=2)
