"""ScoreTable: summary, equality, concatenation, saving and loading."""

from __future__ import annotations

import polars as pl
import pytest

from attngeo.data import bundled
from attngeo.errors import InputError, SourceError
from attngeo.io.tables import parquet_bytes
from attngeo.weights.scoring.score import score
from attngeo.weights.scoring.score_table import (
    COLUMNS,
    SCORES,
    ScoreTable,
    head_nulls,
    layer_nulls,
)


def score_row(layer: int, head: int | None, symmetry: float | None, directionality: float | None, **more) -> dict:
    about = {"model": "m", "stack": "encoder", "layer": layer, "head": head, "cross": False}
    about |= {"query_width": 64, "key_width": 64, "rank": 8}
    return about | {"symmetry": symmetry, "directionality": directionality} | more


@pytest.fixture
def table() -> ScoreTable:
    rows = [score_row(layer, None, layer / 10, -layer / 10) for layer in range(4)]
    rows += [score_row(0, head, s, 0.5, dominance=-head / 2) for head, s in enumerate((0.0, 0.25, 1.0))]
    rows += [score_row(1, 0, None, None), score_row(0, None, 0.9, 0.9, stack="cross", cross=True)]
    return ScoreTable.of(rows, ("a note", "and <another>"))


def test_a_table_has_every_column_with_its_type(table):
    assert {name: str(kind) for name, kind in table.frame.schema.items()} == COLUMNS
    assert ScoreTable.of([]).frame.schema == table.frame.schema
    assert len(table) == 9
    assert table.frame["norm"].null_count() == 9


def test_the_summary_has_medians_and_quartiles_per_stack_and_level(table):
    layers, heads = table.summary().to_dicts()
    assert (layers["model"], layers["stack"], layers["level"], layers["count"]) == ("m", "encoder", "layer", 4)
    assert (heads["level"], heads["count"]) == ("head", 3)  # the head without a score is not counted
    expected = {
        "symmetry": ((0.075, 0.15, 0.225), (0.125, 0.25, 0.625)),
        "directionality": ((-0.225, -0.15, -0.075), (0.5, 0.5, 0.5)),
        "symmetry_rope": (None, None),
        "dominance": (None, (-0.75, -0.5, -0.25)),
    }
    for name, levels in expected.items():
        for row, quartiles in zip((layers, heads), levels, strict=True):
            found = [row[f"{name}_{quantile}"] for quantile in ("q25", "median", "q75")]
            assert found == ([None] * 3 if quartiles is None else pytest.approx(quartiles)), name
    assert ScoreTable.of([]).summary().height == 0


def test_a_table_is_an_immutable_value(table):
    assert table == ScoreTable(table.frame.clone(), table.notes)
    assert table != ScoreTable(table.frame, ())
    assert table != ScoreTable(table.frame.head(3), table.notes)
    with pytest.raises(AttributeError):
        table.notes = ()


def test_tables_are_concatenated_with_their_notes(table):
    other = ScoreTable.of([score_row(0, None, 0.1, 0.2, model="n")], ("a note", "third"))
    both = table + other
    assert len(both) == len(table) + 1
    assert both.notes == ("a note", "and <another>", "third")
    assert both.summary()["model"].to_list() == ["m", "m", "n"]


def test_rows_that_both_tables_have_are_counted_once(table):
    assert table + table == table
    rows = [score_row(3, None, 0.3, -0.3), score_row(4, None, 0.4, -0.4)]  # of which the first is in the table
    assert (table + ScoreTable.of(rows)).summary()["count"].to_list() == [5, 3]
    encoder = score(bundled("encoder"), nulls=False)
    parts = score(bundled("encoder"), nulls=False, layers=[0, 1]) + score(
        bundled("encoder"), nulls=False, layers=[2, 3]
    )
    assert encoder + parts == parts + encoder == encoder


def test_two_models_of_one_name_are_refused(table):
    other = ScoreTable.of([score_row(5, None, 0.1, 0.1), score_row(0, 1, 0.2, 0.5)])
    with pytest.raises(
        InputError, match=r"^m: encoder layer 0 head 1 has different scores in the two tables, expected"
    ):
        table + other
    with pytest.raises(InputError, match=r"^m: cross layer 0 has different scores"):
        table + ScoreTable.of([score_row(0, None, 0.8, 0.9, stack="cross", cross=True)])


def test_a_saved_table_loads_back(table, tmp_path):
    path = tmp_path / "scores.parquet"
    table.save(path)
    assert ScoreTable.load(path) == table
    assert pl.read_parquet(path).equals(table.frame)  # any Parquet reader can read it
    larger = table + ScoreTable.of([score_row(4, None, 0.1, 0.2)])
    larger.save(str(path))
    assert ScoreTable.load(str(path)) == larger
    assert [file.name for file in tmp_path.iterdir()] == ["scores.parquet"]


def test_other_suffixes_than_parquet_are_refused(table, tmp_path):
    with pytest.raises(ValueError, match=r"scores.csv: a score table is saved as .parquet"):
        table.save(tmp_path / "scores.csv")
    assert not list(tmp_path.iterdir())


