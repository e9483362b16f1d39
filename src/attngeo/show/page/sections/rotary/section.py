"""Rotary position embedding: energy against frequency, and the symmetry over offsets with its limit and average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.rotary.energy import energy_figures
from attngeo.show.page.sections.rotary.offsets import offset_figures

if TYPE_CHECKING:
    import polars as pl

    from attngeo.weights.scoring.offsets import OffsetCurves

FREQUENCY_READING = (
    "A rotary pair of dimensions turns by its frequency from one token to the next: pairs on the left of the first "
    "figure tell neighbours apart, pairs on the right see hardly any position. The line is the median head, the "
    "bands hold half and nine tenths of the heads; in the map, each row is one head, and values above the upper end "
    "of the colour bar have its colour."
)
OFFSET_READING = (
    " The symmetry s(Δ) compares a query and a key Δ tokens apart with the same two exchanged. Far away it varies "
    "around its limit s̄; a layer with much energy in slow pairs gets there beyond the window the model was made for, "
    "so the average over that window is drawn too."
)


def rotary_section(
    frequencies: pl.DataFrame | None, curves: Sequence[OffsetCurves] = (), *, id: str = "rotary"
) -> Section:
    """Return the energy of rotary pairs against their frequency, and s(Δ) by offset and by layer.

    frequencies: columns as in `ScoreTable.frequencies`; None or empty: nothing is known about them
    curves:      as `offset_curves` returns them, of one or several models

    >>> rotary_section(None).figures
    ()
    """
    figures: list[PageFigure] = []
    if frequencies is not None and frequencies.height:
        for part in frequencies.partition_by("model", "stack", maintain_order=True):
            figures += energy_figures(part, f"{id}-{len(figures) + 1}")
    energies = len(figures)
    for model in curves:
        for stack in dict.fromkeys(curve.stack for curve in model.layers):
            layers = [curve for curve in model.layers if curve.stack == stack]
            figures += offset_figures(model, layers, f"{id}-{len(figures) + 1}")
    reading = FREQUENCY_READING * (energies > 0) + OFFSET_READING * (len(figures) > energies)
    return Section(id, "Rotary frequencies", reading.strip(), tuple(figures))
