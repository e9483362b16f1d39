"""Two small models that ship with the package: an encoder and a decoder that differ only in their training objective.

NAMES      "encoder" and "decoder"
bundled    the folder of one of them, a checkpoint like any other

The folder of each model also holds `pretrain.toml`, the settings it was trained with, and the records of its training.
"""

from __future__ import annotations

from pathlib import Path

from attngeo.errors import InputError

__all__ = ["NAMES", "bundled"]

NAMES = ("encoder", "decoder")


def bundled(name: str) -> Path:
    """Return the folder of "encoder" or "decoder", for `attngeo.score`, `attngeo.capture` and `from_pretrained`.

    >>> bundled("encoder").name
    'encoder'
    """
    if name not in NAMES:
        raise InputError(f"{name}: no bundled model has this name, there are {' and '.join(NAMES)}")
    return Path(__file__).parent / "bundled" / name
