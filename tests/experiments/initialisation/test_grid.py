"""The grid: groups of paired cells, custom grids, and the settings that may replace the usual ones."""

from __future__ import annotations

import pytest

from attngeo.errors import InputError
from experiments.initialisation.grid import custom_grid, group_cells


def test_settings_that_change_results_make_other_cells() -> None:
    usual, other = group_cells(["pilot"]), group_cells(["pilot"], settings={"batch": 64, "compile": "no"})
    assert [cell.key for cell in usual] == ["masked-4x256-lr0.0005-9500-baseline-seed0",
                                            "masked-4x256-lr0.0005-9500-unit-symmetric-seed0"]  # fmt: skip
    assert [cell.other for cell in other] == [(("batch", 64),)] * 2
    assert not {cell.key for cell in usual} & {cell.key for cell in other}
    for name in ("lr", "seed", "objective", "out", "vocab", "keep_model", "self_bias"):
        with pytest.raises(InputError, match=f"setting '{name}' is fixed by the grid or its tokens"):
            group_cells(["pilot"], settings={name: 1})
    with pytest.raises(InputError, match="setting 'bach' does not exist, did you mean 'batch'"):
        group_cells(["pilot"], settings={"bach": 1})
    with pytest.raises(InputError, match="batch is 'x', expected a whole number"):
        group_cells(["pilot"], settings={"batch": "x"})
    with pytest.raises(InputError, match="until_loss is 'low', expected a finite number"):
        group_cells(["pilot"], settings={"until_loss": "low"})


def test_an_initialisation_is_named_with_its_scale_and_its_self_bias() -> None:
    cells = custom_grid(["std 0.03 symmetric", "half-unit symmetric", "unit independent with self-bias"], [1e-3], 1)
    configs = [cell.config("a", "b") for cell in cells]
    assert [(config.start, config.scale, config.self_bias) for config in configs] == [
        ("symmetric", 0.03, False),
        ("symmetric", "half-unit", False),
        ("independent", "unit", True),
    ]
    assert cells[2].key == "masked-4x256-lr0.001-9500-unit-independent-with-self-bias-seed0"
    for start, expected in (("std x symmetric", "expected a number after std"), ("std 0.1", "start '' does not exist")):
        with pytest.raises(InputError, match=expected):
            custom_grid([start], [1e-3], 1)
