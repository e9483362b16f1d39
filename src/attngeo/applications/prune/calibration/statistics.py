"""`Statistics`: second moments of the head outputs on calibration inputs, for the refit, saved as one .npz file.

    C = mean over tokens of w_t z_t z_tᵀ,   w_t = 1/‖x_t‖²

z_t are the concatenated head outputs of a layer at token t, x_t the residual stream that the layer's output is added
to. Where the output projection has a bias, z_t ends with the constant 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attngeo.applications.prune.calibration.rows import Batch
from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays

KIND = "prune statistics"


@dataclass(frozen=True, eq=False)
class LayerMoments:
    """C of one layer, on the rows to fit with and on the rows held out; [n, n], n = H·r (+ 1 with a bias)."""

    fit: Floats
    held_out: Floats
    tokens: int  # to fit with


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the refit of a plan needs of the calibration inputs."""

    fingerprint: str  # of the model that was measured
    layers: dict[tuple[str, int], LayerMoments]  # by stack and layer
    held_out: tuple[Batch, ...]  # rows on which the loss after a refit is checked

    @property
    def tokens(self) -> int:
        """The number of tokens that the layers were fitted on, the smallest over the stacks."""
        return min(moments.tokens for moments in self.layers.values())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the statistics to an .npz file, moments in float32."""
        arrays = {}
        for index, moments in enumerate(self.layers.values()):
            arrays[f"fit_{index}"] = moments.fit.astype(np.float32)
            arrays[f"held_out_{index}"] = moments.held_out.astype(np.float32)
        for index, batch in enumerate(self.held_out):
            for name, value in batch.inputs.items():
                arrays[f"input_{index}_{name}"] = _numpy(value)
            if batch.targets is not None:
                arrays[f"targets_{index}"] = batch.targets.cpu().numpy()
        description = {
            "fingerprint": self.fingerprint,
            "layers": [[stack, layer, moments.tokens] for (stack, layer), moments in self.layers.items()],
            "batches": [sorted(batch.inputs) for batch in self.held_out],
        }
        return save_arrays(Path(path), KIND, arrays, description)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Statistics:
        """Read what `save` wrote."""
        path = Path(path)
        arrays, about = load_arrays(path, KIND)
        with naming_file(path):
            layers = {}
            for index, (stack, layer, tokens) in enumerate(about["layers"]):
                fit, held = (_moments(required_array(arrays, f"{name}_{index}")) for name in ("fit", "held_out"))
                layers[str(stack), int(layer)] = LayerMoments(fit, held, int(tokens))
            batches = tuple(_batch(arrays, index, names) for index, names in enumerate(about["batches"]))
            if not layers or not batches:
                raise InputError(f"{len(layers)} layers and {len(batches)} batches, expected at least one of each")
            return cls(str(about["fingerprint"]), layers, batches)


def _batch(arrays: Mapping[str, NDArray[Any]], index: int, names: Sequence[str]) -> Batch:
    """Return one held-out batch; InputError where its targets do not fit its tokens."""
    inputs = {name: torch.from_numpy(required_array(arrays, f"input_{index}_{name}")) for name in names}
    if f"targets_{index}" not in arrays:
        return Batch(inputs, None)
    targets = torch.from_numpy(arrays[f"targets_{index}"])
    tokens = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    if tokens is None or targets.shape != tokens.shape or targets.dtype != torch.int64:
        raise InputError(f"targets_{index} is not an array of whole numbers, one per token")
    return Batch(inputs, targets)


def _numpy(value: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = (value.float() if value.is_floating_point() else value).cpu().numpy()
    return array


def _moments(array: NDArray[Any]) -> Floats:
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not np.isfinite(array).all():
        raise InputError(f"moments of shape {array.shape}, expected a finite square matrix")
    return array.astype(np.float64)
