"""`Head`: the name of one attention head, as plans, tables and messages write it: "L3H7" or "cross/L3H7"."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from attngeo.errors import InputError

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
