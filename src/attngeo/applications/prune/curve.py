"""`LossCurve`: the loss of a model without some of its heads, and `prune_folder`, which writes the pruned model."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.applications.prune.plan import METHOD, TOKENS, PrunePlan, check_options, choose_heads, load_full
from attngeo.applications.prune.prune import prune
from attngeo.display import Drawable, draw
from attngeo.errors import AttngeoError, first_line
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, save_json
from attngeo.io.files import atomic_folder, check_new_folder, write_file
from attngeo.io.names import short_name
from attngeo.version import command_line, versions
from attngeo.weights.layout.heads import CONFIG_KEY

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel

    from attngeo.applications.prune.measure import Calibration
    from attngeo.applications.prune.rows import Batch
    from attngeo.live.load import LoadedModel

SHARES = (0.1, 0.3, 0.5, 0.7)
SEEDS = (0, 1, 2, 3, 4)  # of the method "random"
REFITS = (False, True)
_KIND = "pruning losses"


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
    """Losses of one model without some of its heads, on evaluation inputs."""

    model: str
    objective: str  # "next token", "masked tokens" or "output"
    full: float  # the loss of the full model
    points: tuple[LossPoint, ...] = field(default=())

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


def plans(
    calibration: Calibration, method: str, shares: Sequence[float], *, unit: str | None = None, uniform: bool = False
) -> list[tuple[PrunePlan, int]]:
    """Return a plan and its seed for each share, and for "random" each seed, without those that remove the same."""
    found = {}
    for seed in SEEDS if method == "random" else SEEDS[:1]:
        for share in shares:
            plan = choose_heads(calibration, method, share=share, unit=unit, uniform=uniform, seed=seed)
            found[plan.labels, seed] = plan, seed
    return list(found.values())


def removals(
    calibration: Calibration,
    planned: Sequence[tuple[PrunePlan, int]],
    batches: Sequence[Batch],
    *,
    refits: Sequence[bool] = REFITS,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[tuple[LossPoint, PreTrainedModel]]:
    """Yield the loss of the full model on `batches`, and then that of each pruned model, with the model.

    planned: plans and their seeds; where the refit of the first plan is not applied, a warning says so
    batches: evaluation inputs, or the rows that the calibration held out
    refits:  without the refit, with it, or both
    advance: called after each batch
    """
    from attngeo.applications.prune.rows import mean_loss, reference_outputs

    model, held_out = calibration.model, batches is calibration.statistics.held_out
    reference = reference_outputs(model, batches)
    yield LossPoint("full", 0, 0.0, False, mean_loss(model, batches, reference, advance)), model
    for number, (plan, seed) in enumerate(planned):
        for refit in (True,) if held_out and True in refits else refits:
            with warnings.catch_warnings():
                if number > 0:
                    warnings.filterwarnings("ignore", "the refit was not applied")
                pruned = prune(model, plan, refit=refit)
            if held_out and refit:  # both losses were measured there, to see whether the refit helps
                found = getattr(pruned.config, CONFIG_KEY)["refit"]
                before, after = found["loss_without"], found["loss_with"]
                losses = {False: before, True: after if found["applied"] else before}
                for _ in range(2 * len(batches)):
                    advance()
            else:
                losses = {refit: mean_loss(pruned, batches, reference, advance)}
            for applied, loss in losses.items():
                yield LossPoint(plan.method, len(plan.removed), plan.share, applied, loss, seed), pruned


_HOW = {None: "without refit", True: "with refit", False: "the refit raised the held-out loss, so without it"}


@dataclass(frozen=True)
class PrunedFolder:
    """What `prune_folder` did."""

    plan: PrunePlan
    curve: LossCurve
    loss: float  # of the pruned model on the evaluation inputs
    parameters: tuple[int, int]  # of the full and of the pruned model
    refitted: bool | None  # None: no refit was asked for; False: it raised the held-out loss and was not applied
    evaluation: str = "the held-out quarter of the calibration inputs"  # where the losses were measured

    @property
    def summary(self) -> str:
        """The loss and the size before and after, in one line."""
        full, small = self.parameters
        return (
            f"loss {self.curve.full:.4f} → {self.loss:.4f} ({_HOW[self.refitted]}), "
            f"{full:,} → {small:,} parameters ({small / full:.1%})"
        )

    def card(self, base: str, call: str) -> str:
        """Return the model card: what the model was made from, which heads it lost, losses, and how to make it again.

        base: the full model; call: the command or the call that made the pruned one
        """
        plan, (full, small) = self.plan, self.parameters
        heads: dict[str, list[str]] = {}
        for label in sorted(plan.heads):
            layer, _, head = label.short(plan.stacks).rpartition("H")
            heads.setdefault(layer, []).append(f"H{head}")
        calibration = f", on {plan.statistics.tokens:,} calibration tokens" if plan.statistics else ""
        load = '`attngeo.load_pruned("FOLDER")`' + (" or transformers' own `from_pretrained`" if plan.uniform else "")
        made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
        objective = "squared error relative to the output" if self.curve.objective == "output" else self.curve.objective
        return f"""---
base_model: {json.dumps(base, ensure_ascii=False)}
library_name: transformers
tags: [attngeo, pruned]
---

# {short_name(base)} without {len(plan.removed)} of its {plan.total} attention heads

The heads were chosen by the criterion "{plan.method}"{calibration} ({_HOW[self.refitted]}).

