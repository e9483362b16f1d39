"""The rank-1 terms that one backward pass adds to the form of each head: of a model, of a layer, of a head.

    U = −∂L/∂M = c Σ_ij β_ij x_i x_jᵀ = c·Xᵀ β X      β_ij = −∂L/∂Â_ij, i the prediction, j its context

The update U of a head is kept as its factors X and c·βX; no d×d matrix is formed unless asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arguments import whole_number
from attngeo.arrays import AnyFloats
from attngeo.display import draw
from attngeo.errors import InputError, LayoutError
from attngeo.weights.scoring.form import Form
from attngeo.weights.scoring.formulas import coefficient_of_variation

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class WeightTerms:
    """The query and key weights of a layer (as W in x W) and their gradients, computed from β, x, q̂ and k̂."""

    query: AnyFloats  # [H, d, r]
    key: AnyFloats  # [G, d, r]
    query_gradient: AnyFloats  # [H, d, r], −c Xᵀ[(β k̂) rotated back]
    key_gradient: AnyFloats  # [G, d, r], −c Xᵀ[(βᵀ q̂) rotated back], summed over the query heads of a group


@dataclass(frozen=True, eq=False)
class Role:
    """What each token adds to the update in one role: the rank-1 matrix column ⊗ row.

    As context, a token contributes its own vector to the row space and a mixture of token vectors to the column space;
    as prediction, the reverse.
    """

    column: AnyFloats  # [S, N, d]
    row: AnyFloats  # [S, N, d]
    norm: AnyFloats  # [S, N], ‖column‖‖row‖
    share: AnyFloats  # [S, N], ⟨column ⊗ row, U⟩/‖U‖²; the shares of all tokens sum to 1


@dataclass(frozen=True)
class UpdateScores:
    """The scores of one head's update; NaN where the update is 0."""

    label: str
    stack: str
    layer: int
    head: int
    norm: float
    symmetry: float
    directionality: float
    row_spread: float  # coefficient of variation (std / mean) of the row norms
    column_spread: float
    pairing: float  # Σ β_ij β_ji / Σ β_ij² over i ≠ j: 1 where paired terms are equal, 0 under a causal mask


@dataclass(frozen=True, eq=False)
class HeadTerms:
    """One head: token vectors x, coefficients β = −∂L/∂Â, and the update U = −G of its form.

    G = ∂L/∂E at E = 0, where c·X E Xᵀ is added to the head's products q̂ k̂ᵀ, before soft-cap and bias.
    """

    label: str
    stack: str
    layer: int
    head: int
    x: AnyFloats  # [S, N, d]
    beta: AnyFloats  # [S, N, N]
    query: AnyFloats  # [S, N, r], q̂ as multiplied
    key: AnyFloats  # [S, N, r], k̂ as multiplied
    scale: float  # c
    weights: WeightTerms | None  # of this head, [d, r] each; the gradient of the key is that of its whole group
    missing: str = ""  # why there are no weights

    def __repr__(self) -> str:
        return f"HeadTerms({self.label}, {describe_sequences(self.x)})"

    @cached_property
    def update(self) -> Form:
        """The update U = −G as a `Form`; its rows belong to the predicted token, its columns to the context."""
        width = self.x.shape[-1]
        return Form(self.x.reshape(-1, width).T, self._weighted_context.reshape(-1, width).T)

    def gradient(self) -> AnyFloats:
        """Return G = ∂L/∂E, [d, d]."""
        return -self.update.dense()

    @cached_property
    def context(self) -> Role:
        """Token t as context: c (Σ_i β_it x_i) x_tᵀ."""
        return self._role(self.scale * (self.beta.swapaxes(1, 2) @ self.x), self.x)

    @cached_property
    def prediction(self) -> Role:
        """Token t as prediction: c x_t (Σ_j β_tj x_j)ᵀ."""
        return self._role(self.x, self._weighted_context)

    @cached_property
    def scores(self) -> UpdateScores:
        """Symmetry, directionality, norm and norm spreads of the update, and the pairing of β."""
        update = self.update
        beta = self.beta.astype(np.float64) * ~np.eye(self.beta.shape[1], dtype=bool)  # [S, N, N], i ≠ j
        energy = float(np.vdot(beta, beta))
        return UpdateScores(
            label=self.label,
            stack=self.stack,
            layer=self.layer,
            head=self.head,
            norm=update.norm(),
            symmetry=update.symmetry(),
            directionality=update.directionality(),
            row_spread=float(coefficient_of_variation(update.row_norms())),
            column_spread=float(coefficient_of_variation(update.column_norms())),
            pairing=float(np.vdot(beta, beta.swapaxes(1, 2))) / energy if energy else math.nan,
        )

    @property
    def form(self) -> Form:
        """The form M = W_q W_kᵀ of the current weights."""
        weights = self._known_weights("form")
        return Form(weights.query, weights.key)

    def change(self, eta: float = 1.0) -> Form:
        """Return δM = −η(∂L/∂W_q W_kᵀ + W_q (∂L/∂W_k)ᵀ), the first-order change of M in a step of gradient descent.

        Without bias, rotation, QK-norm and shared keys this is −η(G W_kW_kᵀ + W_qW_qᵀG).
        """
        w = self._known_weights("change")
        return Form(
            np.concatenate([-eta * w.query_gradient, w.query], 1),  # [d, 2r]
            np.concatenate([w.key, -eta * w.key_gradient], 1),  # [d, 2r]
        )

    @cached_property
    def _weighted_context(self) -> AnyFloats:
        """c·βX, [S, N, d]."""
        weighted: AnyFloats = self.scale * (self.beta @ self.x)
        return weighted

    def _role(self, column: AnyFloats, row: AnyFloats) -> Role:
        """Return the role in which token t adds column_t ⊗ row_t; both [S, N, d]."""
        width = self.x.shape[-1]
        left, right = self.update.query, self.update.key  # [d, S·N]
        columns, rows = column.reshape(-1, width), row.reshape(-1, width)  # [S·N, d]
        # ⟨column ⊗ row, U⟩, through the smaller of U and its factors
        if left.shape[1] <= width:
            inner = ((columns @ left) * (rows @ right)).sum(1)  # [S·N]
        else:
            inner = (columns * (rows @ self.update.dense().T)).sum(1)
        energy = self.update.norm() ** 2
        share = inner / energy if energy else np.full_like(inner, math.nan)
        norm = np.linalg.norm(column, axis=-1) * np.linalg.norm(row, axis=-1)  # [S, N]
        return Role(column, row, norm, share.reshape(norm.shape))

    def _known_weights(self, wanted: str) -> WeightTerms:
        if self.weights is None:
            raise LayoutError(f"{self.label}: no {wanted}, only the update; {self.missing}")
        return self.weights


def describe_sequences(x: AnyFloats) -> str:
    """Return the shape of token vectors [S, N, d] in words."""
    return "{} × {} tokens of width {}".format(*x.shape)


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
