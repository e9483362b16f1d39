"""RecordFile: records in order of step, with several writers."""

from __future__ import annotations

from pathlib import Path

from attngeo.dynamics.monitoring.records import RecordFile
from tests.dynamics.monitoring.record_checks import recorded_steps


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
