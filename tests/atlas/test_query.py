"""SQL over an atlas reads its tables, and can neither write nor read anything else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import attngeo
from attngeo.errors import InputError
from tests.atlas.small_models import make_models

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> attngeo.Atlas:
    """An atlas in a folder whose name has characters that mean something in SQL and in patterns."""
    folder = tmp_path_factory.mktemp("query")
    atlas = attngeo.Atlas(folder / "it's [an] atlas*")
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
        "null as n, 0.5 as half from scores group by 1 order by 1"
    )
    kinds = [pl.String, pl.Float64, pl.Int64, pl.Boolean, pl.String, pl.String, pl.Float64]
    assert list(frame.schema.values()) == kinds
    assert frame.filter(model_type="t5").select("c", "d", "n", "half").row(0) == (True, "2026-01-31", None, 0.5)


def test_other_types_become_text(atlas: attngeo.Atlas) -> None:
    query = 'select timestamptz \'2026-01-31 12:00:00+00\' as "a ""time""", [1, 2] as l, {\'a\': 1} as s -- all'
    [(time, *others)] = atlas.sql(query).rows()
    assert time.startswith("2026-01-31 12:00:00") and others == ["[1, 2]", "{'a': 1}"]


def test_an_empty_atlas_has_tables(tmp_path: Path) -> None:
    atlas = attngeo.Atlas(tmp_path / "atlas")
    atlas.add([])
    for table, frame in (("scores", atlas.frame()), ("models", atlas.models()), ("failures", atlas.failures())):
        found = atlas.sql(f"from {table}")
        assert found.height == 0 and found.schema == frame.schema


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: _flipped(data)])
def test_a_damaged_part_is_an_error_as_in_python(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """DuckDB would leave the model out, or read other numbers: it does not know of the digest."""
    models = make_models(tmp_path / "models", 2)
    atlas = attngeo.Atlas(tmp_path / "atlas")
    atlas.add(models, workers=0)
    part = atlas.path / "scores" / f"{atlas.models()['part'][0]}.parquet"
    whole = part.read_bytes()
    part.write_bytes(damage(whole))
    messages = []
    for read in (atlas.frame, lambda: atlas.sql("select sum(symmetry) from scores")):
        with pytest.raises(InputError, match=part.name) as raised:
            read()
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    part.unlink()
    atlas.add(models, workers=0)
    assert part.read_bytes() == whole and atlas.sql("from scores").height == atlas.frame().height


def _flipped(data: bytes) -> bytes:
    """Return a part with one damaged bit among its rows, which DuckDB reads without an error."""
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little") - 12
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "query, message",
    [
        ("selec 1", r'syntax error at or near "selec" \(line 1: selec 1\)$'),
        ("select nothing from scores", "nothing"),
        ("select 1 from modles", "no table modles, expected one of models, scores,"),
        ("select 1 as a, 2 as a", "two columns are called a"),
        ("", "found nothing"),
        ("select 1; select 2", "expected one SELECT"),
        ("explain analyze copy scores to 'FOLDER/x.csv'", "expected one SELECT, found EXPLAIN"),
        ("copy scores to 'FOLDER/atlas/x.csv'", "expected one SELECT, found COPY"),
        ("create table t as from scores", "expected one SELECT, found CREATE"),
        ("attach 'FOLDER/x.db'", "expected one SELECT, found ATTACH"),
        ("install httpfs", "expected one SELECT, found LOAD"),
        ("set enable_external_access = true", "expected one SELECT, found SET"),
        ("from read_text('FOLDER/secret.txt')", "Permission Error"),
        ("from read_csv('FOLDER/atlas/../secret.txt')", "Permission Error"),
        ("from glob('FOLDER/*')", "Permission Error"),
        ("from 'FOLDER/secret.txt'", "no table"),
        ("from read_text('https://example.org/')", "Error"),
        ("from query('copy (select 1) to ''FOLDER/x.csv''')", "SELECT"),
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


def test_a_folder_whose_name_is_not_text_is_one_line(tmp_path: Path) -> None:
    atlas = attngeo.Atlas(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"caf\xe9")))
    atlas.add(attngeo.bundled("encoder"), workers=0, heads=False, nulls=False)
    assert atlas.frame().height == 4
    with pytest.raises(InputError, match="is not valid UTF-8, DuckDB cannot open it"):
        atlas.sql("select 1")
