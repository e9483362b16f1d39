"""`GradientTerms`: the rank-1 terms that one backward pass adds to the form of each head of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arguments import whole_number
from attngeo.arrays import AnyFloats
from attngeo.display import draw
from attngeo.errors import InputError
from attngeo.training.gradients.head_terms import HeadTerms, UpdateScores, WeightTerms, describe_sequences

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class LayerTerms:
    """One layer with H heads and G key heads on S sequences of N tokens.

    The sequences are those of the batch, once for every call of a shared layer.
    """

    stack: str
    layer: int
    labels: tuple[str, ...]  # "L3H7"; "encoder L3H7" in a model with several stacks
    x: AnyFloats  # [S, N, d]
    beta: AnyFloats  # [S, H, N, N]
    query: AnyFloats  # [S, H, N, r], q̂ as multiplied: bias, rotation and norm included
    key: AnyFloats  # [S, G, N, r]
    scale: float  # c
    weights: WeightTerms | None
    missing: str = ""  # why there are no weights

    def __repr__(self) -> str:
        return f"LayerTerms({self.stack} {self.layer}, {self.beta.shape[1]} heads, {describe_sequences(self.x)})"

    def head(self, head: int) -> HeadTerms:
        """Return the terms of one head, which share the arrays of the layer."""
        head = whole_number(head, "head", 0, len(self.labels) - 1)
        group = head // (self.beta.shape[1] // self.key.shape[1])  # the key head that it reads
        weights = None
        if self.weights is not None:
            w = self.weights
            weights = WeightTerms(w.query[head], w.key[group], w.query_gradient[head], w.key_gradient[group])
        return HeadTerms(
            label=self.labels[head],
            stack=self.stack,
            layer=self.layer,
            head=head,
            x=self.x,
            beta=self.beta[:, head],  # [S, N, N]
            query=self.query[:, head],  # [S, N, r]
            key=self.key[:, group],  # [S, N, r]
            scale=self.scale,
            weights=weights,
            missing=self.missing,
        )


@dataclass(frozen=True, eq=False)
class GradientTerms:
    """The update −∂L/∂M of the form of each self-attention head, from one backward pass.

    Per layer, x, q̂ and k̂ (at most S·N·d numbers each), β (S·H·N²), and the query and key weights with their gradients
    are kept in memory. No d×d matrix is formed unless `gradient()` or `update.dense()` is called.

    >>> import torch
    >>> from transformers import AutoModelForMaskedLM
    >>> model = AutoModelForMaskedLM.from_pretrained(attngeo.bundled("encoder"))
    >>> ids = torch.arange(20, 32)[None]  # [batch, tokens]
    >>> terms = attngeo.gradient_terms(model, {"input_ids": ids, "labels": ids})
    >>> terms
    GradientTerms(loss 3.03005, 16 heads in 4 layers, 1 × 12 tokens of width 128)
    >>> -1 < terms["L0H3"].update.symmetry() < 1, terms["L0H3"].context.norm.shape
    (True, (1, 12))
    """

    loss: float
    layers: tuple[LayerTerms, ...]
    name: str = ""  # of the model, for titles

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for layer in self.layers for label in layer.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[HeadTerms]:
        return (layer.head(head) for layer in self.layers for head in range(len(layer.labels)))

    def __getitem__(self, label: str) -> HeadTerms:
        for layer in self.layers:
            if label in layer.labels:
                return layer.head(layer.labels.index(label))
        raise InputError(f"head {label!r}: expected one of {self.labels[0]} … {self.labels[-1]}")

    @cached_property
    def scores(self) -> tuple[UpdateScores, ...]:
        """The scores of each head's update."""
        return tuple(head.scores for head in self)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The scores as a tidy polars frame, one row per head."""
        import polars as pl

        return pl.DataFrame([asdict(row) for row in self.scores])

    @property
    def largest(self) -> str:
        """The label of the head with the largest update."""
        return max(self.scores, key=lambda row: row.norm).label

    @cached_property
    def by_position(self) -> dict[str, dict[str, AnyFloats]]:
        """Stack → role → [N]: the norm of what the token at each position adds, relative to the mean of its sequence.

        The values are averaged over heads and sequences.
        """
        by_head: dict[str, dict[str, list[AnyFloats]]] = {}
        for head in self:
            roles = by_head.setdefault(head.stack, {"context": [], "prediction": []})
            for name, role in (("context", head.context), ("prediction", head.prediction)):
                means = role.norm.mean(1, keepdims=True)  # [S, 1]
                roles[name].append((role.norm / np.where(means > 0, means, 1)).mean(0))  # [N]
        return {
            stack: {name: np.mean(heads, axis=0) for name, heads in roles.items()} for stack, roles in by_head.items()
        }

    def plot(self, head: str | None = None, tokens: Sequence[str] = ()) -> Figure:
        """Return a figure: β of one head, contributions by role and position, and the scores of all heads.

        head     its label; by default the head with the largest update
        tokens   labels of the positions of the first sequence
        """
        return draw("gradient_figure", [self], heads=[head], tokens=[tokens])

    def __repr__(self) -> str:
        heads = f"{len(self)} heads in {len(self.layers)} layers"
        return f"GradientTerms(loss {self.loss:.6g}, {heads}, {describe_sequences(self.layers[0].x)})"
