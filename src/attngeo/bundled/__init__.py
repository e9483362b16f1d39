"""Two small models that ship with the package: an encoder and a decoder that differ only in their training objective.

NAMES      "encoder" and "decoder"
bundled    the folder of one of them, a checkpoint like any other
training   its loss and scores during training

The folder of each model also holds `pretrain.toml`, the settings it was trained with.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import InputError

if TYPE_CHECKING:
    from attngeo.dynamics.monitoring.records import Record

__all__ = ["NAMES", "bundled", "training"]

NAMES = ("encoder", "decoder")


def bundled(name: str) -> Path:
    """Return the folder of "encoder" or "decoder", for `attngeo.score`, `attngeo.capture` and `from_pretrained`.

    >>> bundled("encoder").name
    'encoder'
    """
    if name not in NAMES:
        raise InputError(f"{name}: no bundled model has this name, there are {' and '.join(NAMES)}")
    return Path(__file__).parent / name


def training(name: str) -> list[Record]:
    """Return the records of 13 evaluations during training: `step`, `eval_loss`, `symmetry` [layers] and more.

    >>> [record["step"] for record in training("decoder")][::4]
    [0, 5333, 10667, 16000]
    """
    # Imported here so that finding the folder of a model loads nothing else.
    from attngeo.dynamics.monitoring.records import read_records

    return read_records(bundled(name) / "training.jsonl")
