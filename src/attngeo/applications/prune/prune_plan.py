"""`prune_plan`: choose the heads whose removal costs least, on calibration inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attngeo.applications.prune.plan import PrunePlan, RemovedHead, stacks_of
from attngeo.arguments import LARGEST_SEED, finite_number, whole_number
from attngeo.errors import InputError
from attngeo.io.progress import accepts_progress_bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from attngeo.applications.prune.calibrate import Calibration
    from attngeo.applications.prune.criteria.greedy import Choice
    from attngeo.applications.prune.removal.layers import PrunableLayer
    from attngeo.live.load import ModelRef, Processor

SHARE = 0.3  # of the query heads that are removed by default


@accepts_progress_bar
def prune_plan(
    model_or_ref: ModelRef,
    inputs: Any,
    *,
    share: float | None = None,
    heads: int | None = None,
    method: str = "sensitivity",
    unit: str | None = None,
    uniform: bool = False,
    window: int | None = None,
    target: str | None = None,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerBase | None = None,
    processor: Processor | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] | bool | None = None,
) -> PrunePlan:
    """Return the plan that removes the heads whose removal costs least by a criterion.

    model_or_ref  a folder, a GGUF file, a hub id, or a transformers model with the head it was trained with
    inputs        calibration inputs: a text, or a list of texts, images, sounds or mappings of tensors
    share, heads  how many of the model's query heads are removed: a share of them (0.3 by default), or a number
    method        "sensitivity", "unexplained", "refit", "error", "gradient", "fisher", "magnitude", "output",
                  "folders", "entropy" or "random"
    unit          "group": key heads with all query heads that read them; "query": query heads, equally many of every
                  group of a layer. By default "group" where query heads share key heads.
    uniform       remove the same number from every layer, so that transformers itself loads the result
    window        tokens per row that a text is cut into; by default the model's maximum, at most 512
    target        what the decoder of an encoder-decoder reads, where the inputs are sounds
    seed          of the masking, and of random choices

    Every layer keeps at least one head. A quarter of the inputs is held out: the refit chooses its penalty on it.

    >>> words = Path(attngeo.bundled("decoder"), "tokenizer.json").read_text()[:30000]
    >>> plan = attngeo.prune_plan(attngeo.bundled("decoder"), words, heads=4)
    >>> len(plan.labels), plan.method, plan.removed[0].figures.keys() >= {"own", "unexplained_share"}
    (4, 'sensitivity', True)
    """
    from attngeo.live.load import check_torch, load_model

    check_torch()
    from attngeo.applications.prune.calibrate import calibrate
    from attngeo.applications.prune.criteria.methods import NEEDS_GRADIENTS

    check_options(share, heads, method, unit, seed)
    loaded = load_model(model_or_ref, tokenizer=tokenizer, processor=processor, device=device, head=True)
    calibration = calibrate(
        loaded,
        inputs,
        window=window,
        target=target,
        seed=seed,
        gradients=method in NEEDS_GRADIENTS,
        progress=progress if callable(progress) else None,
    )
    return choose_heads(calibration, method, share=share, heads=heads, unit=unit, uniform=uniform, seed=seed)


def choose_heads(
    calibration: Calibration,
    method: str,
    *,
    share: float | None = None,
    heads: int | None = None,
    unit: str | None = None,
    uniform: bool = False,
    seed: int = 0,
) -> PrunePlan:
    """Return the plan that a criterion makes of a calibration; options as in `prune_plan`."""
    from attngeo.applications.prune.criteria.greedy import choose
    from attngeo.applications.prune.criteria.methods import method_costs
    from attngeo.applications.prune.criteria.uniform import choose_uniform, uniform_steps
    from attngeo.applications.prune.criteria.units import layer_units, split_groups, unit_places

    check_options(share, heads, method, unit, seed)
    layers = [one.layer for one in calibration.measured]
    total = sum(layer.heads.queries for layer in layers)
    wanted = heads if heads is not None else max(1, round((SHARE if share is None else share) * total))
    if heads is not None and heads >= total:
        raise InputError(f"heads is {heads}, but the model has {total}; expected fewer")
    if unit is None:
        unit = "group" if any(layer.heads.group > 1 for layer in layers) else "query"
    units = [layer_units(layer, unit) for layer in layers]
    places = [unit_places(layer, unit) for layer in layers]
    if all(len(own) == 1 for own in units):
        raise InputError(f"unit {unit!r}: every layer has a single {unit}, which has to be kept")
    costs = method_costs(
        method, calibration.measured, units, lambda: calibration.organized, kept=total - wanted, seed=seed
    )
    if uniform:
        steps = uniform_steps(calibration.model.config, layers[0], wanted / total, unit)
        choices = choose_uniform(costs, places, steps)
        reason = "the nearest number that the config accepts"
    else:
        split = any(split_groups(layer, unit) for layer in layers)
        size = max(len(set(place)) * len(own[0]) for place, own in zip(places, units, strict=True))  # of a step
        choices = choose(costs, places, max(1, round(wanted / size)))
        least = "group a query head" if split else "layer a group" if unit == "group" else "layer a query head"
        reason = f"every {least.replace(' a ', ' keeps at least one ', 1)}"
        if abs(sum(len(units[one.layer][one.unit]) for one in choices) - wanted) < size:
            reason = "every group of a layer loses equally many" if split else "only whole groups go"
    removed = _removed(layers, units, choices)
    notes = () if len(removed) == wanted else (f"{len(removed)} heads are removed instead of {wanted}: {reason}",)
    return PrunePlan(
        model=calibration.name,
        model_type=str(calibration.model.config.model_type),
        fingerprint=calibration.statistics.fingerprint,
        stacks=stacks_of(layers),
        total=total,
        method=method,
        unit=unit,
        removed=removed,
        uniform=uniform,
        notes=notes,
        statistics=calibration.statistics,
    )


def check_options(share: float | None, heads: int | None, method: str, unit: str | None, seed: int) -> None:
    """Raise InputError for an amount, a method, a unit or a seed that does not exist."""
    from attngeo.applications.prune.criteria.methods import METHODS
    from attngeo.applications.prune.criteria.units import UNITS

    if method not in METHODS:
        raise InputError(f"method {method!r}: expected one of {', '.join(METHODS)}")
    if unit is not None and unit not in UNITS:
        raise InputError(f"unit {unit!r}: expected one of {', '.join(UNITS)}")
    if share is not None and heads is not None:
        raise InputError(f"share is {share} and heads is {heads}: expected one of the two")
    if share is not None and not 0 < finite_number(share, "share") < 1:
        raise InputError(f"share is {share}, expected a number above 0 and below 1")
    if heads is not None:
        whole_number(heads, "heads", 1)
    whole_number(seed, "seed", 0, LARGEST_SEED)


def _removed(
    layers: Sequence[PrunableLayer], units: Sequence[Sequence[tuple[int, ...]]], choices: Sequence[Choice]
) -> tuple[RemovedHead, ...]:
    """Return the heads of the chosen units, in order, each with the cost of its unit."""
    return tuple(
        RemovedHead(label.stack, label.layer, label.head, choice.cost.cost, dict(choice.cost.figures))
        for choice in choices
        for label in (layers[choice.layer].labels[head] for head in units[choice.layer][choice.unit])
    )
