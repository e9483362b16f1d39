"""SQL over the tables of an atlas by DuckDB, which reads their files in place and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attngeo.atlas.store import FRAME_COLUMNS, IN_FRAME, TABLES, Store
from attngeo.errors import InputError, one_line

if TYPE_CHECKING:
    import duckdb
    import polars as pl

VIEWS = ("models", "scores", "failures", "organized", "invariance", "head_pairs")  # in the order they are made
# Type of a column in polars → in DuckDB.
_TYPES = {"String": "VARCHAR", "Int64": "BIGINT", "Float64": "DOUBLE", "Float32": "FLOAT", "Boolean": "BOOLEAN"}
_CONFIG: dict[str, Any] = {
    "python_enable_replacements": "false",  # variables of the caller are no tables
    "temp_directory": "",  # nothing is written to disk, however large a query
}


def run_query(store: Store, query: str) -> pl.DataFrame:
    """Return the result of one SELECT over the views of an atlas: scores, models, failures, organized, …"""
    try:
        import duckdb
    except ImportError:
        raise InputError("SQL over an atlas needs DuckDB: pip install 'attngeo[atlas]'") from None
    connection = duckdb.connect(":memory:", config=_CONFIG)
    try:
        for name in VIEWS:
            connection.execute(f"CREATE VIEW {name} AS {_view(store, name)}")
        # Forbid everything but reading the folder: other files, the network, extensions.
        connection.execute(f"SET allowed_directories = [{_quoted(f'{store.root.absolute()}/')}]")
        connection.execute("SET enable_external_access = false")
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
            raise InputError(f"SQL: expected one SELECT, found {kinds}")
        return _result(connection, query)
    except duckdb.Error as error:
        raise InputError(f"SQL: {_message(error)}") from None
    finally:
        connection.close()


def _view(store: Store, name: str) -> str:
    """Return the SELECT of a view, with the columns of the same table in Python."""
    source = _source(store, name)
    if name == "scores":
        models = f"(SELECT {_columns((*IN_FRAME, 'part'))} FROM models)"
        return f"SELECT {_columns(FRAME_COLUMNS)} FROM {models} JOIN {source} USING (part)"
    if "content" in TABLES[name]:  # of a network
        columns = _columns(dict.fromkeys((*TABLES["networks"], *TABLES[name])))
        return f"SELECT {columns} FROM {_source(store, 'networks')} JOIN {source} USING (content)"
    return f"SELECT * FROM {source}"


def _source(store: Store, table: str) -> str:
    """Return what a view selects from: the files of a table."""
    files = [_quoted(str(store.path(table, name).absolute())) for name in store.names(table)]
    if files:
        return f"(SELECT {_columns(TABLES[table])} FROM read_parquet([{', '.join(files)}], union_by_name = true))"
    columns = ", ".join(f"NULL::{_TYPES[kind]} AS {_columns([name])}" for name, kind in TABLES[table].items())
    return f"(SELECT {columns} WHERE false)"


def _result(connection: duckdb.DuckDBPyConnection, query: str) -> pl.DataFrame:
    """Return the result with plain column types, so that every format can hold it; others become text.

    Rows are fetched as Python values: passing Arrow data needs pyarrow in some versions of DuckDB, and makes others
    complain at exit.
    """
    import polars as pl

    found = connection.sql(query)
    names = [str(name) for name in found.columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"SQL: two columns are called {twice[0]}, name one of them with AS")
    kinds = [_plain(str(kind)) for kind in found.types]
    # DuckDB itself turns values into text: as Python values, times with a zone need another library.
    casts = [f"CAST({_columns([name])} AS {_TYPES[kind]})" for name, kind in zip(names, kinds, strict=True)]
    rows = found.project(", ".join(casts)).fetchall()
    schema = {name: getattr(pl, kind) for name, kind in zip(names, kinds, strict=True)}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _plain(kind: str) -> str:
    """Return the type of a result for a type of DuckDB."""
    if kind.endswith(("INT", "INTEGER")):  # TINYINT to UHUGEINT
        return "Int64"
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
