"""A few hundred seeded fuzz cases: each ends in a result or in an AttngeoError of one line, within the limits.

`make fuzz` runs 10,000 cases. A failing case prints the command that reproduces it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.campaign import Failure, Worker, worker
from tests.fuzz.kinds import all_kinds

CASES = 24  # per kind


@pytest.fixture(scope="module")
def process() -> Iterator[Worker]:
    with worker(list(all_kinds())) as started:
        yield started


def test_the_valid_files_of_every_kind_are_read(process: Worker) -> None:
    process.run("tree", 0)
    assert not process.started, "\n".join(map(str, process.started))


@pytest.mark.parametrize("kind", all_kinds())
def test_damaged_files_give_a_result_or_an_error_of_one_line(process: Worker, kind: str) -> None:
    outcomes = [process.run(kind, seed) for seed in range(CASES)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert not failures, "\n".join(map(str, failures))