| | full model | this model |
|---|---|---|
| query heads | {plan.total} | {plan.total - len(plan.removed)} |
| parameters | {full:,} | {small:,} |
| loss ({objective}) | {self.curve.full:.4f} | {self.loss:.4f} |

The losses were measured on {self.evaluation}; `losses.json` has those of other removals.

| layer | heads removed |
|---|---|
{chr(10).join(f"| {layer} | {' '.join(numbers)} |" for layer, numbers in heads.items())}

`plan.json` has their costs. Load the model with {load}.

Made by

    {call}

with {made_with}.
"""


def prune_folder(
    ref: str,
    inputs: Any,
    out: Path,
    *,
    share: float | None = None,
    heads: int | None = None,
    method: str = METHOD,
    unit: str | None = None,
    uniform: bool = False,
    tokens: int = TOKENS,
    target: str | None = None,
    refit: bool = True,
    evaluation: Any = None,
    curve: bool = False,
    compare: bool = False,
    seed: int = 0,
    device: str | None = None,
    draw: Callable[[LossCurve, Path], None] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PrunedFolder:
    """Prune the model `ref` and write it to the new folder `out`, with plan, losses, their figure and a model card.

    evaluation: inputs on which losses are measured, as many tokens of texts as `tokens` says; by default the held-out
                quarter of `inputs`
    curve:      measure the losses at 10, 30, 50 and 70% as well
    compare:    measure all methods
    draw:       writes the figure of a curve to a file; None: no figure
    Other options as in `prune_plan`.
    """
    check_options(share, heads, method, unit, tokens, seed)
    check_new_folder(out)
    from attngeo.applications.prune.criteria import METHODS, NEEDS_GRADIENTS
    from attngeo.applications.prune.measure import calibrate
    from attngeo.applications.prune.rows import batched, objective_of, read_rows
    from attngeo.live.load import quiet_transformers

    loaded = load_full(ref, device=device)
    options: dict[str, Any] = {"tokens": tokens, "target": target}
    batches: Sequence[Batch] = ()
    if evaluation is not None:
        batches = batched(read_rows(evaluation, loaded, objective_of(loaded), **options, seed=seed + 1))
    methods, refits = METHODS if compare else (method,), REFITS if refit else (False,)
    passes = 0

    def calibrated(done: int, total: int) -> None:
        """Pass the progress on, with the losses that are still to be measured, as far as their number is known."""
        nonlocal passes
        passes = total
        models = 1 + len(refits) * (len(methods) + compare * (len(SEEDS) - 1)) * (len(SHARES) + 1 if curve else 1)
        progress(done, total + models * (len(batches) or -(-total // 4)))

    gradients = any(one in NEEDS_GRADIENTS for one in methods)
    calibration = calibrate(loaded, inputs, **options, seed=seed, gradients=gradients, progress=calibrated)
    batches = batches or calibration.statistics.held_out
    plan = choose_heads(calibration, method, share=share, heads=heads, unit=unit, uniform=uniform, seed=seed)
    planned = {(plan.labels, method, seed): (plan, seed)}
    shares = sorted({plan.share, *(SHARES if curve and not uniform else ())})
    for one in methods if compare or curve else ():
        for other, number in plans(calibration, one, shares, unit=unit, uniform=uniform):
            planned.setdefault((other.labels, one, number), (other, number))
    steps = count(passes + 1)
    total = passes + (1 + len(refits) * len(planned)) * len(batches)
    points = []
    for point, model in removals(
        calibration, list(planned.values()), batches, refits=refits, advance=lambda: progress(next(steps), total)
    ):
        points.append(point)
        if len(points) == 1 + len(refits):  # that of the plan, as it was asked for
            pruned, loss = model, point.loss
    losses = LossCurve(calibration.name, calibration.objective.kind, points[0].loss, tuple(points[1:]))
    sizes = loaded.model.num_parameters(), pruned.num_parameters()
    facts = getattr(pruned.config, CONFIG_KEY).get("refit")
    done = PrunedFolder(plan, losses, loss, sizes, None if facts is None else bool(facts["applied"]))
    if evaluation is not None:
        done = replace(done, evaluation="evaluation inputs of their own")
    base = str(ref) if Path(ref).exists() else ref.partition("@")[0]  # of a hub id, without the revision
    chosen = {"share": share, "heads": heads, "method": method, "unit": unit, "uniform": uniform, "seed": seed}
    call = f"prune_folder({ref!r}, inputs, out, {', '.join(f'{name}={value!r}' for name, value in chosen.items())})"
    with atomic_folder(out) as folder, quiet_transformers():
        _save(pruned, loaded, folder)
        plan.save(folder / "plan.json")
        losses.save(folder / "losses.json")
        if draw is not None:
            draw(losses, folder / "losses.png")
        write_file(folder / "README.md", done.card(base, command_line() or call).encode())
    return done


def _save(pruned: PreTrainedModel, loaded: LoadedModel, folder: Path) -> None:
    """Write the model, and the tokenizer and the processors of the full one where it has them."""
    from safetensors import SafetensorError

    try:
        pruned.save_pretrained(folder)
    except SafetensorError as error:  # of a full disk
        raise AttngeoError(f"{folder}: the weights cannot be written ({first_line(error)})") from error
    for part in (loaded.tokenizer, loaded.image_processor, loaded.feature_extractor):
        if part is not None:
            try:
                part.save_pretrained(os.fspath(folder))
            except Exception as error:  # the model itself is complete without them
                warnings.warn(f"{type(part).__name__} was not saved ({first_line(error)})", UserWarning, stacklevel=2)
