"""What the distance of two networks is computed from: their heads on the inputs, and the scores of their layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.applications.compare.distance.head_geometry import HeadGeometry
from attngeo.applications.compare.distance.network_distance import profile_difference
from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.organization.capture import capture
from attngeo.organization.tensor import NetworkTensor
from attngeo.weights.scoring.score import score

if TYPE_CHECKING:
    from attngeo.organization.inputs import SingleInput

Profiles = tuple[Floats, Floats]  # symmetry and directionality of the layers, [layers] each


def captured_geometry(
    ref: Any,
    inputs: SingleInput | Sequence[SingleInput],
    *,
    stack: str | Collection[str] | None = None,
    truncate: bool = False,
) -> HeadGeometry:
    """Run a model on the inputs and return the geometry of its heads."""
    if stack is not None and not isinstance(stack, str):
        if len(stack) != 1:
            raise InputError(f"stack: {len(stack)} stacks, expected one where inputs are given")
        (stack,) = stack
    captured = capture(ref, inputs, stack=stack, truncate=truncate)
    return HeadGeometry.of([captured] if isinstance(captured, NetworkTensor) else captured)


def score_profiles(ref: Any, **options: Any) -> Profiles | None:
    """Return symmetry and directionality of the layers in order of depth; None where several stacks could be meant.

    options: of `score`
    """
    import polars as pl

    table = score(ref, heads=False, nulls=False, folded=False, **options)
    layers = table.frame.filter(~pl.col("cross")).drop_nulls(["symmetry", "directionality"])
    if layers["stack"].n_unique() != 1:
        return None
    symmetry, directionality = (layers[name].to_numpy() for name in ("symmetry", "directionality"))
    return symmetry, directionality


def profile_differences(a: Profiles | None, b: Profiles | None) -> tuple[float, float] | tuple[None, None]:
    """Return by how much the symmetry and the directionality profiles of two models differ."""
    if a is None or b is None:
        return None, None
    symmetry, directionality = (profile_difference(np.asarray(x), np.asarray(y)) for x, y in zip(a, b, strict=True))
    return symmetry, directionality
