"""Draw a form with a high and a form with a low value of each finer figure, for docs/scores.md.

    python -m tools.form_pictures [docs/images/forms]

Each picture shows the entries of two small made-up forms M = W_q W_kᵀ; the values in the titles are those that
`attngeo.Form` gives for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attngeo import Form, RotaryPairs
from attngeo.arrays import Floats
from attngeo.show.matplotlib import new_figure, panel_title, save_figure

D = 24  # width of the forms
OFFSET = 3  # at which rotating forms are drawn
COLOUR_MAP = "PuOr_r"  # orange above 0, purple below: distinguishable with every kind of colour vision


def waves(count: int = D) -> Floats:
    """Return orthonormal cosine waves as columns, `[D, count]`."""
    grid = np.arange(D)
    basis = np.cos(np.pi * (grid[:, None] + 0.5) * grid / D)  # [D, D]
    basis /= np.linalg.norm(basis, axis=0)
    return basis[:, :count]


def unequal(strength: float) -> Floats:
    """Return a Gaussian factor of which every sixth row is larger by `strength`, `[D, D]`."""
    factor: Floats = np.random.default_rng(0).normal(size=(D, D))
    factor[3::6] *= strength
    return factor


def signs(count: int) -> Floats:
    """Return a diagonal of random signs, `[count, count]`."""
    return np.diag(np.random.default_rng(0).choice([-1.0, 1.0], size=count))


def turns(count: int) -> Floats:
    """Return a block-diagonal matrix of quarter turns, `[count, count]`."""
    return np.kron(np.eye(count // 2), np.array([[0.0, -1.0], [1.0, 0.0]]))


# Figure → how `Form` computes it, and its two forms with what distinguishes them.
FORMS: dict[str, tuple[Callable[[Form], float], dict[str, Form]]] = {
    "dominance": (
        Form.dominance,
        {
            "a few large rows": Form(unequal(4.0), np.random.default_rng(1).normal(size=(D, D))),
            "a few large columns": Form(np.random.default_rng(1).normal(size=(D, D)), unequal(4.0)),
        },
    ),
    "self_attending": (
        Form.self_attending,
        {
            "tokens attend to themselves": Form(waves(12), waves(12)),
            "tokens turn away from themselves": Form(-waves(12), waves(12)),
        },
    ),
    "rank_symmetric": (
        lambda form: form.effective_ranks()[0],
        {
            "symmetric, many directions": Form(waves() @ signs(D), waves()),
            "symmetric, one direction": Form(waves(3)[:, 2:], waves(3)[:, 2:]),
        },
    ),
    "rank_skew": (
        lambda form: form.effective_ranks()[1],
        {
            "skew-symmetric, many directions": Form(waves() @ turns(D), waves()),
            "skew-symmetric, two directions": Form(waves(3)[:, 1:] @ turns(2), waves(3)[:, 1:]),
        },
    ),
}

FREQUENCIES = RotaryPairs.halves(0.5 ** np.arange(4.0))  # of heads of size 8
SWAPPED = np.eye(8)[[1, 0, 3, 2, 5, 4, 7, 6]]  # exchanges pairs of different frequencies
ROTATING = {
    "W_q = W_k": Form(waves(8), waves(8), FREQUENCIES),
    "W_q = W_k with pairs exchanged": Form(waves(8) @ SWAPPED, waves(8), FREQUENCIES),
}


def draw_matrix(ax: Axes, matrix: Floats, title: str, note: str) -> None:
    """Draw the entries of a matrix, 0 white."""
    largest = np.abs(matrix).max()
    ax.imshow(matrix, cmap=COLOUR_MAP, vmin=-largest, vmax=largest, interpolation="nearest")
    panel_title(ax, title)
    ax.set_xlabel(note, fontsize=8)
    ax.set_xticks([])
    ax.set_yticks([])


def two_decimals(value: float) -> str:
    """Return a value as titles show it, without a sign before 0."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def pair_figure(name: str) -> Figure:
    """Draw the form with a high and the form with a low value of one figure."""
    value, forms = FORMS[name]
    figure = new_figure(6.4, 3.8)
    for ax, (note, form) in zip(figure.subplots(1, 2), forms.items(), strict=True):
        draw_matrix(ax, form.dense().astype(np.float64), f"{name} {two_decimals(value(form))}", note)
    return figure


def rotating_figure() -> Figure:
    """Draw M_Δ beside M_{−Δ}ᵀ for a form that is symmetric at all offsets and one that is so at offset 0 alone."""
    figure = new_figure(6.4, 7.2)
    for row, (note, form) in zip(figure.subplots(2, 2), ROTATING.items(), strict=True):
        here, there = (form.at(offset).dense().astype(np.float64) for offset in (OFFSET, -OFFSET))
        values = {"symmetry_rope": form.rope_symmetry(), "symmetry": form.symmetry()}
        titles = [f"{name} {two_decimals(value)}" for name, value in values.items()]
        draw_matrix(row[0], here, titles[0], f"M at offset {OFFSET}; {note}")
        draw_matrix(row[1], there.T, titles[1], f"M at offset −{OFFSET}, rows and columns exchanged")
    return figure


def main(arguments: Sequence[str]) -> None:
    """Write one picture per figure to a folder."""
    folder = Path(arguments[0] if arguments else "docs/images/forms")
    folder.mkdir(parents=True, exist_ok=True)
    for name in FORMS:
        save_figure(pair_figure(name), folder / f"{name}.png")
    save_figure(rotating_figure(), folder / "symmetry_rope.png")


if __name__ == "__main__":
    main(sys.argv[1:])
