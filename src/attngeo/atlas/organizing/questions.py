"""What is asked of a network on a text: `Trees` and their sparsity, or `Invariance` under the softmax.

A question is a value: its options are part of the hash that names the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attngeo.arguments import whole_number
from attngeo.atlas.columns import BASES, CONTRASTS
from attngeo.atlas.options import Options
from attngeo.atlas.organizing.texts import Text
from attngeo.live.attention_modules import attention_stacks
from attngeo.organization.capture.capture import capture
from attngeo.organization.capture.inputs import choose_stack, modality
from attngeo.organization.capture.network_tensor import NetworkTensor, check_stack, check_stage
from attngeo.organization.expansion.controls import Comparison
from attngeo.organization.organize import organize
from attngeo.organization.softmax.invariance import softmax_invariance
from attngeo.organization.trees.tree import Tree
from attngeo.weights.scoring.score_table import Row, null_if_nan

if TYPE_CHECKING:
    from attngeo.live.load import LoadedModel

RESULT_VERSION = 2  # raised whenever the same network, text and options give other figures


@dataclass(frozen=True)
class Question(Options):
    """Options that both questions have."""

    table: ClassVar[str]  # where the answer is stored
    stack: str | None = None  # as in `attngeo.capture`
    truncate: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_stack(self.stack)
        whole_number(self.seed, "seed")

    def answer(self, loaded: LoadedModel, text: Text) -> tuple[Row, list[Row] | None]:
        """Return the figures of one network on one text, and the rows about its pairs of heads, if any are stored."""
        raise NotImplementedError

    def _capture(self, loaded: LoadedModel, text: Text, stage: str) -> NetworkTensor:
        found = capture(
            loaded.model,
            text.content,
            stage=stage,
            stack=self.stack,
            truncate=self.truncate,
            tokenizer=loaded.tokenizer,
        )
        assert isinstance(found, NetworkTensor)
        return found


@dataclass(frozen=True)
class Trees(Question):
    """The trees and affinities of the heads, and how sparse the network is along its trees, with controls."""

    table: ClassVar[str] = "organized"
    stage: str = "logits"
    permuted: bool = True  # also fit trees to permuted values

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stage(self.stage)

    def answer(self, loaded: LoadedModel, text: Text) -> tuple[Row, list[Row]]:
        tensor = self._capture(loaded, text, self.stage)
        organization = organize(tensor)
        comparison = organization.expand().compare(self.seed, permuted=self.permuted)
        tree, affinity = organization.trees[2], organization.affinities[2]  # of the heads
        row = _sparsity(comparison) | _shared_keys(tree, tensor.heads, self._key_groups(loaded, text))
        row |= {"stage": self.stage, "depth": tree.depth, "tokens": len(tensor.queries), "heads": len(tensor.heads)}
        return row, _pairs(tree, affinity, tensor.heads)

    def _key_groups(self, loaded: LoadedModel, text: Text) -> dict[int, int]:
        """Return how many query heads of each layer of the full model share a key head; 1 where each has its own."""
        reads = modality(text.content, loaded, self.stack)
        stack = choose_stack(loaded, attention_stacks(loaded.model), self.stack, reads)
        return {attention.layer: attention.group for attention in stack.attentions}


@dataclass(frozen=True)
class Invariance(Question):
    """Agreement of the geometry before and after the softmax, for the network and for some heads on their own."""

    table: ClassVar[str] = "invariance"
    heads: int = 24  # heads on their own, drawn anew for each text; 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.heads, "invariance_heads")

    def answer(self, loaded: LoadedModel, text: Text) -> tuple[Row, None]:
        tensor = self._capture(loaded, text, "logits")
        count = len(tensor.heads)
        chosen = list(range(count))
        if 0 < self.heads < count:
            rng = np.random.default_rng([self.seed, int(text.digest, 16)])
            chosen = sorted(rng.choice(count, self.heads, replace=False).tolist())
        # Intervals come from the spread between texts, so that no bootstrap over heads is needed.
        report = softmax_invariance(tensor, heads=chosen, bootstrap=0, seed=self.seed)
        row: Row = {"tokens": len(tensor.queries), "heads": count, "chosen": len(chosen)}
        for name, figure in CONTRASTS.items():
            contrast = report[figure]
            row |= {name: null_if_nan(contrast.value), f"{name}_control": null_if_nan(contrast.control)}
        return row, None


def _sparsity(comparison: Comparison) -> Row:
    row: Row = {"gain": comparison.gain()}
    if "permuted: trees" in comparison:
        row["gain_permuted"] = comparison.gain(permuted=True)
    for name, basis in BASES.items():
        if basis in comparison:
            profile = comparison[basis]
            row[f"l1_l2_{name}"] = profile.sparsity.normalised
            row |= {f"share{100 * energy:g}_{name}": profile.sparsity.shares[energy] for energy in (0.9, 0.99)}
            if profile.holder is not None:
                row[f"exponent_{name}"] = null_if_nan(profile.holder.exponent)
    return row


def _shared_keys(tree: Tree, heads: tuple[str, ...], groups: Mapping[int, int]) -> Row:
    """Return how many pairs of heads that are joined first share a key head, and how many would by chance.

    groups: layer → how many query heads of the full model share a key head
    """
    largest = max(groups.values(), default=1)
    if largest == 1:
        return {}
    # L3H7 → layer 3, key head 7 // groups[3]: pruned heads keep their numbers. A module that runs several times is
    # several layers, which `groups` does not list.
    layers, numbers = np.asarray([head[1:].split("H") for head in heads]).astype(int).T  # [heads] each
    group = np.asarray([groups.get(layer, largest) for layer in layers.tolist()])
    key = layers * (numbers.max() + 1) + numbers // group  # [heads]
    same = key[:, None] == key[None, :]  # [heads, heads]
    pairs = [(a, b) for folder in tree.smallest_folders() for a in folder for b in folder if a < b]
    all_pairs = len(heads) * (len(heads) - 1) / 2
    shared = [bool(same[a, b]) for a, b in pairs]
    return {
        "shared_key": float(np.mean(shared)) if shared else None,
        "shared_key_chance": float((same.sum() - len(heads)) / 2 / all_pairs),
    }


def _pairs(tree: Tree, affinity: np.ndarray[Any, Any], heads: tuple[str, ...]) -> list[Row]:
    """Return affinity and last common level of all pairs of heads."""
    last = np.zeros(affinity.shape, np.int64)
    for level, row in enumerate(tree.levels):
        last[row[:, None] == row[None, :]] = level
    a, b = np.triu_indices(len(heads), 1)
    columns: Mapping[str, Any] = {
        "head": [heads[i] for i in a],
        "other": [heads[i] for i in b],
        "affinity": affinity[a, b].tolist(),
        "level": last[a, b].tolist(),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
