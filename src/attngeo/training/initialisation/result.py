"""What an initialisation returns: which layers it wrote, and how the scale of their keys changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InitialisedLayer:
    """One layer whose weights were written."""

    stack: str
    layer: int
    tensors: tuple[str, ...]  # names of the parameters written
    std: tuple[float, float]  # root mean square of the key weights before and after


@dataclass(frozen=True)
class Initialisation:
    """What an initialisation did to a model."""

    name: str
    layers: tuple[InitialisedLayer, ...]
    cross: tuple[str, ...]  # paths of the cross-attention layers, which are left unchanged

    def __str__(self) -> str:
        stacks = ", ".join(dict.fromkeys(layer.stack for layer in self.layers))
        before, after = (sorted(layer.std[i] for layer in self.layers)[len(self.layers) // 2] for i in (0, 1))
        cross = f"; {len(self.cross)} cross-attention layers unchanged" if self.cross else ""
        return f"{self.name}: {len(self.layers)} layers ({stacks}), std of W_k {before:.3g} → {after:.3g}{cross}"

    def __repr__(self) -> str:
        return f"Initialisation({self})"
