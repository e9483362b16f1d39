"""`PrunePlan`: which heads of a model are removed, in which order and at what cost, saved as JSON."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.applications.prune.labels import Head, parse_head
from attngeo.arguments import file_path, whole_number
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, save_json, saved_kind
from attngeo.io.names import first_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attngeo.applications.prune.calibration.statistics import Statistics
    from attngeo.applications.prune.removal.layers import PrunableLayer

_KIND = "prune plan"


@dataclass(frozen=True)
class RemovedHead:
    """One head to be removed."""

    stack: str
    layer: int
    head: int  # query head, numbered as in the full model
    cost: float | None = None  # by the criterion of the plan, when the head was chosen; None: it was chosen by hand
    figures: dict[str, float] = field(default_factory=dict)  # what the criterion computed for the head

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
        from attngeo.applications.prune.fingerprint import fingerprint
        from attngeo.applications.prune.removal.layers import prunable_layers

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

    def first(self, count: int) -> PrunePlan:
        """Return the plan that removes only the first `count` heads of this one; greedy plans contain smaller ones."""
        return replace(self, removed=self.removed[: whole_number(count, "count", 1, len(self.removed))])

    def kept_heads(self, layers: Sequence[PrunableLayer]) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return the numbers of the heads that each (stack, layer) keeps.

        InputError where the plan names heads that `layers` do not have, a head twice, or all heads of a layer, and
        where the groups of a layer would keep different numbers of heads.
        """
        twice = [head for head, count in Counter(self.heads).items() if count > 1]
        if twice:
            raise InputError(f"{twice[0].short(self.stacks)}: named twice; expected each head once")
        present = {head: layer for layer in layers for head in layer.labels}
        missing = [head for head in self.heads if head not in present]
        if missing:
            raise InputError(f"{missing[0].short(self.stacks)}: {self._why_missing(missing[0], layers)}")
        gone = set(self.heads)
        kept = {
            (layer.stack, layer.layer): tuple(head.head for head in layer.labels if head not in gone)
            for layer in layers
        }
        for layer in layers:
            name = Head(layer.stack, layer.layer, 0).short(self.stacks).rpartition("H")[0]
            left = kept[layer.stack, layer.layer]
            if not left:
                raise InputError(f"{name}: all heads of the layer would be removed; at least one has to be kept")
            check_groups(name, left, layer.heads.group)
        return kept

    def _why_missing(self, head: Head, layers: Sequence[PrunableLayer]) -> str:
        numbers = {layer.layer: layer for layer in layers if layer.stack == head.stack}
        if head.layer not in numbers:
            return f"no such layer; the layers are {min(numbers)} to {max(numbers)}" if numbers else "no such stack"
        present = ", ".join(str(one.head) for one in numbers[head.layer].labels)
        return f"no such head; layer {head.layer} has the heads {present}"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan to a JSON file, and its statistics to an .npz file of the same name beside it."""
        path = file_path(path)
        if path.suffix != ".json":
            raise InputError(f"{path}: a plan is saved as .json")
        beside = path.with_suffix(".npz")
        if self.statistics is not None:
            self.statistics.save(beside)
        elif beside.is_file():
            from attngeo.applications.prune.calibration.statistics import KIND

            if saved_kind(beside) == KIND:
                beside.unlink()  # of a former plan of this name; `load` would take them for those of this one
        plain = as_plain(replace(self, statistics=None))
        plain.pop("statistics")
        return save_json(path, _KIND, plain)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PrunePlan:
        """Read a plan that `save` wrote, and its statistics if they are beside it."""
        path = file_path(path)
        plain = load_json(path, _KIND)
        with naming_file(path):
            if plain.pop("statistics", None) is not None:
                raise InputError("statistics is unknown")
            plan = from_plain(_SavedFields, plain)
            if not 0 < len(plan.removed) < plan.total:
                raise InputError(f"removes {len(plan.removed)} of {plan.total} heads, expected some of them")
        statistics = None
        if path.with_suffix(".npz").exists():
            from attngeo.applications.prune.calibration.statistics import Statistics

            statistics = Statistics.load(path.with_suffix(".npz"))
        return cls(**vars(plan), statistics=statistics)

    def __str__(self) -> str:
        how = "chosen by hand" if self.method == "hand" else f"chosen by {self.method}"
        shown = first_names(self.labels, 20)
        return f"{len(self.removed)} of {self.total} heads ({self.share:.1%}) of {self.model_type}, {how}: {shown}"

    def __repr__(self) -> str:
        return f"PrunePlan({self})"


def stacks_of(layers: Sequence[PrunableLayer]) -> tuple[str, ...]:
    """Return the names of the stacks, in order."""
    return tuple(dict.fromkeys(layer.stack for layer in layers))


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
