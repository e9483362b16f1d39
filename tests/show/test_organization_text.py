"""An organised network as text: heads most alike first, heads by entropy, and whether the iterations converged."""

from __future__ import annotations

import re

import numpy as np
import pytest

from attngeo.organization import NetworkTensor, Organization, organize, planted
from attngeo.show.organization_text import organization_summary

HEADS = tuple(f"L{layer}H{head}" for layer in range(4) for head in range(6))


@pytest.fixture(scope="module")
def organization() -> Organization:
    return organize(NetworkTensor(planted((20, 18, 24), seed=0)[0], heads=HEADS, name="made"), iterations=20)


def summary(organization: Organization) -> str:
    expansion = organization.expand()
    return organization_summary(organization, expansion, expansion.compare(permuted=False))


def test_heads_most_alike_come_first(organization) -> None:
    text = summary(organization)
    section = text.partition("heads that are joined first")[2].partition("\n\n")[0]
    shown = re.findall(r"^  (\d\.\d{3})  (\S.*)$", section, re.MULTILINE)
    means = [float(mean) for mean, _ in shown]
    assert len(shown) > 2 and means == sorted(means, reverse=True) and means[0] > means[-1]
    folders = organization.trees[2].smallest_folders()
    affinity = organization.affinities[2]
    best = max(np.mean([affinity[a, b] for a in inside for b in inside if a < b]) for inside in folders)
    assert means[0] == pytest.approx(best, abs=1e-3)


def test_heads_are_listed_by_entropy(organization) -> None:
    entropy = np.asarray(organization.expand().entropy("head", normalised=True))
    ranked = np.argsort(entropy)
    for title, heads in (("least", ranked[:6]), ("most", ranked[::-1][:6])):
        line = next(line for line in summary(organization).splitlines() if line.startswith(f"  {title} "))
        assert line.split()[1:] == [word for head in heads for word in (HEADS[head], f"{entropy[head]:.3g}")]


def test_the_text_says_whether_the_trees_settled(organization) -> None:
    assert organization.settled
    assert "converged: the last iteration changed no tree" in summary(organization)
    noise = organize(np.random.default_rng(0).random((14, 12, 10)), iterations=1)
    assert not noise.settled
    assert "ended after 1 iteration; the last one still changed a tree" in summary(noise)
