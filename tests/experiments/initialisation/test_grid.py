"""The grid: groups of paired cells, custom grids, and the settings that may replace the usual ones."""

from __future__ import annotations

import pytest

from attngeo.errors import InputError
from experiments.initialisation.grid import GROUPS, custom_grid, group_cells


def test_settings_that_change_results_make_other_cells() -> None:
    usual, other = group_cells(["pilot"]), group_cells(["pilot"], settings={"batch": 64, "compile": "no"})
    assert [cell.key for cell in usual] == ["masked-4x256-lr0.0005-9500-baseline-seed0",
                                            "masked-4x256-lr0.0005-9500-unit-symmetric-seed0"]  # fmt: skip
    assert [cell.other for cell in other] == [(("batch", 64),)] * 2
    assert not {cell.key for cell in usual} & {cell.key for cell in other}
    for name in ("lr", "seed", "steps", "size", "start", "scale", "objective", "out", "tokens", "vocab", "keep_model"):
        with pytest.raises(InputError, match=f"setting '{name}' is fixed by the grid or its tokens"):
            group_cells(["pilot"], settings={name: 1})
    with pytest.raises(InputError, match="setting 'bach' does not exist, did you mean 'batch'"):
        group_cells(["pilot"], settings={"bach": 1})
    with pytest.raises(InputError, match="batch is 'x', expected a whole number"):
        group_cells(["pilot"], settings={"batch": "x"})


def test_duplicates_are_dropped() -> None:
    twice = custom_grid(["baseline", "symmetric", "baseline"], [1e-3, 1e-3], 2)
    assert twice == custom_grid(["baseline", "symmetric"], [1e-3], 2) and len(twice) == 4


def test_an_unknown_name_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match="group 'cor' does not exist, did you mean 'core'"):
        group_cells(["cor"])
    with pytest.raises(InputError, match="start 'unit symetric' is not in these groups, did you mean 'unit symmetric'"):
        group_cells(["core"], ["unit symetric"])
    with pytest.raises(InputError, match="start 'symetric' does not exist"):
        custom_grid(["unit symetric"], [1e-3], 1)
    with pytest.raises(InputError, match="seeds is 0"):
        custom_grid(["baseline"], [1e-3], 0)


def test_the_groups_have_their_cells_and_fingerprints() -> None:
    count = {name: len(group) for name, group in GROUPS.items()}
    assert count["core"] == 5 * 2 * 3 and count["mimetic"] == 4 * 2 * 3 and count["slow"] == 3
    assert count["large"] == 9 and count["causal"] == 6 and count["more-seeds"] == 3 * 2 * 2
    every = {cell.key: cell for group in GROUPS.values() for cell in group}
    assert every["masked-4x256-lr0.0005-9500-baseline-seed0"].config("a", "b").fingerprint == "b5adc1dc2764d0f3"
    assert all(cell.config("a", "b").evaluations == 100 for cell in every.values())
