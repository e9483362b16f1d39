"""SQL over an atlas, by DuckDB, which reads the Parquet files in place and may touch nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attngeo.atlas.store import TABLES, Store
from attngeo.atlas.tables import FRAME_COLUMNS, IN_FRAME, STATE, check_parts, models_frame
from attngeo.errors import InputError, one_line

if TYPE_CHECKING:
    import duckdb
    import polars as pl

VIEWS = ("models", "scores", "failures", "organized", "invariance", "head_pairs")  # in the order they are made
# Type of a column in polars → in DuckDB.
_TYPES = {"String": "VARCHAR", "Int64": "BIGINT", "Float64": "DOUBLE", "Float32": "FLOAT", "Boolean": "BOOLEAN"}
_CONFIG: dict[str, Any] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # variables of the caller are no tables
    "temp_directory": "",  # nothing is written to disk, however large a query
}


def run_query(store: Store, query: str) -> pl.DataFrame:
    """Return the result of one SELECT over the views of an atlas: scores, models, failures, organized, …"""
    try:
        import duckdb
    except ImportError:
        raise InputError("SQL over an atlas needs DuckDB: pip install 'attngeo[atlas]'") from None
    try:
        str(store.root.absolute()).encode()
    except UnicodeEncodeError:
        raise InputError(f"{store.root}: is not valid UTF-8, DuckDB cannot open it; rename the folder") from None
    connection = duckdb.connect(":memory:", config=_CONFIG)
    try:
        _make_views(connection, store)
        check_parts(store, models_frame(store))
        _lock(connection, store)
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
            raise InputError(f"SQL: expected one SELECT, found {kinds}")
        return _result(connection, query)
    except duckdb.Error as error:
        raise InputError(f"SQL: {_message(error)}") from None
    finally:
        connection.close()


def _make_views(connection: duckdb.DuckDBPyConnection, store: Store) -> None:
    newest = f"results = max(results) OVER (PARTITION BY {_columns(STATE)})"
    views = {
        "models": f"SELECT DISTINCT * FROM {_source(store, 'models')} QUALIFY {newest}",
        "failures": f"SELECT * FROM {_source(store, 'failures')}",
        # With the columns, and in the order, of `Atlas.frame`.
        "scores": (
            f"SELECT {_columns(FRAME_COLUMNS)} FROM (SELECT {_columns((*IN_FRAME, 'part'))} FROM models) "
            f"JOIN {_source(store, 'scores')} USING (part)"
        ),
        "organized": _of_networks(store, "organized"),
        "invariance": _of_networks(store, "invariance"),
        "head_pairs": f"SELECT * FROM {_source(store, 'head_pairs')}",
    }
    for name in VIEWS:
        connection.execute(f"CREATE VIEW {name} AS {views[name]}")


def _of_networks(store: Store, table: str) -> str:
    """Return the select of results of organised networks, with the columns of the frames in Python."""
    columns = _columns(dict.fromkeys((*TABLES["networks"], *TABLES[table])))
    newest = "results = max(results) OVER (PARTITION BY content, options, text)"
    return (
        f"SELECT {columns} FROM (SELECT DISTINCT * FROM {_source(store, 'networks')}) "
        f"JOIN (SELECT * FROM {_source(store, table)} QUALIFY {newest}) USING (content)"
    )


def _source(store: Store, table: str) -> str:
    """Return what a view selects from: the files of a table, with the columns that this version knows."""
    columns = ", ".join(f"NULL::{_TYPES[kind]} AS {_columns([name])}" for name, kind in TABLES[table].items())
    empty = f"SELECT {columns} WHERE false"
    folder = _quoted(_literal(f"{store.root.absolute()}/{table}"))
    files = [f"{folder[:-1]}/{name}.parquet'" for name in store.sound_names(table)]
    if not files:
        return f"({empty})"
    # Files of older versions lack columns, which the empty select adds.
    return f"({empty} UNION ALL BY NAME SELECT * FROM read_parquet([{', '.join(files)}], union_by_name = true))"


def _lock(connection: duckdb.DuckDBPyConnection, store: Store) -> None:
    """Forbid everything but reading the folder: other files, the network, extensions, and changes of these settings."""
    root = f"{store.root.absolute()}/"
    folders = ", ".join({_quoted(root), _quoted(_literal(root))})
    connection.execute(f"SET allowed_directories = [{folders}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _result(connection: duckdb.DuckDBPyConnection, query: str) -> pl.DataFrame:
    """Return the result with plain column types, so that every format can hold it; others become text.

    Rows are fetched as Python values: passing Arrow data needs pyarrow in some versions of DuckDB, and makes others
    complain at exit.
    """
    import polars as pl

    found = connection.sql(query)
    names = [str(name) for name in found.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"SQL: two columns are called {twice}, name one of them with AS")
    kinds = [_plain(str(kind)) for kind in found.types]
    # DuckDB itself turns values into text: as Python values, times with a zone need another library.
    columns = [_columns([name]) for name in names]
    casts = [c if kind == "Int128" else f"CAST({c} AS {_TYPES[kind]})" for c, kind in zip(columns, kinds, strict=True)]
    rows = found.project(", ".join(casts)).fetchall()
    frame = {}
    for i, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        values = [row[i] for row in rows]
        if kind == "Int128" and all(value is None or abs(value) < 2**63 for value in values):
            kind = "Int64"  # a sum of whole numbers has 128 bits, and mostly needs fewer
        frame[name] = pl.Series(name, values, pl.Float64 if kind == "Int128" else getattr(pl, kind))
    return pl.DataFrame(frame)


def _plain(kind: str) -> str:
    """Return the type of a result for a type of DuckDB."""
    if kind.endswith(("INT", "INTEGER")):  # TINYINT to UHUGEINT
        return "Int128"
    if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL"):
        return "Float64"
    return "Boolean" if kind == "BOOLEAN" else "String"


def _message(error: duckdb.Error) -> str:
    """Return the message of DuckDB as one line, without the mark under the place of an error."""
    text = str(error)
    if missing := re.match(r"Catalog Error: Table with name (.+) does not exist!", text):
        return f"no table {missing[1]}, expected one of {', '.join(VIEWS)}"
    if placed := re.fullmatch(r"(.*)\n\s*LINE (\d+): (.*)\n\s*\^+\s*", text, re.DOTALL):
        text = f"{placed[1].strip()} (line {placed[2]}: {placed[3].strip()})"
    return one_line(text)


def _columns(names: Iterable[str]) -> str:
    """Return a list of columns; some of them, such as cross, are words of SQL."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literal(path: str) -> str:
    """Return a path in which DuckDB finds no patterns."""
    return "".join(f"[{c}]" if c in "[*?" else c for c in path)
