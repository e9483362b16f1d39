"""The grid: groups of paired cells, custom grids, and the settings that may replace the usual ones."""

from __future__ import annotations

import pytest

from attngeo.errors import InputError
from experiments.initialisation.grid import ARCHITECTURE_GROUPS, GROUPS, custom_grid, group_cells


def test_settings_that_change_results_make_other_cells() -> None:
    usual, other = group_cells(["pilot"]), group_cells(["pilot"], settings={"batch": 64, "compile": "no"})
    assert [cell.key for cell in usual] == ["masked-4x256-lr0.0005-9500-baseline-seed0",
                                            "masked-4x256-lr0.0005-9500-unit-symmetric-seed0"]  # fmt: skip
    assert [cell.other for cell in other] == [(("batch", 64),)] * 2
    assert not {cell.key for cell in usual} & {cell.key for cell in other}
    for name in (
        "lr",
        "seed",
        "steps",
        "size",
        "start",
        "scale",
        "objective",
        "out",
        "tokens",
        "vocab",
        "keep_model",
        "self_bias",
    ):
        with pytest.raises(InputError, match=f"setting '{name}' is fixed by the grid or its tokens"):
            group_cells(["pilot"], settings={name: 1})
    with pytest.raises(InputError, match="setting 'bach' does not exist, did you mean 'batch'"):
        group_cells(["pilot"], settings={"bach": 1})
    with pytest.raises(InputError, match="batch is 'x', expected a whole number"):
        group_cells(["pilot"], settings={"batch": "x"})
    with pytest.raises(InputError, match="until_loss is 'low', expected a finite number"):
        group_cells(["pilot"], settings={"until_loss": "low"})


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


def test_the_learning_rates_of_a_group_can_be_replaced() -> None:
    cells = group_cells(["tuned-rate"], ["baseline", "unit symmetric"], rates=(2e-3, 1e-3))
    assert len(cells) == 2 * 2 * 5 and {cell.lr for cell in cells} == {1e-3, 2e-3}
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    assert len(group_cells(["tuned-rate-screen"], rates=(8e-3,))) == 3


def test_every_item_of_the_comparison_has_its_cells() -> None:
    count = {name: len(group) for name, group in ARCHITECTURE_GROUPS.items()}
    assert count["tuned-rate-screen"] == 3 * 4 and count["tuned-rate"] == 15 and count["modernbert"] == 25
    assert (
        count["large-long"] == 11
        and count["mechanism"] == 8 * 2 * 5
        and count["scale"] == 30
        and count["causal-tuned"] == 18
    )
    large = ARCHITECTURE_GROUPS["largest"][0]
    assert large.until_loss == 5.0 and large.config("a", "b").shape == (24, 1024, 16)
    assert ARCHITECTURE_GROUPS["large-long"][0].key == "masked-12x768-lr0.0005-8000-warmup1000-baseline-seed0"
    assert ARCHITECTURE_GROUPS["modernbert"][0].config("a", "b").architecture == "modernbert"
    # An initialisation and its baseline are in one setting, so that they can be compared.
    assert all(
        len({cell.setting for cell in ARCHITECTURE_GROUPS[name]}) == 1
        for name in ("tuned-rate", "pre-norm", "large-long", "scale")
    )


def test_the_groups_have_their_cells_and_fingerprints() -> None:
    count = {name: len(group) for name, group in GROUPS.items()}
    assert count["core"] == 5 * 2 * 3 and count["mimetic"] == 4 * 2 * 3 and count["slow"] == 3
    assert count["large"] == 9 and count["causal"] == 6 and count["more-seeds"] == 3 * 2 * 2
    every = {cell.key: cell for group in GROUPS.values() for cell in group}
    assert {key for key, cell in every.items() if cell.config("a", "b").evaluations != 100} == {
        cell.key
        for cell in GROUPS["largest-screen"]  # 600 steps
    }
