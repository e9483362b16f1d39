"""An organised network as text: the tree of its heads, the heads most alike, the entropy and the sparsity."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from attngeo.organization.expansion import Expansion, SparsityControls
    from attngeo.organization.invariance import InvarianceReport
    from attngeo.organization.organize import Organization
    from attngeo.organization.tree import Tree

_WIDTH = 80  # characters per line, as in most terminals
AXES = ("queries", "keys", "heads")
_FOLDERS_SHOWN = 12  # folders listed before the rest is only counted

_COLUMN_LEGEND = (
    "l1/l2: l1 norm of the coefficients over their l2 norm, smaller is sparser",
    "90%, 99%, 99.9%: share of the coefficients that holds this much of the energy",
    "exponent: mixed-Hölder exponent ± standard error, larger is smoother (cosines have none)",
)
# First word of a basis → its meaning; printed for the bases that were compared.
_BASIS_LEGEND = {
    "trees": "Haar basis of the trees found here; the other rows are controls",
    "shuffled": "the same trees after shuffling each axis",
    "dyadic": "trees that halve the given order",
    "cosines": "cosine transforms of the whole array and, for a tensor, of each head",
    "permuted": "all values permuted, trees fitted again",
}

_INVARIANCE_LEGEND = """\
affinity rank correlation: Spearman correlation of the affinities before and after the softmax (1: same order)
tree information: mean adjusted mutual information of the levels of the trees before and after (1: identical)
Procrustes distance: between the diffusion maps before and after (0: same shape, 1: nothing in common)
exponent: mixed-Hölder exponent of the logits, and of the residual of the paraproduct of their softmax
control: the same after permuting the values of each row of each head before the softmax"""


def organization_summary(organization: Organization, expansion: Expansion, comparison: SparsityControls) -> str:
    """Return the summary that `attngeo organize` prints, one section per aspect, each with what its numbers mean."""
    sections = [_title(organization), _history(organization)]
    if len(organization.trees) == 3:
        labels = axis_labels(organization, 2)
        sections += [
            "tree of the heads, a few of its levels (number of heads in each folder)\n"
            + tree_text(organization.trees[2], labels),
            _closest_heads(organization, labels),
            _entropies(expansion, labels),
        ]
    else:
        sections.append(_entropies(expansion, ()))
    sections += [f"sparsity, compared with controls\n{comparison}", _sparsity_legend(comparison)]
    return "\n\n".join(sections) + "\n"


def invariance_summary(report: InvarianceReport) -> str:
    """Return the summary that `attngeo invariance` prints: the report, then what its measures mean."""
    return f"{report}\n\n{_INVARIANCE_LEGEND}\n"


def _sparsity_legend(comparison: SparsityControls) -> str:
    names = dict.fromkeys(re.split(r"[ :]", profile.name)[0] for profile in comparison.profiles)
    return "\n".join([*_COLUMN_LEGEND, *(f"{name}: {_BASIS_LEGEND[name]}" for name in names if name in _BASIS_LEGEND)])


def axis_labels(organization: Organization, axis: int) -> tuple[str, ...]:
    """Return the names of the elements of an axis, or their indices where a plain array has no names."""
    names = getattr(organization.tensor, AXES[axis], None)
    return tuple(names) if names else tuple(map(str, range(organization.trees[axis].size)))


def tree_text(tree: Tree, labels: Sequence[str], levels: Sequence[int] | None = None) -> str:
    """Return a drawing of the tree at some of its levels, each folder with its size, the smallest with their elements.

    levels: which levels to draw; by default those where the number of folders first reaches 2, 4, 8 and 16

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
    """Return the lines of the folders that the elements `members` fall into at `levels`, one branch per folder."""
    folders: dict[int, list[int]] = {}
    while levels and len(folders) < 2:  # skip levels that do not split this folder
        folders = {}
        for element in members:
            folders.setdefault(int(tree.levels[levels[0], element]), []).append(element)
        levels = levels[1:]
    lines = []
    for number, inside in enumerate(folders.values()):
        last = number == len(folders) - 1
        deeper = indent + ("   " if last else "│  ")
        below = _branches(tree, inside, levels, labels, deeper)
        branch = f"{indent}{'└─' if last else '├─'} {len(inside)}"
        if below:
            lines += [branch, *below]
        else:
            names = wrap(compact_labels(labels[element] for element in inside), max(30, _WIDTH - len(deeper) - 4))
            lines += [f"{branch}  {names[0]}", *(f"{deeper}   {more}" for more in names[1:])]
    return lines if len(folders) > 1 else []


