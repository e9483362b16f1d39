"""The spectra of the symmetric and the skew-symmetric part of a form M = W_q W_kᵀ, from its factors.

    S = (M + Mᵀ)/2 = ½ W [0 I; I 0] Wᵀ       real eigenvalues
    N = (M − Mᵀ)/2 = ½ W [0 I; −I 0] Wᵀ      imaginary eigenvalues, in pairs ±iλ

with W = [W_q W_k], of shape [d, 2r]. The QR factorisation W = U R moves both into the span of W, where they are 2r×2r
matrices with the same eigenvalues apart from zeros. The squares of all eigenvalues add up to ‖M‖²: to (1 + s)/2 of it
in the symmetric part and to (1 − s)/2 of it in the skew part, with s the symmetry of M.
"""

from __future__ import annotations

import numpy as np

from attngeo.arrays import AnyFloats, Floats


def part_spectra(query: AnyFloats, key: AnyFloats) -> tuple[Floats, Floats]:
    """Return the eigenvalues of the symmetric part, and those of the skew part divided by i, each `[min(2r, d)]`.

    query: [d, r], W_q
    key:   [d, r], W_k

    Both are sorted, largest first. The spectrum of the skew part is its own negative.

    >>> import numpy as np
    >>> query = np.eye(3)[:, :2]
    >>> key = query @ [[1, 1], [-1, 1]]  # M: the identity and a rotation in a plane
    >>> [spectrum.round(6).tolist() for spectrum in part_spectra(query, key)]
    [[1.0, 1.0, 0.0], [1.0, 0.0, -1.0]]
    """
    left, right = query.astype(np.float64), key.astype(np.float64)
    d, r = left.shape
    if 2 * r < d:
        reduced = np.linalg.qr(np.hstack([left, right])).R  # [2r, 2r]
        left, right = reduced[:, :r], reduced[:, r:]
    form = left @ right.T  # [n, n], n = min(2r, d)
    symmetric = np.linalg.eigvalsh((form + form.T) / 2)[::-1]
    skew = np.linalg.eigvalsh((form - form.T) / 2j)[::-1]  # Hermitian
    return np.asarray(symmetric), np.asarray((skew - skew[::-1]) / 2)
