"""How well `organize` recovers planted trees: `python -m bench.organization_planted`.

The figure is the total l1 norm of the Haar coefficients, divided by that along the planted trees. `organize` is
compared with variants: without the refining round, with more iterations, with only the coarse joins of every tree
refined (from about COARSE folders up) or only the fine ones, and with refining alone. Refining optimises the l1 norm,
so a second figure does not depend on it: the correlation, over all pairs of elements, of their closeness (the size of
the smallest folder that contains both) in the trees of `organize` and in the planted trees, averaged over the axes.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import numpy as np

from attngeo.organization import Tree, haar_tree, organize, planted
from attngeo.organization.agreement import closeness_correlation
from attngeo.organization.grow import expanded_slices
from attngeo.organization.haar import forward

SHAPES = ((64, 64, 24), (128, 128, 48), (96, 150, 37), (256, 256, 128))
SEEDS = range(5)
WORST, MEDIAN = 1.10, 1.05
COARSE = 16  # number of folders on the level that separates coarse from fine joins

Trees = tuple[Tree, ...]


def l1(array: np.ndarray, trees: Trees) -> float:
    """Return the total l1 norm of the Haar coefficients along the trees."""
    return float(np.abs(forward(array, dict(enumerate(trees)))).sum())


def likeness(trees: Trees, planted_trees: Trees) -> float:
    """Return the mean over the axes of the correlation of closeness."""
    return statistics.mean(closeness_correlation(*pair) for pair in zip(trees, planted_trees, strict=True))


def middle(tree: Tree) -> int:
    """Return the first level with at least COARSE folders."""
    return next(level for level, width in enumerate(tree.widths) if width >= COARSE)


def coarse_joins_refined(slices: np.ndarray, tree: Tree) -> Tree:
    """Return `tree` with the levels above its middle rebuilt."""
    level = middle(tree)
    labels = tree.levels[level]
    sizes = np.bincount(labels)
    means = np.stack([slices[labels == folder].mean(0) for folder in range(len(sizes))])
    above, _ = haar_tree(means, sizes)
    return Tree(np.concatenate([above.levels[:-1, labels], tree.levels[level:]]))


def all_joins_refined(slices: np.ndarray, tree: Tree) -> Tree:
    """Return the Haar tree of the slices, whatever `tree` is."""
    return haar_tree(slices)[0]


def fine_joins_refined(slices: np.ndarray, tree: Tree) -> Tree:
    """Return `tree` with the levels below its middle rebuilt, folder by folder."""
    level = middle(tree)
    labels = tree.levels[level]
    members = [np.flatnonzero(labels == folder) for folder in range(labels.max() + 1)]
    inside = [haar_tree(slices[chosen])[0].levels for chosen in members]
    below = np.empty((max(map(len, inside)), tree.size), np.int64)
    for folder, (chosen, levels) in enumerate(zip(members, inside, strict=True)):
        rows = np.minimum(np.arange(len(below)), len(levels) - 1)  # shallow trees repeat their last level
        below[:, chosen] = folder * tree.size + levels[rows]
    return Tree(np.concatenate([tree.levels[:level], below]))


def refined(array: np.ndarray, trees: Trees, rebuild: Callable[[np.ndarray, Tree], Tree]) -> Trees:
    """Return the trees after rebuilding each axis in turn, in the order of the refining round."""
    by_axis = dict(enumerate(trees))
    for axis in (2, 0, 1):
        by_axis[axis] = rebuild(expanded_slices(array, axis, by_axis), by_axis[axis])
    return tuple(by_axis[axis] for axis in range(3))


def variants(array: np.ndarray) -> dict[str, Trees]:
    """Return the trees of `organize` and of its variants."""
    unrefined = organize(array, refine=False).trees
    dyadic = tuple(Tree.dyadic(n) for n in array.shape)
    return {
        "organize": organize(array).trees,
        "without refining": unrefined,
        "without, 6 iterations": organize(array, refine=False, iterations=6).trees,
        f"coarse joins refined (from {COARSE} folders up)": refined(array, unrefined, coarse_joins_refined),
        "fine joins refined (those below)": refined(array, unrefined, fine_joins_refined),
        "refining alone, twice, from dyadic trees": refined(
            array, refined(array, dyadic, all_joins_refined), all_joins_refined
        ),
        "dyadic": dyadic,
    }


def print_row(name: str, row: list[float]) -> None:
    """Print the figures of all seeds and their median."""
    print(f"  {name:42s} {' '.join(f'{x:6.3f}' for x in row)}   {statistics.median(row):6.3f}", flush=True)


def main() -> int:
    met = True
    for shape in SHAPES:
        ratios: dict[str, list[float]] = {}
        correlations: dict[str, list[float]] = {}
        for seed in SEEDS:
            array, trees = planted(shape, seed)
            own = l1(array, trees)
            for variant, result in variants(array).items():
                ratios.setdefault(variant, []).append(l1(array, result) / own)
                correlations.setdefault(variant, []).append(likeness(result, trees))
        print(f"{shape}: total l1 divided by that of the planted trees, seeds 0 to 4 and their median")
        for variant, row in ratios.items():
            print_row(variant, row)
        print(f"{shape}: correlation of closeness with the planted trees")
        for variant in ("organize", "without refining"):
            print_row(variant, correlations[variant])
        met &= max(ratios["organize"]) <= WORST and statistics.median(ratios["organize"]) <= MEDIAN
    verdict = "met" if met else "missed"
    print(f"organize: target of at most {WORST:g} for every seed and {MEDIAN:g} in the median: {verdict}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
