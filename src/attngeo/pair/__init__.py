"""An encoder and a decoder of the same shape, data and budget, shipped with the package; `pretrain.toml` made each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attngeo.errors import InputError, SourceError

NAMES = ("encoder", "decoder")


def bundled(name: str) -> Path:
    """The folder of "encoder" or "decoder": a checkpoint like any other, for `score`, `capture`, `from_pretrained`.

    >>> bundled("encoder").name
    'encoder'
    """
    folder = Path(__file__).parent / name
    if name not in NAMES:
        raise InputError(f"{name}: no bundled model has this name, there are {' and '.join(NAMES)}")
    if not (folder / "model.safetensors").is_file():
        raise SourceError(f"{folder}: without its weights; `attngeo demo --real` shows two published models instead")
    return folder


def training(name: str) -> list[dict[str, Any]]:
    """Loss and scores at a dozen checkpoints of its training: `step`, `eval_loss`, `symmetry` [layers], ….

    >>> training("decoder")[0]["step"]
    0
    """
    from attngeo.dynamics.records import read_records

    return read_records(bundled(name) / "training.jsonl")