OTHERS = {
    "no parquet": lambda table: b"words",
    "cut": lambda table: parquet_bytes(table.frame, {})[:-40],
    "another table": lambda table: parquet_bytes(pl.DataFrame({"a": [1]}), {}),
    "written by another program": lambda table: parquet_bytes(table.frame, {}),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_the_error_about_a_file_that_holds_no_table_names_it(table, tmp_path, kind):
    path = tmp_path / "t.parquet"
    path.write_bytes(OTHERS[kind](table))
    with pytest.raises(SourceError, match=r"t\.parquet: is damaged, or not a score table saved by attngeo") as caught:
        ScoreTable.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"none.parquet: cannot be read \(No such file or directory\)"):
        ScoreTable.load(tmp_path / "none.parquet")


def test_repr_shows_the_scores(smollm2):
    printed = repr(score(smollm2, layers=[0]))
    title, _, _, names, *_ = printed.splitlines()
    assert title == f"{smollm2}: 10 rows; .frame has all 45 columns"
    assert [name.strip() for name in names.strip("│").split("┆")] == [
        *("layer", "head", "symmetry", "symmetry_rope", "directionality", "dominance", "symmetry_z")
    ]
    both = repr(score(bundled("encoder"), nulls=False) + score(bundled("decoder"), nulls=False))
    assert "model" in both.splitlines()[3] and "dominance" in both.splitlines()[3] and "_z" not in both


def test_repr_and_html_contain_the_notes(table):
    assert "a note" in repr(table)
    page = table._repr_html_()
    assert "<table" in page
    assert "and &lt;another&gt;" in page


def test_a_table_plots_both_scores(table):
    symmetry, directionality = table.plot().axes
    assert symmetry.get_lines()[0].get_ydata().tolist() == [layer / 10 for layer in range(4)]
    assert directionality.get_lines()[0].get_ydata().tolist() == [-layer / 10 for layer in range(4)]


FREQUENCY = {"model": "m", "stack": "decoder", "layer": 0, "head": 1, "pair": 2, "frequency": 0.1, "energy": 0.5}


def test_frequencies_are_part_of_the_value(table, tmp_path):
    with_pairs = ScoreTable(table.frame, table.notes, ScoreTable.of([], (), [FREQUENCY]).frequencies)
    assert with_pairs.frequencies["energy"].to_list() == [0.5] and with_pairs.frequencies["alpha"].to_list() == [None]
    assert table.frequencies is None and with_pairs != table and table != with_pairs
    assert (table + with_pairs).frequencies.equals(with_pairs.frequencies)
    assert with_pairs + with_pairs == with_pairs
    more = ScoreTable.of([], (), [FREQUENCY | {"pair": 3}])
    assert (with_pairs + more).frequencies["pair"].to_list() == [2, 3]
    assert (table + table).frequencies is None
    with_pairs.save(tmp_path / "t.parquet")
    assert ScoreTable.load(tmp_path / "t.parquet") == with_pairs
    empty = ScoreTable.of([], (), [])
    empty.save(tmp_path / "empty.parquet")
    assert ScoreTable.load(tmp_path / "empty.parquet") == empty != ScoreTable.of([])


def test_model_types_are_kept(table, tmp_path):
    typed = ScoreTable.of([], model_types={"a": "diffusers:UNet2DModel"})
    both = table + typed
    assert both.model_types == {**table.model_types, "a": "diffusers:UNet2DModel"}
    assert both != ScoreTable(both.frame, both.notes, both.frequencies)
    both.save(tmp_path / "t.parquet")
    assert ScoreTable.load(tmp_path / "t.parquet") == both


# ---- the chance level of the layers and heads of each stack


@pytest.mark.parametrize("nulls", [layer_nulls, head_nulls])
@pytest.mark.parametrize("model", ["encoder", "smollm2"])
def test_a_score_and_its_null_give_its_z(model, nulls, request):
    rotary = model == "smollm2"
    ref = request.getfixturevalue(model) if rotary else bundled(model)
    frame = score(ref, layers=[0, 1], folded=False).frame
    ((key, levels),) = nulls(frame).items()
    assert key == frame.select("model", "stack").row(0)
    assert set(levels) == set(SCORES) - (set() if rotary else {"symmetry_rope", "directionality_rope"})
    assert levels["symmetry"].mean == 1 / frame["query_width"][0]
    of_heads = frame["head"].is_not_null() == (nulls is head_nulls)
    for name, level in levels.items():
        rows = frame.filter(of_heads).drop_nulls(f"{name}_z")
        assert rows.height > 1
        expected = (rows[name] - level.mean) / level.std
        assert rows[f"{name}_z"].to_list() == pytest.approx(expected.to_list(), rel=1e-9, abs=1e-9)
    assert nulls(frame.filter(of_heads).head(1)) == {key: levels}


def test_a_table_without_nulls_has_means_only():
    nulls = layer_nulls(score(bundled("encoder"), nulls=False).frame)
    ((_, levels),) = nulls.items()
    assert [(level.mean, level.std) for level in levels.values()] == [(1 / 128, None)] + 3 * [(0, None)]
    (of_heads,) = head_nulls(score(bundled("encoder"), nulls=False).frame).values()
    assert of_heads["symmetry"].mean == 1 / 128  # of the width, not of the rank


def test_cross_attention_has_no_standard_deviation():
    ((_, levels),) = layer_nulls(score(bundled("encoder")).frame.with_columns(cross=True)).items()
    assert {level.std for level in levels.values()} == {None}


def test_a_table_without_heads_has_no_null_of_heads():
    assert head_nulls(score(bundled("encoder"), heads=False).frame) == {}
