"""The heads that a browser rebuilds are those of Python's inverse Haar transform."""

from __future__ import annotations

import numpy as np
import pytest

import attngeo
from attngeo.organization import NetworkTensor, organize, planted
from attngeo.organization.quantised import quantise

REBUILD = """([head, stop]) => {
  const { network } = attngeo.page.views[0];
  return Array.from(network.head(head, stop));
}"""


def planted_organization() -> attngeo.Organization:
    """Queries, keys and heads of different numbers, so that mixed-up axes cannot go unnoticed."""
    array = planted((19, 26, 10), seed=3)[0].astype(np.float32)
    labels = tuple(f"L{head // 5}H{head % 5}" for head in range(10))
    return organize(NetworkTensor(array, heads=labels, name="planted"))


@pytest.mark.parametrize("which", ["encoder", "planted"])
def test_the_browser_rebuilds_every_head_as_python_does(which, open_page, tmp_path, request):
    given = request.getfixturevalue("encoder_organization") if which == "encoder" else planted_organization()
    opened = open_page(attngeo.report(given, tmp_path / "report.html")).ready()
    kept = quantise(given.values, given.trees)
    for stop in (len(kept.stops) - 1, len(kept.stops) // 2):
        rebuilt = kept.rebuilt(stop)  # [queries, keys, heads]
        for head in range(given.values.shape[2]):
            shown = np.reshape(opened.page.evaluate(REBUILD, [head, stop]), given.values.shape[:2])
            np.testing.assert_allclose(shown, rebuilt[:, :, head], rtol=0, atol=3e-6 * np.abs(rebuilt).max())
    energy = np.square(given.values).sum((0, 1))
    lost = np.square(given.values - kept.rebuilt()).sum((0, 1)) / energy
    assert lost.max() < 0.05 and lost.mean() < 0.01
    opened.clean()


def test_the_page_states_the_share_of_energy_that_is_shown(open_page, tmp_path, encoder_organization):
    opened = open_page(attngeo.report(encoder_organization, tmp_path / "report.html")).ready()
    kept = quantise(encoder_organization.values, encoder_organization.trees)
    slider, held = opened.page.locator("input[type=range]"), opened.page.locator("output.held")
    texts = []
    for stop in range(len(kept.stops)):
        slider.fill(str(stop))
        texts.append(held.inner_text())
        assert texts[-1].startswith(f"{kept.counts[stop]:,} coefficient")
    assert len(set(texts)) == len(texts)
    assert float(texts[-1].split(" of the energy")[0].split()[-1].rstrip("%")) >= 99
    opened.clean()
