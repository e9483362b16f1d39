"""What one backward pass says about the forms: rank-1 terms, what tokens add in either role, the step itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attngeo.display import draw
from attngeo.errors import InputError, LayoutError
from attngeo.weights.scoring.factored import variation
from attngeo.weights.scoring.form import Form

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class WeightTerms:
    """Query and key weights of a layer, row vectors as everywhere, and the gradients that β, x, q̂, k̂ give them."""

    query: Floats  # [H, d, r]
    key: Floats  # [G, d, r]
    query_gradient: Floats  # [H, d, r], −c Xᵀ[(β k̂) rotated back]
    key_gradient: Floats  # [G, d, r], −c Xᵀ[(βᵀ q̂) rotated back], summed over the query heads of a group


@dataclass(frozen=True, eq=False)
class LayerTerms:
    """One layer: S sequences (a batch, once for every use of a shared layer) of N tokens, H heads, G key heads."""

    stack: str
    layer: int
    labels: tuple[str, ...]  # "L3H7", behind the stack's name where there are several
    x: Floats  # [S, N, d]
    beta: Floats  # [S, H, N, N]
    query: Floats  # [S, H, N, r], q̂ as multiplied: bias, rotation and norm included
    key: Floats  # [S, G, N, r]
    scale: float  # c
    weights: WeightTerms | None
    missing: str = ""  # why there are no weights

    def __repr__(self) -> str:
        return f"LayerTerms({self.stack} {self.layer}, {self.beta.shape[1]} heads, {_shape(self.x)})"

    def head(self, head: int) -> HeadTerms:
        """One head, sharing the arrays."""
        group = head // (self.beta.shape[1] // self.key.shape[1])
        sides = None
        if self.weights is not None:
            w = self.weights
            sides = WeightTerms(w.query[head], w.key[group], w.query_gradient[head], w.key_gradient[group])
        beta, query, key = self.beta[:, head], self.query[:, head], self.key[:, group]
        label, missing = self.labels[head], self.missing
        return HeadTerms(label, self.stack, self.layer, head, self.x, beta, query, key, self.scale, sides, missing)


@dataclass(frozen=True, eq=False)
class Role:
    """What each token adds to the update in one role: the rank-1 matrix column ⊗ row.

    As context, many tokens' vectors in the column space and its own in the row space; as prediction the reverse.
    """

    column: Floats  # [S, N, d]
    row: Floats  # [S, N, d]
    norm: Floats  # [S, N], ‖column‖‖row‖
    share: Floats  # [S, N], ⟨column ⊗ row, U⟩/‖U‖²: of the update, sums to 1


@dataclass(frozen=True)
class UpdateScores:
    """One head's update in figures; NaN where it is zero."""

    label: str
    stack: str
    layer: int
    head: int
    norm: float
    symmetry: float
    directionality: float
    row_spread: float  # std of the row norms over their mean
    column_spread: float
    pairing: float  # Σ β_ij β_ji / Σ β_ij² over i ≠ j: 1 where paired terms are alike, 0 under a causal mask


