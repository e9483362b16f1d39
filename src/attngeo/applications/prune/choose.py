"""`prune_plan`: choose the heads whose removal costs least, one step after the other, on calibration inputs.

A step removes one unit: a query head, or a key head with all the query heads that read it. Attention kernels for
grouped queries need groups of equal size; so where query heads share key heads and single ones are removed, a step
removes one query head of every group of a layer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from attngeo.applications.prune.plan import PrunePlan, RemovedHead
from attngeo.arguments import LARGEST_SEED, finite_number, whole_number
from attngeo.errors import AttngeoError, InputError
from attngeo.io.progress import accepts_progress_bar

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from attngeo.applications.prune.criteria import LayerCosts, Unit
    from attngeo.applications.prune.measure import Calibration
    from attngeo.applications.prune.removal import PrunableLayer
    from attngeo.live.load import LoadedModel, ModelRef, Processor

METHOD = "refit"  # the default criterion
SHARE = 0.3  # of the query heads that are removed by default
TOKENS = 16384  # of calibration text, by default
UNITS = ("query", "group")


@accepts_progress_bar
def prune_plan(
    model_or_ref: ModelRef,
    inputs: Any,
    *,
    share: float | None = None,
    heads: int | None = None,
    method: str = METHOD,
    unit: str | None = None,
    uniform: bool = False,
    tokens: int = TOKENS,
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
    method        "refit", "error", "sensitivity", "folders", "entropy" or "random"
    unit          "group": key heads with all query heads that read them; "query": query heads, equally many of every
                  group of a layer. By default "group" where query heads share key heads.
    uniform       remove the same number from every layer, so that transformers itself loads the result
    tokens        how many tokens are used of longer texts, in windows that are drawn over all of them
    window        tokens per row that a text is cut into; by default the model's maximum, at most 512
    target        what the decoder of an encoder-decoder reads, where the inputs are sounds
    seed          of the windows that are drawn, of the masking, and of random choices

    Every layer keeps at least one head. A quarter of the inputs is held out: the refit chooses its penalty on it.

    >>> words = Path(attngeo.bundled("decoder"), "tokenizer.json").read_text()[:30000]
    >>> plan = attngeo.prune_plan(attngeo.bundled("decoder"), words, heads=4)
    >>> len(plan.labels), plan.share
    (4, 0.25)
    """
    check_options(share, heads, method, unit, tokens, seed)
    from attngeo.applications.prune.criteria import NEEDS_GRADIENTS
    from attngeo.applications.prune.measure import calibrate

    calibration = calibrate(
        load_full(model_or_ref, tokenizer=tokenizer, processor=processor, device=device),
        inputs,
        tokens=tokens,
        window=window,
        target=target,
        seed=seed,
        gradients=method in NEEDS_GRADIENTS,
        progress=progress if callable(progress) else None,
    )
    return choose_heads(calibration, method, share=share, heads=heads, unit=unit, uniform=uniform, seed=seed)


def load_full(ref: ModelRef, **options: Any) -> LoadedModel:
    """Return the model with the head it was trained with; one that cannot be pruned is refused by its config.

    options: as in `load_model`
    """
    from attngeo.applications.prune.removal import prunable_type
    from attngeo.live.load import load_model
    from attngeo.weights.layout.heads import CONFIG_KEY
    from attngeo.weights.sources.open import open_checkpoint

    if isinstance(ref, str | os.PathLike):
        config: Any = None
        with suppress(AttngeoError), open_checkpoint(ref) as checkpoint:  # `load_model` says what is wrong with a file
            config = checkpoint.config
        if config and config.get("model_type") and not config.get(CONFIG_KEY):
            prunable_type(str(config["model_type"]).removeprefix("gguf:"))
    return load_model(ref, **options, head=True)


def check_options(
    share: float | None, heads: int | None, method: str, unit: str | None, tokens: int, seed: int
) -> None:
    """Raise InputError for an amount, a method, a unit or a seed that does not exist, or where torch is missing."""
    from attngeo.live.load import check_torch

    check_torch()
    from attngeo.applications.prune.criteria import METHODS

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
    whole_number(tokens, "tokens", 1)
    whole_number(seed, "seed", 0, LARGEST_SEED)


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
    from attngeo.applications.prune.criteria import method_costs
    from attngeo.applications.prune.removal import stacks_of

    layers = calibration.layers
    total = sum(layer.heads.queries for layer in layers)
    wanted = heads if heads is not None else max(1, round((SHARE if share is None else share) * total))
    if heads is not None and heads >= total:
        raise InputError(f"heads is {heads}, but the model has {total}; expected fewer")
    if unit is None:
        unit = "group" if any(layer.heads.group > 1 for layer in layers) else "query"
    places = [layer_places(layer, unit) for layer in layers]
    if all(len(units) == 1 for own in places for units in own):
        raise InputError(f"unit {unit!r}: every layer has a single {unit}, which has to be kept")
    units = [[one for place in own for one in place] for own in places]
    costs = method_costs(calibration, method, units, kept=total - wanted, seed=seed)
    lost = max(len(own) * len(own[0][0]) for own in places)  # query heads that a step removes
    if uniform:
        most = uniform_steps(calibration.model.config, layers[0], places[0], wanted / total)
        chosen, reason = choose(costs, places, most * len(layers), most), "the nearest number that the config accepts"
    else:
        chosen = choose(costs, places, max(1, round(wanted / lost)))
        split = any(len(own) > 1 for own in places)
        if abs(sum(len(units[layer][one]) for layer, one, _ in chosen) - wanted) < lost:
            reason = "every group of a layer loses equally many" if split else "only whole groups go"
        else:
            least = "group" if unit == "group" else "query head"
            reason = f"every {'group' if split else 'layer'} keeps at least one {least}"
    removed = tuple(
        RemovedHead(layers[layer].stack, layers[layer].layer, head, cost)
        for layer, one, cost in chosen
        for head in units[layer][one]
    )
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


