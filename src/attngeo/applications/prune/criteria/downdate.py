"""Costs that know what was removed before: with the refit (`RefitCosts`), and without it (`ErrorCosts`).

With K = (C + λI)⁻¹ over the entries that are left, the removal of a unit u costs, after the refit,

    tr(W_uᵀ (K_uu)⁻¹ W_u)        and changes   W ← W − K_·u (K_uu)⁻¹ W_u,   K ← K − K_·u (K_uu)⁻¹ K_u·

which is one block step of the elimination that the full refit would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from attngeo.applications.prune.calibration.measure import LayerMeasurement
from attngeo.applications.prune.criteria.greedy import UnitCost
from attngeo.applications.prune.removal.cut import blocks
from attngeo.arrays import Floats, Ints

RefitMeasure = Literal["stream", "sensitivity", "share"]
PENALTY = 1e-2  # λ, as a multiple of the mean diagonal of C
ROUNDING = 1e-7  # of the mean diagonal of C before it is centred: a smaller λ would not outweigh its rounding


class RefitCosts:
    """The cost of each unit after the refit, in one of three measures.

    stream:       tr(W_uᵀ (K_uu)⁻¹ W_u), the squared error relative to the stream
    sensitivity:  tr(W_uᵀ (K_uu)⁻¹ W_u Γ), the same error, each direction weighted by how much the loss depends on it
    share:        F_u · tr(W_uᵀ (K_uu)⁻¹ W_u Γ) / tr(W_uᵀ C_uu W_u Γ), the share of a unit's own output that the others
                  cannot give back, times the unit's Fisher information
    """

    def __init__(self, measured: LayerMeasurement, units: Sequence[tuple[int, ...]], measure: RefitMeasure) -> None:
        size, share = measured.layer.heads.size, measure == "share"
        moments = centred(measured)
        self._weight = measured.weight.copy()  # [n, d]
        self._inverse = np.linalg.inv(moments + _penalty(measured, moments) * np.eye(len(moments)))
        self._rows = {unit: blocks(heads, size) for unit, heads in enumerate(units)}
        metric = {"stream": None, "sensitivity": measured.sensitivity, "share": measured.gamma}[measure]
        self._factor = None if metric is None else _root(metric)
        self._fisher = [float(measured.gate_fisher[list(heads)].sum()) for heads in units] if share else None
        self._own = {unit: self._norm(moments[np.ix_(rows, rows)], rows) for unit, rows in self._rows.items()}

    def costs(self) -> dict[int, UnitCost]:
        found = {}
        for unit, rows in self._rows.items():
            unexplained = self._norm(np.linalg.inv(self._inverse[np.ix_(rows, rows)]), rows)
            share = unexplained / max(self._own[unit], 1e-300)
            if self._fisher is None:
                found[unit] = UnitCost(unexplained, {"own": self._own[unit], "unexplained_share": share})
            else:
                fisher = self._fisher[unit]
                found[unit] = UnitCost(fisher * share, {"fisher": fisher, "unexplained_share": share})
        return found

    def remove(self, unit: int) -> None:
        rows = self._rows.pop(unit)
        columns = self._inverse[:, rows]  # [n, u]
        step = columns @ np.linalg.inv(self._inverse[np.ix_(rows, rows)])  # [n, u]
        self._weight -= step @ self._weight[rows]
        self._inverse -= step @ columns.T

    def _norm(self, metric: Floats, rows: Ints) -> float:
        """Return tr(W_uᵀ metric W_u), with Γ at the end if there is one."""
        weight = self._weight[rows]  # [u, d]
        weight = weight if self._factor is None else weight @ self._factor
        return float(np.sum(weight * (metric @ weight)))


class ErrorCosts:
    """By how much the removal of a unit raises the error without a refit, ‖z_R W_R‖², cross-terms included."""

    def __init__(self, measured: LayerMeasurement, units: Sequence[tuple[int, ...]]) -> None:
        heads, size = measured.layer.heads.queries, measured.layer.heads.size
        rows = len(measured.weight)
        product = measured.moments.fit[:rows, :rows] * (measured.weight @ measured.weight.T)  # [n, n]
        by_head = product.reshape(heads, size, heads, size).sum((1, 3))  # [H, H], tr(W_hᵀ C_he W_e)
        member = np.zeros((len(units), heads))
        for unit, members in enumerate(units):
            member[unit, list(members)] = 1
        self._products = member @ by_head @ member.T  # [U, U]
        self._removed: list[int] = []

    def costs(self) -> dict[int, UnitCost]:
        own = np.diag(self._products)
        total = own + 2 * self._products[:, self._removed].sum(1)
        return {
            unit: UnitCost(float(total[unit]), {"own": float(own[unit])})
            for unit in range(len(own))
            if unit not in self._removed
        }

    def remove(self, unit: int) -> None:
        self._removed.append(unit)


def centred(measured: LayerMeasurement) -> Floats:
    """Return C [H·r, H·r]; with a bias, which gives back the mean of what is lost, about its mean."""
    moments = measured.moments.fit
    if not measured.biased:
        return moments
    mean = moments[:-1, -1]
    centred: Floats = moments[:-1, :-1] - np.outer(mean, mean) / max(moments[-1, -1], 1e-300)
    return centred


def _penalty(measured: LayerMeasurement, moments: Floats) -> float:
    """Return λ; it is positive even where all heads of the layer have zero outputs, or constant ones before a bias."""
    uncentred = np.diag(measured.moments.fit)[: len(moments)]
    return max(PENALTY * float(np.mean(np.diag(moments))), ROUNDING * float(np.mean(uncentred)), 1e-30)


def _root(gamma: Floats) -> Floats:
    """Return F with F Fᵀ = Γ, in the dtype and shape of Γ."""
    values, vectors = np.linalg.eigh(gamma)
    root: Floats = vectors * np.sqrt(values.clip(0))
    return root