@dataclass(frozen=True, eq=False)
class HeadTerms:
    """One head: token vectors x, coefficients β = −∂L/∂Â, and what they make of the form.

    The update U = −G = c Σ β_ij x_i x_jᵀ = c·XᵀβX is kept as its factors X and c·βX; G = ∂L/∂E at E = 0, where
    c·X E Xᵀ is added to the head's products q̂ k̂ᵀ, before soft-cap and bias.
    """

    label: str
    stack: str
    layer: int
    head: int
    x: Floats  # [S, N, d]
    beta: Floats  # [S, N, N]
    query: Floats  # [S, N, r]
    key: Floats  # [S, N, r]
    scale: float
    weights: WeightTerms | None  # of this head: [d, r] each; the key's gradient is that of its whole group
    missing: str = ""

    def __repr__(self) -> str:
        return f"HeadTerms({self.label}, {_shape(self.x)})"

    @cached_property
    def update(self) -> Form:
        """U = −G, rows the predicted side and columns the context side; symmetry, directionality, norms, `dense()`."""
        width = self.x.shape[-1]
        return Form(self.x.reshape(-1, width).T, self._predicted.reshape(-1, width).T)

    def gradient(self) -> Floats:
        """G = ∂L/∂E, [d, d]."""
        return -self.update.dense()

    @cached_property
    def context(self) -> Role:
        """Token t as context: c (Σ_i β_it x_i) x_tᵀ."""
        return self._role(self.scale * (self.beta.swapaxes(1, 2) @ self.x), self.x)

    @cached_property
    def prediction(self) -> Role:
        """Token t as prediction: c x_t (Σ_j β_tj x_j)ᵀ."""
        return self._role(self.x, self._predicted)

    @cached_property
    def scores(self) -> UpdateScores:
        """Symmetry and directionality of the update itself, the spread of its norms, how alike paired terms are."""
        update = self.update
        beta = self.beta.astype(np.float64) * ~np.eye(self.beta.shape[1], dtype=bool)
        total = float(np.vdot(beta, beta))
        pairing = float(np.vdot(beta, beta.swapaxes(1, 2))) / total if total else math.nan
        return UpdateScores(
            self.label,
            self.stack,
            self.layer,
            self.head,
            update.norm(),
            update.symmetry(),
            update.directionality(),
            variation(update.row_norms()),
            variation(update.column_norms()),
            pairing,
        )

    @property
    def form(self) -> Form:
        """M = W_q W_kᵀ as it stands."""
        weights = self._weights("form")
        return Form(weights.query, weights.key)

    def change(self, eta: float = 1.0) -> Form:
        """δM = −η(∂L/∂W_q W_kᵀ + W_q (∂L/∂W_k)ᵀ), the first-order change of M in a step of plain gradient descent.

        Without bias, rotation, QK-norm and shared keys this is −η(G W_kW_kᵀ + W_qW_qᵀG).
        """
        w = self._weights("change")
        return Form(
            np.concatenate([-eta * w.query_gradient, w.query], 1),  # [d, 2r]
            np.concatenate([w.key, -eta * w.key_gradient], 1),
        )

    @cached_property
    def _predicted(self) -> Floats:
        """c·βX, [S, N, d]."""
        made: Floats = self.scale * (self.beta @ self.x)
        return made

    def _role(self, column: Floats, row: Floats) -> Role:
        width = self.x.shape[-1]
        left, right = self.update.query, self.update.key  # [d, S·N]
        columns, rows = column.reshape(-1, width), row.reshape(-1, width)  # [S·N, d]
        if left.shape[1] <= width:
            inner = ((columns @ left) * (rows @ right)).sum(1)
        else:
            inner = (columns * (rows @ self.update.dense().T)).sum(1)
        energy = self.update.norm() ** 2
        share = inner / energy if energy else np.full_like(inner, math.nan)
        norm = np.linalg.norm(column, axis=-1) * np.linalg.norm(row, axis=-1)
        return Role(column, row, norm, share.reshape(norm.shape))

    def _weights(self, what: str) -> WeightTerms:
        if self.weights is None:
            raise LayoutError(f"{self.label}: no {what}, only the update; {self.missing}")
        return self.weights


@dataclass(frozen=True, eq=False)
class GradientTerms:
    """What one backward pass does to the form of every self-attention head.

    Kept in memory, per layer: x and q̂, k̂ (S·N·d each at most), β (S·H·N²), and the query and key weights with their
    gradients. Nothing d×d until `gradient()` or `update.dense()` is asked for.

    >>> terms = attngeo.gradient_terms(model, {"input_ids": ids, "labels": labels})
    >>> terms["L3H7"].update.symmetry(), terms["L3H7"].context.norm
    """

    loss: float
    layers: tuple[LayerTerms, ...]
    name: str = ""  # the model, for titles

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
        raise InputError(f"head {label!r}: not among {self.labels[0]} … {self.labels[-1]}")

    @cached_property
    def scores(self) -> tuple[UpdateScores, ...]:
        """Every head's update in figures."""
        return tuple(head.scores for head in self)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The scores as a tidy polars frame, a row for each head."""
        import polars as pl

        return pl.DataFrame([asdict(row) for row in self.scores])

    @property
    def largest(self) -> str:
        """The head with the largest update."""
        return max(self.scores, key=lambda row: row.norm).label

    @cached_property
    def by_position(self) -> dict[str, dict[str, Floats]]:
        """Stack → role → [N]: what tokens at a position add (norm) over the mean of their sequence, over all heads."""
        found: dict[str, dict[str, list[Floats]]] = {}
        for head in self:
            roles = found.setdefault(head.stack, {"context": [], "prediction": []})
            for name, role in (("context", head.context), ("prediction", head.prediction)):
                means = role.norm.mean(1, keepdims=True)  # [S, 1]
                roles[name].append((role.norm / np.where(means > 0, means, 1)).mean(0))
        return {
            stack: {name: np.mean(heads, axis=0) for name, heads in roles.items()} for stack, roles in found.items()
        }

    def figure(self, head: str | None = None, tokens: Sequence[str] = ()) -> Figure:
        """β of one head (the one with the largest update), what tokens add by role and position, every head's scores.

        tokens   names of the positions of the first sequence
        """
        return draw("gradient_figure", [self], heads=[head], tokens=[tokens])

    def __repr__(self) -> str:
        heads = f"{len(self)} heads in {len(self.layers)} layers"
        return f"GradientTerms(loss {self.loss:.6g}, {heads}, {_shape(self.layers[0].x)})"


def _shape(x: Floats) -> str:
    return "{} × {} tokens of width {}".format(*x.shape)