def compact_labels(labels: Iterable[str]) -> str:
    """Return labels sorted and joined, the heads of a layer under one prefix.

    >>> compact_labels(["L2H3", "L0H4", "L0H1"])
    'L0H1,4 L2H3'
    """
    heads: dict[str, list[str]] = {}  # prefix of a layer → its heads
    for label in labels:
        match = re.fullmatch(r"(L\d+H)(\d+)", label)
        heads.setdefault(match[1] if match else label, []).append(match[2] if match else "")
    order = sorted(heads, key=lambda prefix: [int(number) for number in re.findall(r"\d+", prefix)] or [-1])
    return " ".join(prefix + ",".join(sorted(heads[prefix], key=lambda n: int(n or 0))) for prefix in order)


def _title(organization: Organization) -> str:
    shape = " × ".join(map(str, organization.values.shape))
    name = getattr(organization.tensor, "name", "")
    stage = getattr(organization.tensor, "stage", "values")
    axes = " × ".join(AXES[: len(organization.trees)])
    return f"{name + ': ' if name else ''}{stage}, {shape} ({axes})"


def _history(organization: Organization) -> str:
    lines = ["l1: total l1 norm of the Haar coefficients; per axis: similarity to the previous tree (1: identical)"]
    axes = AXES[: len(organization.trees)]
    lines.append(f"{'':16}{'l1':>12}" + "".join(f"{axis:>10}" for axis in axes))
    count = 0
    for step in organization.history:
        count += step.stage == "iteration"
        name = f"iteration {count}" if step.stage == "iteration" else step.stage
        similarities = "".join(f"{'' if value is None else f'{value:.3f}':>10}" for value in step.likeness)
        lines.append(f"{name:16}{step.l1:12.6g}{similarities}".rstrip())
    if organization.settled:
        lines.append("converged: the last iteration changed no tree")
    else:
        lines.append(f"ended after {count} iteration{'s' * (count != 1)}; the last one still changed a tree")
    return "\n".join(lines)


def _closest_heads(organization: Organization, labels: Sequence[str]) -> str:
    affinity = organization.affinities[2]  # [heads, heads]
    ranked = []
    for inside in organization.trees[2].smallest_folders():
        pairs = [affinity[a, b] for a in inside for b in inside if a < b]
        ranked.append((sum(pairs) / len(pairs), inside))
    ranked.sort(key=lambda pair: -pair[0])
    lines = ["heads that are joined first, with their mean affinity (1: identical)"]
    shown = ranked[:_FOLDERS_SHOWN]
    lines += [f"  {mean:.3f}  {compact_labels(labels[element] for element in inside)}" for mean, inside in shown]
    if len(ranked) > len(shown):
        lines.append(f"  … and {len(ranked) - len(shown)} more folders, down to {ranked[-1][0]:.3f}")
    return "\n".join(lines)


def _entropies(expansion: Expansion, labels: Sequence[str]) -> str:
    l1, normalised = expansion.entropy("network"), expansion.entropy("network", normalised=True)
    lines = [f"entropy of the network: l1 {l1:.6g}, l1/l2 {normalised:.4g}"]
    if labels:
        heads = np.atleast_1d(expansion.entropy("head", normalised=True))  # [heads]
        ranked = sorted(range(len(labels)), key=lambda head: heads[head])
        count = min(6, (len(ranked) + 1) // 2)
        for title, some in (("least", ranked[:count]), ("most", ranked[: -count - 1 : -1])):
            lines.append(f"  {title:5}  " + "  ".join(f"{labels[head]} {heads[head]:.3g}" for head in some))
        lines[0] += "; l1/l2 of single heads:"
    return "\n".join(lines)
