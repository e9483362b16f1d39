"""The organised attention of all heads for a browser, in a page and in a notebook.

attention_data      an organised network as the plain data from which `assets/attention.js` rebuilds and draws any head
attention_section   the section of a page that holds it
attention_view      the widget of a notebook that shows it, without any server

Quantised coefficients are two whole numbers each. All numbers of a kind stand one after the other as bytes, first the
lowest byte of each, then the next; the bytes are compressed with gzip and written in base64:

    gap    4 bytes: distance of its position from the one before it in the same head column (the first: from −1) minus 1
    code   2 bytes: 2 |level|, and 1 more where the level is negative
"""

from __future__ import annotations

import base64
import gzip
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.organization.quantised import ENERGY, HEAD_ENERGY, QuantisedExpansion, quantise
from attngeo.organization.tree import Tree
from attngeo.show.organization import AXES, axis_labels, compact_labels, slices_figure
from attngeo.show.page import Section
from attngeo.show.page.document import widget_assets
from attngeo.show.plotly import rounded

if TYPE_CHECKING:
    from attngeo.organization.organize import Organization

_READING = (
    "Each row is a query and each column a key, both in the order of their trees, which are drawn at the margins: "
    "positions that attend, or are attended to, in the same way lie side by side, so structure shows as blocks. Pick a "
    "head in the tree, in the layer × head map or in the list; heads that are close in the tree "
    "have similar colours. A click on a branch of a query or key tree enlarges it. The slider says from how many Haar "
    "coefficients the picture is made: with few, only coarse blocks appear."
)


def attention_section(organization: Organization) -> Section:
    """Return the section with the attention of every head of an organised network.

    >>> section = attention_section(organize(planted((16, 12, 8), seed=0)[0]))
    >>> section.notes[0]
    'The page holds 99.9% of the energy of all heads, at least 99.9% of each head.'
    """
    data = attention_data(organization)
    least, held = min(data["headShares"][-1]), data["shares"][-1]
    notes = [f"The page holds {_percent(held)} of the energy of all heads, at least {_percent(least)} of each head."]
    if data["short"]:
        notes.append(
            f"Less than {_percent(HEAD_ENERGY)} of the energy is held of {len(data['short'])} heads, whose pictures "
            f"are coarser: {compact_labels(data['short'])}."
        )
    if held < ENERGY:
        notes.append(f"The tensor is too large for the page: less than {_percent(ENERGY)} of its energy is held.")
    return Section("attention", "Organised attention of single heads", _READING, (), tuple(notes), data)


def _percent(share: float) -> str:
    """Return a share as a percentage that is never rounded up.

    >>> _percent(0.99999)
    '99.9%'
    """
    return f"{int(1000 * max(share, 0)) / 10:g}%"


def attention_data(organization: Organization) -> dict[str, Any]:
    """Return the data from which the page draws the attention of every head: labels, trees and packed coefficients.

    >>> organization = organize(planted((16, 12, 8), seed=0)[0])
    >>> data = attention_data(organization)
    >>> data["shape"], data["heads"][:2], data["shares"][-1] >= 0.99, data["short"]
    ([16, 12, 8], ['0', '1'], True, [])
    """
    trees, values = organization.trees, organization.values
    labels = [list(axis_labels(organization, axis)) for axis in range(len(trees))]
    if len(trees) == 2:  # a matrix is a single head
        trees, values, labels = (*trees, Tree.dyadic(1)), values[:, :, None], [*labels, ["L0H0"]]
    kept = quantise(values, trees)
    short = np.flatnonzero((kept.head_shares[-1] < HEAD_ENERGY) & (kept.norms > 0))
    return {
        "name": getattr(organization.tensor, "name", ""),
        "stage": getattr(organization.tensor, "stage", "values"),
        "shape": list(values.shape),
        **dict(zip(AXES, labels, strict=True)),
        "trees": [tree_data(tree) for tree in trees],
        "norms": rounded(kept.norms, 9),
        "step": kept.step,
        "stops": kept.stops.tolist(),
        "counts": kept.counts.tolist(),
        "shares": rounded(kept.shares, 7),
        "headShares": rounded(kept.head_shares, 7),
        "short": [labels[2][head] for head in short],
        **packed_coefficients(kept),
    }


def tree_data(tree: Tree) -> dict[str, Any]:
    """Return a tree for the page: the rotations of its inverse Haar transform, its order, and its folders to draw.

    Each folder is [first, end, top, bottom]: a range of positions in the order, and the levels where it appears.
    """
    first, second, cosine, _, source = tree.rotations.steps(inverse=True, dtype=np.float64)
    ordered = tree.levels[:, tree.order]  # [depth, n]
    folders: dict[tuple[int, int], list[int]] = {}
    for level, row in enumerate(ordered):
        bounds = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), tree.size]
        for span in pairwise(bounds):
            folders.setdefault(span, [level, level])[1] = level
    return {
        "first": first.tolist(),
        "second": second.tolist(),
        "cosine": rounded(cosine, 10),
        "source": source.tolist(),
        "order": tree.order.tolist(),
        "depth": tree.depth,
        "folders": [[*span, *levels] for span, levels in folders.items()],
    }


def packed_coefficients(kept: QuantisedExpansion) -> dict[str, Any]:
    """Return the number of coefficients per head column, and all of them."""
    previous = np.append(-1, kept.position[:-1])  # [n]
    previous[np.flatnonzero(np.diff(kept.column, prepend=-1))] = -1  # the first of each column
    gaps = kept.position - previous - 1
    codes = 2 * np.abs(kept.levels.astype(np.int32)) + (kept.levels < 0)
    planes = (gaps.astype("<u4").view("u1").reshape(-1, 4), codes.astype("<u2").view("u1").reshape(-1, 2))  # [n, bytes]
    packed = gzip.compress(b"".join(plane.T.tobytes() for plane in planes), 6, mtime=0)
    return {
        "columns": np.bincount(kept.column, minlength=kept.trees[2].size).tolist(),
        "packed": base64.b64encode(packed).decode("ascii"),
    }


def attention_view(organization: Organization) -> Any:
    """Return a widget that shows any head, with its trees; a figure of a few heads where anywidget is not installed."""
    try:
        widget = _widget_class()
    except ImportError:
        return slices_figure(organization)
    return widget(data=attention_data(organization))


@cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    class AttentionWidget(anywidget.AnyWidget):
        """The view of attention of a report; `data` is what `attention_data` returns."""

        _esm, _css = widget_assets()
        data = traitlets.Dict().tag(sync=True)

    return AttentionWidget
