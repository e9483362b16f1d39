"""`OwnConfig`: the config of one attention module, which is the model's with a few values of the module's own.

The values of the model's config are looked up, never copied: an attention implementation that is set for the model
later also holds for the module.
"""

from __future__ import annotations

from typing import Any


class OwnConfig:
    """A view of `shared` in which the values in `own` are different.

    >>> from types import SimpleNamespace
    >>> shared = SimpleNamespace(width=64, heads=8)
    >>> config = OwnConfig(shared, {"heads": 3})
    >>> shared.width = 32
    >>> config.width, config.heads, shared.heads
    (32, 3, 8)
    """

    def __init__(self, shared: Any, own: dict[str, Any]) -> None:
        object.__setattr__(self, "attngeo_shared", shared)
        object.__setattr__(self, "attngeo_own", own)

    def __getattr__(self, name: str) -> Any:  # called only for names that the object itself does not have
        if name in self.attngeo_own:
            return self.attngeo_own[name]
        return getattr(self.attngeo_shared, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.attngeo_shared, name, value)

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles keep sharing the config of their model
        return OwnConfig, (self.attngeo_shared, self.attngeo_own)
