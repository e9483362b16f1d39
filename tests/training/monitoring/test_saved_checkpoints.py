"""find_checkpoints: the names of the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngeo.training.monitoring.saved_checkpoints import find_checkpoints
from tests.training.monitoring.checkpoint_folders import save_checkpoint


@pytest.mark.parametrize("name", ["step-{}", "step_{}", "ckpt-{}", "global_step{}", "epoch=0-step={}", "iter_{}"])
def test_common_names_of_checkpoints_are_found(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, 30, name)
    save_checkpoint(tmp_path, 4, name)
    assert [saved.step for saved in find_checkpoints(tmp_path)] == [4, 30]


def test_other_content_and_temporary_names_are_left_out(tmp_path: Path) -> None:
    for step in (500, 1000, 100):
        save_checkpoint(tmp_path, step)
    (tmp_path / "runs").mkdir()
    (tmp_path / "README.md").write_text("checkpoint-7")
    save_checkpoint(tmp_path, 1000, "tmp-checkpoint-{}")
    save_checkpoint(tmp_path, 1500, ".checkpoint-{}")
    names = [saved.path.name for saved in find_checkpoints(tmp_path)]
    assert names == ["checkpoint-100", "checkpoint-500", "checkpoint-1000"]
