"""An encoder and a decoder of the same shape, data and budget, shipped with the package; `pretrain.toml` made each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attngeo.errors import InputError

NAMES = ("encoder", "decoder")


def bundled(name: str) -> Path:
    """The folder of "encoder" or "decoder": a checkpoint like any other, for `score`, `capture`, `from_pretrained`.

    >>> bundled("encoder").name
    'encoder'
    """
    if name not in NAMES:
        raise InputError(f"{name}: no bundled model has this name, there are {' and '.join(NAMES)}")
    return Path(__file__).parent / name


def training(name: str) -> list[dict[str, Any]]:
    """Loss and scores at 13 moments of its training: `step`, `eval_loss`, `symmetry` [layers], ….

    >>> [row["step"] for row in training("decoder")][::4]
    [0, 5333, 10667, 16000]
    """
    from attngeo.dynamics.monitoring.records import read_records

    return read_records(bundled(name) / "training.jsonl")
