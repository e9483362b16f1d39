"""RecordFile: records in order of step, with several writers."""

from __future__ import annotations

import json
import math
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

import attngeo
from attngeo.errors import AttngeoError
from attngeo.training.monitoring.records import LayerFigures, RecordFile, make_record, read_records
from attngeo.training.monitoring.tracker_values import tracker_values
from tests.training.monitoring.record_checks import recorded_steps


def test_a_process_that_does_not_write_keeps_its_records_in_memory(tmp_path: Path) -> None:
    records = RecordFile(tmp_path / "a.jsonl", writing=False)
    records.add({"step": 1})
    records.add({"step": 1, "again": True})
    assert records.rows == [{"step": 1, "again": True}] and not (tmp_path / "a.jsonl").exists()


def test_two_writers_of_one_file_keep_the_records_of_each_other(tmp_path: Path) -> None:
    """Checkpoints are scored during training; neither loses the records of the other."""
    path = tmp_path / "a.jsonl"
    monitor = RecordFile(path)
    for step in (0, 100, 200):
        monitor.add({"step": step})
    tracking = RecordFile(path)
    tracking.add({"step": 50})
    monitor.add({"step": 300})
    tracking.add({"step": 250})
    assert recorded_steps(path) == [0, 50, 100, 200, 250, 300]
    monitor.add({"step": 400})
    tracking.add({"step": 150})
    assert recorded_steps(path) == [0, 50, 100, 150, 200, 250, 300, 400]
    path.unlink()
    monitor.add({"step": 500})
    assert recorded_steps(path) == [0, 50, 100, 200, 250, 300, 400, 500]


def test_a_line_that_was_cut_short_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    """A disk that is full takes the beginning of a line; when there is space again, the file has to be sound."""
    path = tmp_path / "a.jsonl"
    records = RecordFile(path)
    records.add({"step": 0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 5, limits[1]))
    try:
        with pytest.raises(AttngeoError, match=r"a\.jsonl: cannot be written"):
            records.add({"step": 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    records.add({"step": 200})
    assert recorded_steps(path) == [0, 100, 200]


def test_records_of_earlier_versions_are_read_and_drawn(tmp_path: Path) -> None:
    """Records had five figures at first; those that came later are missing, not wrong."""
    old: dict[str, object]
    old = {
        "stack": ["encoder", "encoder"],
        "layer": [0, 1],
        "symmetry": [0.1, 0.3],
        "directionality": [0.0, -0.2],
        "norm": [1.0, 2.0],
        "row_spread": [0.1, 0.1],
        "column_spread": [0.2, 0.3],
        "head_symmetry": [[0.1], [0.3]],
    }
    path = tmp_path / "attngeo.jsonl"
    path.write_text("".join(json.dumps({"step": step, **old}) + "\n" for step in (0, 100)))
    rows = read_records(path)
    assert [row["step"] for row in rows] == [0, 100]
    values = tracker_values(rows[0], "heads")
    assert values["attngeo/encoder/symmetry/median"] == 0.2 and values["attngeo/encoder/L1H0/symmetry"] == 0.3
    assert not any("dominance" in name for name in values)
    assert attngeo.show.training_figure(rows).axes
    figures = LayerFigures("encoder", 0, [0.1, 0.0, 1.0, 0.1, 0.2, -0.7, 0.0, math.nan])
    records = RecordFile(path)
    records.add(make_record(200, [figures, replace(figures, layer=1)]))
    assert len(read_records(path)) == 3 and "symmetry_rope" not in read_records(path)[-1]
    assert attngeo.show.training_figure(read_records(path)).axes
