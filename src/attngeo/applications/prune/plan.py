"""`PrunePlan`: which heads of a model are removed, in which order and at what cost; `prune_plan` chooses them.

The heads that cost least go, one step after the other. A step removes one unit: a query head, or a key head with all
the query heads that read it. Attention kernels for grouped queries need groups of equal size; so where query heads
share key heads and single ones are removed, a step removes one query head of every group of a layer.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.arguments import LARGEST_SEED, file_path, finite_number, whole_number
from attngeo.errors import AttngeoError, InputError
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, save_json, states_options
from attngeo.io.names import first_names
from attngeo.io.progress import accepts_progress_bar

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from attngeo.applications.prune.criteria import LayerCosts, Unit
    from attngeo.applications.prune.measure import Calibration, Statistics
    from attngeo.applications.prune.removal import PrunableLayer
    from attngeo.live.load import LoadedModel, ModelRef, Processor

_KIND = "prune plan"
_LABEL = re.compile(r"(?:(?P<stack>[^/\s]+)/)?L(?P<layer>\d{1,9})H(?P<head>\d{1,9})")


@dataclass(frozen=True, order=True)
class Head:
    """One query head, by its stack, its layer and its number in the full model."""

    stack: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.stack}/L{self.layer}H{self.head}"

    def short(self, stacks: Collection[str]) -> str:
        """Return the label without the stack where the model has a single one.

        >>> Head("decoder", 3, 7).short(["decoder"]), Head("cross", 3, 7).short(["decoder", "cross"])
        ('L3H7', 'cross/L3H7')
        """
        return f"L{self.layer}H{self.head}" if len(stacks) == 1 else str(self)


def parse_head(label: str, stacks: Collection[str]) -> Head:
    """Return the head that `label` names in a model with these stacks; the stack may be left out if there is one.

    >>> parse_head("L3H7", ["decoder"])
    Head(stack='decoder', layer=3, head=7)
    """
    match = _LABEL.fullmatch(label) if isinstance(label, str) else None
    if match is None:
        raise InputError(f"{label!r}: not the label of a head; expected L3H7 or, with its stack, decoder/L3H7")
    stack = match["stack"]
    if stack is None and len(stacks) != 1:
        raise InputError(
            f"{label}: the model has the stacks {', '.join(stacks)}; write for example {next(iter(stacks))}/{label}"
        )
    if stack is not None and stack not in stacks:
        raise InputError(f"{label}: the model has no stack {stack}; it has {', '.join(stacks)}")
    return Head(stack or next(iter(stacks)), int(match["layer"]), int(match["head"]))


@dataclass(frozen=True)
class RemovedHead:
    """One head to be removed."""

    stack: str
    layer: int
    head: int  # query head, numbered as in the full model
    cost: float | None = None  # by the criterion of the plan, when the head was chosen; None: it was chosen by hand

    @property
    def label(self) -> Head:
        return Head(self.stack, self.layer, self.head)


@dataclass(frozen=True)
class _SavedFields:
    """What the JSON file of a plan holds."""

    model: str  # the name of the model: a hub id, a folder or a class
    model_type: str
    fingerprint: str  # of the model's attention weights
    stacks: tuple[str, ...]  # all stacks of the model
    total: int  # query heads of the full model
    method: str  # the criterion; "hand": the heads were named by the user
    unit: str  # "group": key heads with all their query heads, "query": query heads of every group
    removed: tuple[RemovedHead, ...]
    uniform: bool = False  # every layer loses the same number, so that transformers loads the pruned model
    notes: tuple[str, ...] = ()  # what a user should know: a layer that was not emptied, a count that was rounded


@dataclass(frozen=True)
class PrunePlan(_SavedFields):
    """The heads of a model to be removed, in the order in which they were chosen.

    >>> from transformers import AutoModelForMaskedLM
    >>> model = AutoModelForMaskedLM.from_pretrained(attngeo.bundled("encoder"))
    >>> plan = attngeo.PrunePlan.from_heads(model, ["L0H1", "L3H2"])
    >>> print(plan)
    2 of 16 heads (12.5%) of bert, chosen by hand: L0H1, L3H2
    >>> plan.save("plan.json"), attngeo.PrunePlan.load("plan.json") == plan
    (PosixPath('plan.json'), True)
    """

    statistics: Statistics | None = field(default=None, compare=False, repr=False)  # for the refit

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads to be removed, in order."""
        return tuple(one.label for one in self.removed)

    @property
    def labels(self) -> tuple[str, ...]:
        """The heads to be removed as "L3H7", with the stack before them where the model has several."""
        return tuple(head.short(self.stacks) for head in self.heads)

    @property
    def share(self) -> float:
        """The share of the model's query heads that are removed."""
        return len(self.removed) / self.total

    @classmethod
    def from_heads(cls, model: PreTrainedModel, heads: Sequence[str]) -> PrunePlan:
        """Return the plan that removes the heads with these labels: "L0H1", or "cross/L0H1" in encoder-decoder models.

        InputError for a head that does not exist or is named twice, for a layer that would lose all its heads, and for
        groups of query heads with one key head that would keep different numbers of heads.
        """
        from attngeo.applications.prune.removal import fingerprint, prunable_layers, stacks_of

        if isinstance(heads, str) or not heads:
            raise InputError(f"heads: expected a list of labels such as ['L0H1', 'L3H7'], got {heads!r}")
        layers = prunable_layers(model)
        stacks = stacks_of(layers)
        removed = tuple(RemovedHead(one.stack, one.layer, one.head) for one in (parse_head(h, stacks) for h in heads))
        plan = cls(
            model=model.name_or_path or type(model).__name__,
            model_type=str(model.config.model_type),
            fingerprint=fingerprint(model, layers),
            stacks=stacks,
            total=sum(layer.heads.queries for layer in layers),
            method="hand",
            unit="query",
            removed=removed,
        )
        plan.kept_heads(layers)
        return plan

    def kept_heads(self, layers: Sequence[PrunableLayer]) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return the numbers of the heads that each (stack, layer) keeps.

        InputError where the plan names heads that `layers` do not have, a head twice, or all heads of a layer, and
        where the groups of a layer would keep different numbers of heads.
        """
        twice = [head for head, count in Counter(self.heads).items() if count > 1]
        if twice:
            raise InputError(f"{twice[0].short(self.stacks)}: named twice; expected each head once")
        gone = set(self.heads)
        for head in self.heads:
            present = {one.layer: one.heads.queries for one in layers if one.stack == head.stack}
            if head.layer not in present:
                which = f"layer; the layers are {min(present)} to {max(present)}" if present else "stack"
                raise InputError(f"{head.short(self.stacks)}: no such {which}")
            if not 0 <= head.head < present[head.layer]:
                where = f"layer {head.layer} has the heads 0 to {present[head.layer] - 1}"
                raise InputError(f"{head.short(self.stacks)}: no such head; {where}")
        kept = {}
        for layer in layers:
            name = Head(layer.stack, layer.layer, 0).short(self.stacks).rpartition("H")[0]
            left = tuple(head.head for head in layer.labels if head not in gone)
            if not left:
                raise InputError(f"{name}: all heads of the layer would be removed; at least one has to be kept")
            check_groups(name, left, layer.heads.group)
            kept[layer.stack, layer.layer] = left
        return kept

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan to a JSON file, and its statistics to an .npz file of the same name beside it."""
        path = file_path(path)
        if path.suffix != ".json":
            raise InputError(f"{path}: a plan is saved as .json")
        if self.statistics is not None:
            self.statistics.save(path.with_suffix(".npz"))
        plain = as_plain(replace(self, statistics=None)) | {"statistics": bool(self.statistics)}
        return save_json(path, _KIND, plain, of=self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PrunePlan:
        """Read a plan that `save` wrote, and the statistics beside it if it had them."""
        path = file_path(path)
        plain = load_json(path, _KIND)
        with naming_file(path):
            measured = plain.pop("statistics")
            plan = from_plain(_SavedFields, plain)
        statistics = None
        if measured:
            from attngeo.applications.prune.measure import Statistics

            statistics = Statistics.load(path.with_suffix(".npz"))
        return cls(**vars(plan), statistics=statistics)

    def __str__(self) -> str:
        how = "chosen by hand" if self.method == "hand" else f"chosen by {self.method}"
        shown = first_names(self.labels, 20)
        return f"{len(self.removed)} of {self.total} heads ({self.share:.1%}) of {self.model_type}, {how}: {shown}"

    def __repr__(self) -> str:
        return f"PrunePlan({self})"


def check_groups(name: str, kept: Sequence[int], group: int) -> None:
    """Raise InputError unless the key heads of the layer `name` keep equally many query heads, or none.

    >>> check_groups("L2", [0, 1, 2, 5], 3)
    Traceback (most recent call last):
        ...
    attngeo.errors.InputError: L2: the group of H3 to H5 would keep 1 query head and that of H0 to H2 would keep 3; \
remove whole groups, or equally many heads from every group
    """
    sizes = Counter(head // group for head in kept)
    (most, largest), (least, smallest) = sizes.most_common()[0], sizes.most_common()[-1]
    if smallest < largest:
        few, many = (f"H{one * group} to H{(one + 1) * group - 1}" for one in (least, most))
        raise InputError(
            f"{name}: the group of {few} would keep {smallest} query head{'s' * (smallest > 1)} and that of {many} "
            f"would keep {largest}; remove whole groups, or equally many heads from every group"
        )


METHOD = "refit"  # the default criterion
SHARE = 0.3  # of the query heads that are removed by default
TOKENS = 16384  # of calibration text, by default
UNITS = ("query", "group")


@accepts_progress_bar
@states_options
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
    from attngeo.applications.prune.removal import check_prunable
    from attngeo.live.load import load_model
    from attngeo.weights.layout.heads import CONFIG_KEY
    from attngeo.weights.sources.open import open_checkpoint

    if isinstance(ref, str | os.PathLike):
        config: Any = None
        with suppress(AttngeoError), open_checkpoint(ref) as checkpoint:  # `load_model` says what is wrong with a file
            config = checkpoint.config
        if config and config.get("model_type") and not config.get(CONFIG_KEY):
            check_prunable(str(config["model_type"]).removeprefix("gguf:"))
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
    left = [min(len(units) for units in own) - 1 for own in places]  # steps that each layer can still make
    if most is not None:
        left = [min(own, most) for own in left]
    following = [_step(*layer) for layer in zip(costs, places, strict=True)]
    chosen: list[Removal] = []
    for _ in range(min(count, sum(left))):
        index = min(
            (index for index, steps in enumerate(left) if steps),
            key=lambda one: sum(cost for _, cost in following[one][0]) / len(following[one][0]),
        )
        step, after = following[index]
        chosen += [(index, unit, cost) for unit, cost in step]
        left[index] -= 1
        following[index] = _step(after, places[index])
    return chosen


def _step(layer: LayerCosts, places: Sequence[Sequence[Unit]]) -> tuple[list[tuple[int, float]], LayerCosts]:
    """Return the cheapest unit of each place of a layer, each given those before it, and the costs afterwards."""
    after, step, begin = deepcopy(layer), [], 0
    for units in places:
        costs = after.costs()
        unit = min((one for one in range(begin, begin + len(units)) if one in costs), key=costs.__getitem__)
        step.append((unit, costs[unit]))
        after.remove(unit)
        begin += len(units)
    return step, after


def uniform_steps(
    config: PreTrainedConfig, layer: PrunableLayer, places: Sequence[Sequence[Unit]], share: float
) -> int:
    """Return how many steps every layer makes, so that nearest to `share` of its heads go and the config accepts it."""
    from attngeo.applications.prune.removal import prunable_types

    if not layer.known.get("uniform"):
        allowed = first_names(prunable_types(uniform=True), 20)
        raise InputError(f"uniform: model type {config.model_type}; only configs of {allowed} can state the head size")
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
