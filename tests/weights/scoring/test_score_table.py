"""ScoreTable: a value that summarises, joins, saves and loads."""

from __future__ import annotations

import polars as pl
import pytest

from attngeo.errors import SourceError
from attngeo.weights.scoring.score_table import COLUMNS, ScoreTable


def row(layer: int, head: int | None, symmetry: float | None, directionality: float | None, **more) -> dict:
    about = {"model": "m", "stack": "encoder", "layer": layer, "head": head, "cross": False, "query_width": 64}
    return about | {"symmetry": symmetry, "directionality": directionality} | more


@pytest.fixture
def table() -> ScoreTable:
    rows = [row(layer, None, layer / 10, -layer / 10) for layer in range(4)]
    rows += [row(0, head, s, 0.5) for head, s in enumerate((0.0, 0.25, 1.0))]
    rows += [row(1, 0, None, None), row(0, None, 0.9, 0.9, stack="cross", cross=True)]
    return ScoreTable.of(rows, ("a note", "and <another>"))


def test_every_column_is_there_with_its_type(table):
    assert {name: str(kind) for name, kind in table.frame.schema.items()} == COLUMNS
    assert ScoreTable.of([]).frame.schema == table.frame.schema
    assert len(table) == 9
    assert table.frame["norm"].null_count() == 9


def test_summary(table):
    assert table.summary().to_dicts() == [
        {
            "model": "m",
            "stack": "encoder",
            "level": "layer",
            "count": 4,
            "symmetry_median": pytest.approx(0.15),
            "symmetry_q25": pytest.approx(0.075),
            "symmetry_q75": pytest.approx(0.225),
            "directionality_median": pytest.approx(-0.15),
            "directionality_q25": pytest.approx(-0.225),
            "directionality_q75": pytest.approx(-0.075),
        },
        {
            "model": "m",
            "stack": "encoder",
            "level": "head",
            "count": 3,  # the head without a score is not counted
            "symmetry_median": 0.25,
            "symmetry_q25": 0.125,
            "symmetry_q75": 0.625,
            "directionality_median": 0.5,
            "directionality_q25": 0.5,
            "directionality_q75": 0.5,
        },
    ]
    assert ScoreTable.of([]).summary().height == 0


def test_it_is_a_value(table):
    assert table == ScoreTable(table.frame.clone(), table.notes)
    assert table != ScoreTable(table.frame, ())
    assert table != ScoreTable(table.frame.head(3), table.notes)
    assert table != "table"
    with pytest.raises(AttributeError):
        table.notes = ()


def test_tables_join(table):
    other = ScoreTable.of([row(0, None, 0.1, 0.2, model="n")], ("a note", "third"))
    both = table + other
    assert len(both) == len(table) + 1
    assert both.notes == ("a note", "and <another>", "third")
    assert both.summary()["model"].to_list() == ["m", "m", "n"]


def test_it_saves_and_loads(table, tmp_path):
    path = tmp_path / "scores.parquet"
    table.save(path)
    assert ScoreTable.load(path) == table
    assert pl.read_parquet(path).equals(table.frame)  # any reader of parquet will do
    (table + table).save(str(path))
    assert len(ScoreTable.load(str(path))) == 2 * len(table)
    assert [file.name for file in tmp_path.iterdir()] == ["scores.parquet"]


def test_only_parquet_keeps_everything(table, tmp_path):
    with pytest.raises(ValueError, match=r"scores.csv: a score table is saved as .parquet"):
        table.save(tmp_path / "scores.csv")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_the_old_file(table, tmp_path, monkeypatch):
    path = tmp_path / "scores.parquet"
    table.save(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        (table + table).save(path)
    monkeypatch.undo()
    assert ScoreTable.load(path) == table
    assert [file.name for file in tmp_path.iterdir()] == ["scores.parquet"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet", "cut"])
def test_a_damaged_file_is_named(table, tmp_path, content):
    path = tmp_path / "scores.parquet"
    table.save(path)
    path.write_bytes(path.read_bytes()[:-40] if content == "cut" else content)
    with pytest.raises(SourceError, match=r"scores.parquet: is damaged") as caught:
        ScoreTable.load(path)
    assert "\n" not in str(caught.value)


def test_another_parquet_file_is_no_score_table(table, tmp_path):
    path = tmp_path / "other.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(SourceError, match=r"other.parquet: is not a score table"):
        ScoreTable.load(path)
    table.frame.write_parquet(path)  # without notes
    with pytest.raises(SourceError, match="is not a score table"):
        ScoreTable.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"none.parquet: cannot be read \(No such file or directory\)"):
        ScoreTable.load(tmp_path / "none.parquet")


def test_it_shows_itself(table):
    assert "a note" in repr(table)
    page = table._repr_html_()
    assert "<table" in page
    assert "and &lt;another&gt;" in page


def test_it_draws_itself(table):
    figure = table.plot()
    assert len(figure.axes) == 2
