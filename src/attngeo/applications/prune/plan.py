"""`PrunePlan`: which heads of a model are removed, in which order and at what cost, saved as JSON."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.arguments import file_path, whole_number
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, save_json, saved_kind
from attngeo.io.names import first_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attngeo.applications.prune.measure import Statistics
    from attngeo.applications.prune.removal import PrunableLayer

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
        beside = path.with_suffix(".npz")
        if self.statistics is not None:
            self.statistics.save(beside)
        elif beside.is_file():
            from attngeo.applications.prune.measure import STATISTICS

            if saved_kind(beside) == STATISTICS:
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
            plan = from_plain(_SavedFields, plain)
            if not 0 < len(plan.removed) < plan.total:
                raise InputError(f"removes {len(plan.removed)} of {plan.total} heads, expected some of them")
        statistics = None
        if path.with_suffix(".npz").exists():
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
