"""`fingerprint`: a hash of everything that the scores of a model depend on, which names its part of an atlas."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.atlas.options import RESULT_VERSION, ScoreOptions
from attngeo.io.threads import prefetch
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import Layers
from attngeo.weights.layout.rotary import RotaryPairs

if TYPE_CHECKING:
    from hashlib import _Hash

WORTH_A_THREAD = 4 << 20  # bytes of a layer: hashing them takes as long as handing over a few layers between threads


def fingerprint(layers: Layers, options: ScoreOptions) -> str:
    """Return the hash of the weights that are scored, how they are laid out in heads, and the options: 40 digits.

    Names of tensors, files and the model are not part of it, so that a renamed copy has the same fingerprint. All
    layers are read once.
    """
    content = hashlib.sha256()
    _add_plain(content, [RESULT_VERSION, options.heads, options.nulls])
    with closing(_read(layers)) as upcoming:
        for weights in upcoming:
            _add_layer(content, weights)
    return content.hexdigest()[:40]


def _read(layers: Layers) -> Generator[Layer, None, None]:
    """Yield all layers; those of a large model are read in a thread while the layer before is hashed."""
    left = iter(layers)
    for first in left:
        yield first
        size = first.query.nbytes + first.key.nbytes
        if size >= WORTH_A_THREAD:
            with closing(prefetch(left, stop=layers.stop)) as upcoming:
                yield from upcoming


def _add_layer(content: _Hash, weights: Layer) -> None:
    """Add one layer: the description first, so that equal bytes of other shapes differ."""
    arrays = [weights.query, weights.key]  # [H, d_q, r], [G, d_k, r]
    if weights.norm is not None:
        arrays.append(weights.norm.gain)
    description = {
        "stack": weights.stack,
        "layer": weights.layer,
        # The order of the values in memory changes the last digits of products.
        "arrays": [[a.dtype.str, list(a.shape), list(a.strides)] for a in arrays],
        "heads_known": weights.heads_known,
        "cross": weights.cross,
        "qk_norm": weights.qk_norm,
        "numbers": None if weights.numbers is None else list(weights.numbers),
        "rotary": _rotary(weights.rotary),
        "rotary_known": weights.rotary_known,
        "centred": None if weights.norm is None else weights.norm.centred,
    }
    _add_plain(content, description)
    for array in arrays:
        # Queries and keys are views of stored rows [r, d]: with their last axes swapped they are mostly contiguous.
        rows = array.swapaxes(-1, -2) if array.ndim > 1 else array
        content.update(np.ascontiguousarray(rows).data)


def _rotary(rotary: RotaryPairs | None) -> list[Any] | None:
    if rotary is None:
        return None
    axes = None if rotary.axes is None else rotary.axes.tolist()
    return [rotary.pairs.tolist(), rotary.frequencies.tolist(), rotary.factor, rotary.window, axes]


def _add_plain(content: _Hash, plain: Any) -> None:
    text = json.dumps(plain, sort_keys=True).encode()
    content.update(len(text).to_bytes(8, "little") + text)
