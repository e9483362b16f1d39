"""What the tests of the monitor share: a batch, and a record held against `attngeo.score` on what was saved."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import attngeo


def tokens(rows: int = 4, length: int = 12, seed: int = 0) -> Any:
    return torch.randint(3, 60, (rows, length), generator=torch.Generator().manual_seed(seed))


def batch_of(model: Any, rows: int = 4) -> dict[str, Any]:
    ids = tokens(rows)
    if model.config.is_encoder_decoder:
        return {"input_ids": ids, "decoder_input_ids": tokens(rows, 7, 1)}
    return {"input_ids": ids, "labels": ids}


def off(row: dict[str, Any], ref: Any) -> float:
    """The largest difference between a record and the scores of a checkpoint, over every layer and head of it."""
    worst, places = 0.0, list(zip(row["stack"], row["layer"], strict=True))
    frame = attngeo.score(ref, nulls=False, folded=False).frame
    assert frame.height == len(places) + sum(map(len, row["head_symmetry"]))
    for scored in frame.iter_rows(named=True):
        at = places.index((scored["stack"], scored["layer"]))
        for name in ("symmetry", "directionality"):
            mine = row[name][at] if scored["head"] is None else row[f"head_{name}"][at][scored["head"]]
            worst = max(worst, abs(mine - scored[name]))
    return worst


def off_saved(row: dict[str, Any], model: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return off(row, Path(folder))
