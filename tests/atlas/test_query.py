"""SQL over an atlas reads its tables, and can neither write nor read anything else."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import attngeo
from attngeo.errors import InputError
from tests.atlas.small_models import make_models

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> attngeo.Atlas:
    """An atlas in a folder whose name has a character that means something in SQL."""
    folder = tmp_path_factory.mktemp("query")
    atlas = attngeo.Atlas(folder / "it's an atlas")
    atlas.add([*make_models(folder / "models", 6), folder / "missing"], workers=0)
    return atlas


def test_tables_are_those_of_python(atlas: attngeo.Atlas) -> None:
    frame = atlas.frame()
    order = ["model", "stack", "layer", "head"]
    assert atlas.sql("select * from scores").sort(order).equals(frame.sort(order))
    assert atlas.sql("from models").sort("model").equals(atlas.models())
    assert atlas.sql("from failures").equals(atlas.failures())


def test_results_have_plain_types(atlas: attngeo.Atlas) -> None:
    frame = atlas.sql(
        "select model_type, median(symmetry) as s, sum(layer) as l, bool_or(\"cross\") as c, date '2026-01-31' as d, "
        "null as n, 0.5 as half, [1, 2] as l2 from scores group by 1 order by 1"
    )
    kinds = [pl.String, pl.Float64, pl.Int64, pl.Boolean, pl.String, pl.String, pl.Float64, pl.String]
    assert list(frame.schema.values()) == kinds
    assert frame.filter(model_type="t5").row(0)[3:] == (True, "2026-01-31", None, 0.5, "[1, 2]")


def test_an_empty_atlas_has_tables(tmp_path: Path) -> None:
    atlas = attngeo.Atlas(tmp_path / "atlas")
    atlas.add([])
    for table, frame in (("scores", atlas.frame()), ("models", atlas.models()), ("failures", atlas.failures())):
        found = atlas.sql(f"from {table}")
        assert found.height == 0 and found.schema == frame.schema


@pytest.mark.parametrize(
    "query, message",
    [
        ("selec 1", r'syntax error at or near "selec" \(line 1: selec 1\)$'),
        ("select nothing from scores", "nothing"),
        ("select 1 from modles", "no table modles, expected one of models, scores,"),
        ("select 1 as a, 2 as a", "two columns are called a"),
        ("", "found nothing"),
        ("select 1; select 2", "expected one SELECT"),
        ("copy scores to 'FOLDER/atlas/x.csv'", "expected one SELECT, found COPY"),
        ("from read_text('FOLDER/secret.txt')", "Permission Error"),
        ("from 'FOLDER/secret.txt'", "no table"),
        ("from read_text('https://example.org/')", "Error"),
        ("from secret_frame", "no table secret_frame"),
    ],
)
def test_a_query_reads_the_atlas_and_nothing_else(tmp_path: Path, query: str, message: str) -> None:
    secret_frame = pl.DataFrame({"a": [1]})  # DuckDB would find this variable  # noqa: F841
    (tmp_path / "secret.txt").write_text("secret")
    atlas = attngeo.Atlas(tmp_path / "atlas")
    atlas.add([])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=message) as raised:
        atlas.sql(query.replace("FOLDER", str(tmp_path)))
    assert str(raised.value).startswith("SQL: ") and "\n" not in str(raised.value)
    assert sorted(tmp_path.rglob("*")) == before
