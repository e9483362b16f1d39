"""Trees in words and what the pictures must be able to draw."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from attngeo.organization import NetworkTensor, Tree, expand, organize
from attngeo.show.canvas import token_label, save_figure
from attngeo.show.matrix_figures import slices_figure
from attngeo.show.organization_figures import heads_figure, sparsity_figure, trees_figure
from attngeo.show.organization_text import compact, smallest_folders, summary, tree_text


def test_tree_text() -> None:
    tree = Tree([[0] * 6, [0, 0, 0, 0, 1, 1], [0, 1, 0, 0, 2, 2], [0, 1, 2, 3, 4, 5]])
    labels = ("L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2")
    assert tree_text(tree, labels, levels=[1, 2]).splitlines() == [
        "6",
        "├─ 4",
        "│  ├─ 3  L0H0,2 L1H0",
        "│  └─ 1  L0H1",
        "└─ 2  L1H1,2",
    ]
    assert tree_text(tree, labels, levels=[1]).splitlines() == ["6", "├─ 4  L0H0,1,2 L1H0", "└─ 2  L1H1,2"]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 40])
def test_tree_text_names_every_element_once(n: int) -> None:
    text = tree_text(Tree.dyadic(n), [f"x{place}y" for place in range(n)])
    assert all(text.count(f"x{place}y") == (1 if n > 3 else text.count("x0y")) for place in range(n))


def test_compact() -> None:
    assert compact(["L10H2", "L2H11", "L2H3", "L2H0"]) == "L2H0,3,11 L10H2"
    assert compact(["5", "1"]) == "1 5"


def test_smallest_folders() -> None:
    tree = Tree([[0] * 6, [0, 0, 0, 0, 1, 1], [0, 1, 0, 0, 2, 2], [0, 1, 0, 3, 2, 2], [0, 1, 2, 3, 4, 5]])
    assert smallest_folders(tree) == [[0, 2], [4, 5]]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 1), (1, 4, 5), (3, 2), (9, 40, 90)])
def test_every_shape_can_be_summed_up_and_drawn(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    found = organize(values)
    expansion = expand(found.values, found.trees)
    comparison = expansion.compare()
    assert " × ".join(map(str, shape)) in summary(found, expansion, comparison)
    figures = [slices_figure(found), trees_figure(found), sparsity_figure(comparison)]
    if len(shape) == 3:
        figures.append(heads_figure(found))
    for figure in figures:
        picture = io.BytesIO()
        save_figure(figure, picture)
        assert picture.tell() > 2000


def test_tokens_that_look_like_formulas_or_have_no_letter_in_the_font() -> None:
    tokens = ("$", "$x$", "Ġthe", "▁of", "深", "Ċ", "##ing", "averyverylongtoken")
    assert token_label("Ġthe") == "the" and token_label("▁") == "␣" and token_label("averyverylongtoken") == "averyverylo…"
    values: Any = np.random.default_rng(0).normal(size=(8, 8, 4))
    found = organize(NetworkTensor(values, queries=tokens, keys=tokens))
    save_figure(slices_figure(found), io.BytesIO())
    save_figure(trees_figure(found), io.BytesIO())
