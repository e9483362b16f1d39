"""An organised network in words: its head tree, which heads fold together, how sparse it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attngeo.organization.expansion.controls import Comparison
    from attngeo.organization.expansion.expansion import Expansion
    from attngeo.organization.organization import Organization
    from attngeo.organization.trees.tree import Tree

WIDTH = 100
_AXES = ("queries", "keys", "heads")
_SHOWN = 12  # folders, and heads at either end, before a list is cut


def summary(organization: Organization, expansion: Expansion, comparison: Comparison) -> str:
    """Everything a reader wants first, a section each."""
    parts = [_title(organization), _history(organization)]
    if len(organization.trees) == 3:
        labels = axis_labels(organization, 2)
        parts += [
            "the tree of the heads, a few of its levels\n" + tree_text(organization.trees[2], labels),
            _folded(organization, labels),
            _entropies(expansion, labels),
        ]
    else:
        parts.append(_entropies(expansion, ()))
    parts.append(
        "sparsity: l1 over l2, the share of coefficients that holds 90, 99, 99.9% of the energy, the mixed-Hölder\n"
        f"exponent; the trees, then controls\n{comparison}"
    )
    return "\n\n".join(parts) + "\n"


def axis_labels(organization: Organization, axis: int) -> tuple[str, ...]:
    """Names of the elements of an axis, numbers where a plain array has none."""
    named = getattr(organization.tensor, _AXES[axis], None)
    return tuple(named) if named else tuple(map(str, range(organization.trees[axis].size)))


def tree_text(tree: Tree, labels: Sequence[str], levels: Sequence[int] | None = None) -> str:
    """The tree drawn with lines, at the levels where the number of folders first reaches 2, 4, 8 and 16.

    >>> print(tree_text(Tree([[0, 0, 0], [0, 1, 0], [0, 1, 2]]), ("L0H0", "L0H1", "L1H0"), levels=[1]))
    3
    ├─ 2  L0H0 L1H0
    └─ 1  L0H1
    """
    if levels is None:
        wanted = [count for count in (2, 4, 8, 16) if count <= tree.size / 2]
        first = [next(level for level, width in enumerate(tree.widths) if width >= least) for least in wanted]
        levels = list(dict.fromkeys(level for level in first if tree.widths[level] < tree.size))
    order = [int(element) for element in tree.order]
    return "\n".join([str(tree.size), *_branches(tree, order, list(levels), labels, "")])


def _branches(tree: Tree, members: list[int], levels: list[int], labels: Sequence[str], indent: str) -> list[str]:
    folders: dict[int, list[int]] = {}
    while levels and len(folders) < 2:  # a level that does not split this folder says nothing
        folders = {}
        for element in members:
            folders.setdefault(int(tree.levels[levels[0], element]), []).append(element)
        levels = levels[1:]
    lines = []
    for place, inside in enumerate(folders.values()):
        last = place == len(folders) - 1
        deeper = indent + ("   " if last else "│  ")
        below = _branches(tree, inside, levels, labels, deeper)
        head = f"{indent}{'└─' if last else '├─'} {len(inside)}"
        if below:
            lines += [head, *below]
        else:
            names = wrap(compact(labels[element] for element in inside), max(30, WIDTH - len(deeper) - 4))
            lines += [f"{head}  {names[0]}", *(f"{deeper}   {more}" for more in names[1:])]
    return lines if len(folders) > 1 else []


def compact(labels: Iterable[str]) -> str:
    """Heads of one layer together: L0H1 L0H4 L2H3 → L0H1,4 L2H3."""
    found: dict[str, list[str]] = {}
    for label in labels:
        match = re.fullmatch(r"(L\d+H)(\d+)", label)
        found.setdefault(match[1] if match else label, []).append(match[2] if match else "")
    order = sorted(found, key=lambda stem: [int(number) for number in re.findall(r"\d+", stem)] or [-1])
    return " ".join(stem + ",".join(sorted(found[stem], key=lambda n: int(n or 0))) for stem in order)


def smallest_folders(tree: Tree) -> list[list[int]]:
    """The folders of several elements that no folder inside them shares: what folds together first."""
    found: list[list[int]] = []
    taken: set[int] = set()
    for row in tree.levels[::-1]:
        folders: dict[int, list[int]] = {}
        for element, folder in enumerate(row.tolist()):
            folders.setdefault(folder, []).append(element)
        for inside in folders.values():
            if len(inside) > 1 and not taken & set(inside):
                found.append(inside)
                taken |= set(inside)
    return found


def _title(organization: Organization) -> str:
    shape = " × ".join(map(str, organization.values.shape))
    name = getattr(organization.tensor, "name", "")
    stage = getattr(organization.tensor, "stage", "values")
    axes = " × ".join(_AXES[: len(organization.trees)])
    return f"{name + ': ' if name else ''}{stage}, {shape} ({axes})"


def _history(organization: Organization) -> str:
    lines = ["total l1 of the Haar coefficients, and how alike each tree is to the one before (1: the same)"]
    axes = _AXES[: len(organization.trees)]
    lines.append(f"{'':16}{'l1':>12}" + "".join(f"{axis:>10}" for axis in axes))
    count = 0
    for step in organization.history:
        count += step.stage == "iteration"
        name = f"iteration {count}" if step.stage == "iteration" else step.stage
        alike = "".join(f"{'' if value is None else f'{value:.3f}':>10}" for value in step.likeness)
        lines.append(f"{name:16}{step.l1:12.6g}{alike}")
    if organization.settled:
        lines.append("settled: the last iteration changed no tree")
    return "\n".join(lines)


def _folded(organization: Organization, labels: Sequence[str]) -> str:
    affinity = organization.affinities[2]
    ranked = []
    for inside in smallest_folders(organization.trees[2]):
        pairs = [affinity[a, b] for a in inside for b in inside if a < b]
        ranked.append((sum(pairs) / len(pairs), inside))
    ranked.sort(key=lambda pair: -pair[0])
    lines = ["heads that fold together first, nearest first (mean affinity: 1 the same)"]
    lines += [f"  {mean:.3f}  {compact(labels[element] for element in inside)}" for mean, inside in ranked[:_SHOWN]]
    if len(ranked) > _SHOWN:
        lines.append(f"  … and {len(ranked) - _SHOWN} more folders, to {ranked[-1][0]:.3f}")
    return "\n".join(lines)


def _entropies(expansion: Expansion, labels: Sequence[str]) -> str:
    network: Any = expansion.entropy("network"), expansion.entropy("network", normalised=True)
    lines = [f"entropy of the whole: l1 {network[0]:.6g}, over l2 {network[1]:.4g}"]
    if labels:
        heads = expansion.entropy("head", normalised=True)
        ranked = sorted(range(len(labels)), key=lambda head: heads[head])
        count = min(6, (len(ranked) + 1) // 2)
        for words, some in (("least", ranked[:count]), ("most", ranked[: -count - 1 : -1])):
            lines.append(f"  {words:5}  " + "  ".join(f"{labels[head]} {heads[head]:.3g}" for head in some))
        lines[0] += "; of single heads, l1 over l2:"
    return "\n".join(lines)
