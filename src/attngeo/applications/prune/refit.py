"""Refit the output projection of a layer that loses heads, so that the heads that stay give back what is lost.

Removing the heads R loses z_R W_R. The refit minimises Σ_t ‖z_t W_o − z_{t,S} W‖² + λ‖W − W_S‖² over W:

    W = W_S + (C_SS + λI)⁻¹ C_SR W_R

λ is chosen on held-out tokens. Where the projection has a bias, z ends with the constant 1, which always stays and is
not penalised; its row of W is added to the bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngeo.applications.prune.calibration.statistics import LayerMoments
from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # λ, as a multiple of the mean diagonal of C


@dataclass(frozen=True, eq=False)
class Refit:
    """The change of one layer's output projection."""

    weight: Floats  # [|S|, d], what is added to the rows that stay
    bias: Floats | None  # [d], what is added to the bias; None: there is none
    penalty: float  # the chosen λ, as a multiple of the mean diagonal of C; infinite: the weights stay as they are
    lost: float  # error on held-out tokens without the refit: tr(W_Rᵀ C_RR W_R)
    left: float  # error on held-out tokens with it


def refit_layer(moments: LayerMoments, weight: Floats, stays: Ints) -> Refit:
    """Return the refit of a layer of which the rows `stays` of W_o [H·r, d] are kept.

    >>> z = np.random.default_rng(0).normal(size=(200, 2))
    >>> z = np.hstack([z, z @ [[1.0], [1.0]]])  # the third entry is the sum of the other two
    >>> moments = LayerMoments(z.T @ z, z.T @ z, 200)
    >>> refit = refit_layer(moments, np.array([[0.0], [0.0], [3.0]]), np.array([0, 1]))
    >>> refit.weight.round(1).tolist(), refit.penalty, bool(refit.left < 0.01 * refit.lost)
    ([[3.0], [3.0]], 0.001, True)
    """
    rows, width = weight.shape
    biased = len(moments.fit) > rows
    gone = np.setdiff1d(np.arange(rows), stays)
    inside = np.append(stays, rows) if biased else stays  # the constant is the last entry
    lost = _error(moments.held_out, inside, gone, np.zeros((len(inside), width)), weight)
    best = Refit(np.zeros((len(stays), width)), np.zeros(width) if biased else None, np.inf, lost, lost)
    for penalty in PENALTIES:
        change = solve(moments.fit, inside, gone, weight, penalty, biased)  # [|S| (+ 1), d]
        left = _error(moments.held_out, inside, gone, change, weight)
        if left < best.left:
            best = Refit(change[: len(stays)], change[-1] if biased else None, penalty, lost, left)
    return best


def solve(moments: Floats, inside: Ints, gone: Ints, weight: Floats, penalty: float, biased: bool) -> Floats:
    """Return (C_SS + λI)⁻¹ C_SR W_R, with the constant, if there is one, as the last entry of S and unpenalised.

    It is 0 where C_SR W_R = 0, as in a layer whose heads all have zero outputs: C_SS may then be singular for any λ.
    """
    rows = len(weight)
    shared = moments[np.ix_(inside, gone)] @ weight[gone]  # [|S| (+ 1), d]
    if not shared.any():
        return np.zeros_like(shared)
    scale = float(np.trace(moments[:rows, :rows])) / rows  # the mean diagonal of C
    diagonal = np.full(len(inside), penalty * scale)
    if biased:
        diagonal[-1] = 0
    matrix = moments[np.ix_(inside, inside)] + np.diag(diagonal)
    try:
        change = np.asarray(np.linalg.solve(matrix, shared), np.float64)
    except np.linalg.LinAlgError:
        change = np.full((len(inside), weight.shape[1]), np.nan)
    if not np.isfinite(change).all():
        raise InputError("refit: is not finite; the head outputs on the calibration inputs are not finite")
    return change


def _error(moments: Floats, inside: Ints, gone: Ints, change: Floats, weight: Floats) -> float:
    """Return the mean of ‖z_R W_R − z_S·change‖² over the tokens of `moments`."""
    entries = np.concatenate([inside, gone])
    difference = np.concatenate([-change, weight[gone]])  # [n, d]
    return float(np.sum(difference * (moments[np.ix_(entries, entries)] @ difference)))
