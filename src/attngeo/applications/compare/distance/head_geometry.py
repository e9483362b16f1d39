"""`HeadGeometry`: how the heads of one network lie relative to each other on some inputs, and how sparse it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.organization.organize import organize
from attngeo.organization.sparsity import Sparsity
from attngeo.organization.tensor import NetworkTensor

SHARES = np.geomspace(1e-4, 1, 64)  # shares of the coefficients at which sparsity curves are compared


@dataclass(frozen=True, eq=False)
class HeadGeometry:
    """The heads of one network on one or several inputs.

    >>> rng = np.random.default_rng(0)
    >>> heads = [f"L{layer}H{head}" for layer in range(3) for head in range(2)]
    >>> network = NetworkTensor(rng.normal(size=(8, 8, 6)), heads=heads)
    >>> HeadGeometry.of([network]).depth.round(2).tolist()
    [0.17, 0.17, 0.5, 0.5, 0.83, 0.83]
    """

    affinity: Floats  # [H, H], mean over the inputs
    depth: Floats  # [H], (layer + ½) / number of layers
    curve: Floats  # [64], best-n-term error at SHARES, mean over the inputs
    texts: tuple[str, ...]  # the letters and digits of the tokens of each input; "" where tokens are not known

    @classmethod
    def of(cls, networks: Sequence[NetworkTensor]) -> HeadGeometry:
        """Organise each network and return the geometry of its heads."""
        if not (networks := list(networks)):
            raise InputError("networks: expected at least one network tensor")
        if len({network.heads for network in networks}) > 1:
            raise InputError("networks: expected the same heads on every input")
        organized = [organize(network) for network in networks]
        affinity = np.mean([one.affinities[2] for one in organized], axis=0)
        curve = np.mean([_error_curve(one.expand().sparsity) for one in organized], axis=0)
        return cls(affinity, _depths(networks[0].heads), curve, tuple(_text(network) for network in networks))

    def check_same_inputs(self, other: HeadGeometry) -> None:
        """Raise InputError where the two networks read different inputs, as far as their tokens tell."""
        if len(self.texts) != len(other.texts):
            raise InputError(f"networks captured on {len(self.texts)} and {len(other.texts)} inputs, expected the same")
        for index, (mine, others) in enumerate(zip(self.texts, other.texts, strict=True)):
            if not _cut_short(mine, others):
                begins = f"{mine[:20]!r} and {others[:20]!r}"
                raise InputError(f"networks captured on different inputs: input {index} begins with {begins}")

    def subset(self, count: int, seed: int) -> HeadGeometry:
        """Return a seeded choice of at most `count` heads."""
        if len(self.depth) <= count:
            return self
        chosen = np.sort(np.random.default_rng([seed, 4]).choice(len(self.depth), count, replace=False))
        return HeadGeometry(self.affinity[np.ix_(chosen, chosen)], self.depth[chosen], self.curve, self.texts)


def _depths(labels: Sequence[str]) -> Floats:
    """Return the relative depth of heads labelled "L3H7"; by their order where the labels say nothing."""
    found = [re.fullmatch(r"L(\d+)H\d+", label) for label in labels]
    layers = np.array([int(match[1]) if match else at for at, match in enumerate(found)])
    return np.asarray((layers + 0.5) / (layers.max() + 1))


def _error_curve(sparsity: Sparsity) -> Floats:
    """Return the best-n-term error at each of SHARES."""
    return np.interp(SHARES, sparsity.counts / sparsity.counts[-1], sparsity.errors)


def _text(network: NetworkTensor) -> str:
    """Return the letters and digits of an input, without the marks and special tokens of the vocabulary."""
    if network.queries == tuple(map(str, range(len(network.queries)))):  # positions, not tokens
        return ""
    words = [token for token in network.queries if not re.fullmatch(r"\[[A-Z]+\]|<[^>]*>", token)]
    return "".join(c for token in words for c in token.removeprefix("##").lower() if c.isalnum() and c not in "ġċ")


def _cut_short(mine: str, others: str) -> bool:
    """Return whether one text begins with the other: it was truncated to the window of its model, or is not known."""
    return mine.startswith(others) or others.startswith(mine)