def layer_places(layer: PrunableLayer, unit: str) -> list[list[Unit]]:
    """Return the units of a layer by place: from every place equally many are removed, and one is kept."""
    m = layer.heads.group
    groups: list[Unit] = [tuple(range(group * m, (group + 1) * m)) for group in range(layer.heads.keys)]
    if unit == "group" or m == 1:
        return [groups]
    return [[(head,) for head in group] for group in groups]


Removal = tuple[int, int, float]  # position of the layer, unit, cost


def choose(
    costs: Sequence[LayerCosts], places: Sequence[Sequence[Sequence[Unit]]], count: int, most: int | None = None
) -> list[Removal]:
    """Return up to `count` steps in order; each removes the cheapest unit of every place of the cheapest layer.

    Every place keeps one unit, so that there may be fewer steps.

    places: of each layer, the units of each place; units are numbered throughout the places
    most:   steps of one layer

    >>> from attngeo.applications.prune.criteria import FixedCosts
    >>> costs = [FixedCosts({0: 1.0, 1: 5.0}), FixedCosts({0: 2.0, 1: 3.0, 2: 4.0})]
    >>> [(layer, unit) for layer, unit, _ in choose(costs, [[[(0,), (1,)]], [[(0,), (1,), (2,)]]], 10)]
    [(0, 0), (1, 0), (1, 1)]
    """
    steps = [min(len(units) for units in own) - 1 for own in places]  # that each layer can still make
    if most is not None:
        steps = [min(own, most) for own in steps]
    following = [_cheapest(index, *layer) for index, layer in enumerate(zip(costs, places, strict=True))]
    chosen: list[Removal] = []
    for _ in range(min(count, sum(steps))):
        index = min(
            (index for index, left in enumerate(steps) if left),
            key=lambda one: sum(cost for _, _, cost in following[one]) / len(following[one]),
        )
        for _, unit, _ in following[index]:
            costs[index].remove(unit)
        chosen += following[index]
        steps[index] -= 1
        following[index] = _cheapest(index, costs[index], places[index])
    return chosen


def _cheapest(index: int, layer: LayerCosts, places: Sequence[Sequence[Unit]]) -> list[Removal]:
    """Return the cheapest unit of each place of a layer, each given those before it."""
    trial, step, begin = deepcopy(layer) if len(places) > 1 else layer, [], 0
    for units in places:
        costs = trial.costs()
        unit = min((one for one in range(begin, begin + len(units)) if one in costs), key=costs.__getitem__)
        step.append((index, unit, costs[unit]))
        if len(places) > 1:
            trial.remove(unit)
        begin += len(units)
    return step


def uniform_steps(
    config: PreTrainedConfig, layer: PrunableLayer, places: Sequence[Sequence[Unit]], share: float
) -> int:
    """Return how many steps every layer makes, so that nearest to `share` of its heads go and the config accepts it."""
    from attngeo.applications.prune.removal import PRUNABLE_TYPES

    if not layer.known.uniform:
        allowed = ", ".join(name for name, known in PRUNABLE_TYPES.items() if known.uniform)
        raise InputError(f"uniform: model type {config.model_type}; its config allows {allowed} only")
    heads, whole_groups = layer.heads, len(places) == 1
    left = {  # steps → query and key heads that are left
        steps: (heads.queries - steps * len(places) * len(places[0][0]), heads.keys - steps * whole_groups)
        for steps in range(1, len(places[0]))
    }
    accepted = [steps for steps, counts in left.items() if _accepts(config, *counts, heads.size)]
    if not accepted:
        raise InputError(
            f"uniform: {heads.queries} query and {heads.keys} key heads leave no smaller count that the config accepts"
        )
    return min(accepted, key=lambda steps: (abs(left[steps][0] - (1 - share) * heads.queries), steps))


def _accepts(config: PreTrainedConfig, queries: int, keys: int, size: int) -> bool:
    """Return whether a config of this type can be made with these head counts."""
    counts = {"num_attention_heads": queries, "num_key_value_heads": keys, "head_dim": size}
    try:
        type(config)(**{**config.to_dict(), **counts})
    except Exception:  # configs validate themselves and raise errors of several kinds
        return False
    return True
