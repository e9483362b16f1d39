"""Runs that end at the first held-out loss below a given one, `until_loss` of their cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attngeo.training.data.tokens import Tokens
from attngeo.training.monitoring.records import read_records
from attngeo.training.pretraining.checkpoint import load_checkpoint
from attngeo.training.pretraining.config import PretrainConfig
from attngeo.training.pretraining.pretrain import Run


def is_below(records: Path, loss: float | None) -> bool:
    """Tell whether the last record has a held-out loss below `loss`; False where there is none to reach."""
    if loss is None:
        return False
    rows = read_records(records)
    return bool(rows) and rows[-1]["eval_loss"] < loss


def ended_before(config: PretrainConfig, tokens: Tokens, is_low: Callable[[], bool]) -> Run | None:
    """Return a run that ended because its loss was low, but was not recorded before its process was killed; else None.

    Trained on, it would end at its next evaluation only.
    """
    folder = Path(config.out)
    if not (folder / "metrics.jsonl").exists() or not is_low():
        return None
    run = Run(folder, config, tuple(read_records(folder / "metrics.jsonl")))
    saved = load_checkpoint(folder / "checkpoint.pt", config)
    # Without its checkpoint, the last record may be that of other settings or tokens: `train` will tell.
    is_whole = saved is not None and (saved["step"], saved["tokens"]) == (run.records[-1]["step"], tokens.digest)
    return run if is_whole and not run.finished else None
