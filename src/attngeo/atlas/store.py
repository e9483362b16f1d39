"""`Store`: the folder of an atlas, a manifest and tables whose rows lie in small Parquet files.

    attngeo-atlas.json             the version of this layout
    scores/PART.parquet            the rows of one model, named by its fingerprint
    models/KEY-REVISION.parquet    one row: a reference, its commit, and the part that holds its scores; that of
                                   files on this machine is replaced when they are
    failures/KEY.parquet           one row: a reference that could not be scored, and why; another failure replaces it
    networks/KEY-REVISION.parquet  one row: a model that was organised on texts
    organized/PART.parquet         one row: a network on a text; its heads, pair by pair, are in head_pairs/PART.parquet
    invariance/PART.parquet        one row: a network on a text, before and after the softmax

Each file is written once, atomically, by whoever finishes first; another writer would write the same rows. A part is
written before the row that refers to it. Nothing is ever appended, so that any number of processes may write. The name
of a row is made by `reference.row_name`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.arguments import is_whole
from attngeo.atlas.columns import HEAD_PAIRS, INVARIANCE, NETWORKS, ORGANIZED
from attngeo.errors import AttngeoError, InputError
from attngeo.io.archive import load_json, save_json
from attngeo.io.files import TEMPORARY, remove_unfinished, write_errors, write_file
from attngeo.io.tables import check_parquet, parquet_bytes, read_alike, read_parquet, table_of, with_all_columns
from attngeo.weights.scoring.score_table import COLUMNS

if TYPE_CHECKING:
    import polars as pl

MANIFEST = "attngeo-atlas.json"
FORMAT_VERSION = 1  # of the layout of the folder
ABANDONED = 3600  # seconds after which an unfinished file belongs to no living process; writing one takes milliseconds
# Tables whose rows cost nothing to restore: they are not forced to disk, which takes longer than writing them. After a
# power failure such a file may be empty, which counts as absent; the next call writes it again.
CHEAP = ("models", "networks", "failures")
TOGETHER = 500  # files that are read by one call

# Table → column → polars type.
TABLES = {
    "scores": {"part": "String"} | {name: kind for name, kind in COLUMNS.items() if name != "model"},
    "models": {
        "model": "String",  # org/name[/path] on the hub, or an absolute path
        "revision": "String",  # on the hub: as it was asked for
        "commit": "String",
        "options": "String",  # those that are not the defaults, as JSON
        "results": "Int64",  # version of the results; newer ones replace older ones
        "model_type": "String",  # of the config; null without one
        "part": "String",  # the file in scores/ with the rows of this model
        "notes": "String",  # warnings, layers that are left out, forms without a score
    },
    "failures": {
        "model": "String",
        "revision": "String",
        "options": "String",
        "results": "Int64",
        "part": "String",  # what could not be computed of a network on a text; null for scores and networks as a whole
        "kind": "String",  # class of the error
        "message": "String",
    },
    "networks": NETWORKS,
    "organized": ORGANIZED,
    "head_pairs": HEAD_PAIRS,
    "invariance": INVARIANCE,
}


class AtlasWriteError(AttngeoError):
    """The folder of an atlas, or the cache, cannot be written: no model can be added, whatever its content."""


@dataclass(frozen=True)
class Store:
    """The files of one atlas."""

    root: Path

    def check(self) -> None:
        """Raise InputError unless the folder is an atlas that this version can read."""
        manifest = self.root / MANIFEST
        if not self.root.is_dir():
            raise InputError(
                f"{self.root}: {'is a file' if self.root.exists() else 'no such folder'}, expected an atlas"
            )
        if not manifest.is_file():
            raise InputError(f"{self.root}: is not an atlas, it has no {MANIFEST}")
        version = load_json(manifest, "atlas").get("version")
        if not is_whole(version, lowest=1):
            raise InputError(f"{manifest}: version is {version!r}, expected a whole number from 1")
        if version > FORMAT_VERSION:
            raise InputError(
                f"{self.root}: was written by a newer version of attngeo (format {version}, this one reads up to "
                f"{FORMAT_VERSION})"
            )

    def is_new(self) -> bool:
        """Return whether the folder does not exist, or is empty but for a file that another process is writing."""
        try:
            return all(name.startswith(TEMPORARY) for name in os.listdir(self.root))
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def create(self) -> None:
        """Make the folders if they do not exist, and remove what killed processes left behind."""
        try:
            with write_errors(self.root):
                if self.is_new():
                    self.root.mkdir(parents=True, exist_ok=True)
                    save_json(self.root / MANIFEST, "atlas", {"version": FORMAT_VERSION})
                self.check()
                for table in TABLES:
                    (self.root / table).mkdir(exist_ok=True)
                    remove_unfinished(self.root / table, ABANDONED)
        except InputError:
            raise
        except AttngeoError as error:
            raise AtlasWriteError(str(error)) from error

    # One file.

    def path(self, table: str, name: str) -> Path:
        """Return the path of a file of a table."""
        return self.root / table / f"{name}.parquet"

    def has(self, table: str, name: str) -> bool:
        """Return whether a table has a file of this name; an empty one is what a power failure left."""
        try:
            return self.path(table, name).stat().st_size > 0
        except OSError:
            return False

    def write(self, table: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of one file, or nothing."""
        path = self.path(table, name)
        try:
            with write_errors(path):
                write_file(path, parquet_bytes(table_of(rows, TABLES[table]), {}), durable=table not in CHEAP)
        except AttngeoError as error:
            raise AtlasWriteError(str(error)) from error

    def remove(self, table: str, name: str) -> None:
        """Delete a file, if it exists."""
        path = self.path(table, name)
        try:
            with write_errors(path):
                path.unlink(missing_ok=True)
        except AttngeoError as error:
            raise AtlasWriteError(str(error)) from error

    def remove_earlier(self, table: str, name: str) -> None:
        """Delete the other files of a table whose names begin with the first part of `name`."""
        for other in self.names(table, prefix=name.partition("-")[0]):
            if other != name:
                self.remove(table, other)

    def row(self, table: str, name: str) -> dict[str, Any] | None:
        """Return the first row of a file; None if there is no such file."""
        return next(iter(self.rows(table, name)), None)

    def rows(self, table: str, name: str) -> list[dict[str, Any]]:
        """Return all rows of a file; none if there is no such file."""
        frame = self._read(self.path(table, name), TABLES[table])
        return [] if frame is None else frame.to_dicts()

    def head_pairs(self, part: str) -> pl.DataFrame:
        """Return the pairs of heads of one network on one text."""
        path = self.path("head_pairs", part)
        if (frame := self._read(path, HEAD_PAIRS)) is None:
            raise InputError(f"{path}: is missing; organising its model again restores it")
        return frame

    # All files of a table.

    def names(self, table: str, prefix: str = "") -> list[str]:
        """Return the names of the files of a table that begin with `prefix`, sorted."""
        try:
            files = os.listdir(self.root / table)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"{self.root / table}: cannot be listed ({error.strerror})") from None
        ours = (f for f in files if f.startswith(prefix) and f.endswith(".parquet") and not f.startswith("."))
        return sorted(file.removesuffix(".parquet") for file in ours)

    def frame(self, table: str) -> pl.DataFrame:
        """Return all rows of a table, in the order of the names of its files."""
        import polars as pl

        columns = TABLES[table]
        paths = [self.path(table, name) for name in self.names(table)]
        frames = [table_of([], columns)]
        for first in range(0, len(paths), TOGETHER):
            frames += self._read_all(paths[first : first + TOGETHER], columns)
        return pl.concat(frames)

    def _read_all(self, paths: Sequence[Path], columns: Mapping[str, str]) -> list[pl.DataFrame]:
        """Return the rows of several files: together if all are sound and of this version, else one by one."""
        try:
            together = read_alike([path.read_bytes() for path in paths])
            if {name: str(kind) for name, kind in together.schema.items()} == columns:
                return [together.select(list(columns))]
        except (OSError, ValueError):
            pass  # the file that is to blame is found below
        return [frame for path in paths if (frame := self._read(path, columns)) is not None]

    def sound_names(self, table: str) -> list[str]:
        """Return the names of the files that another program may read: none is empty, and a damaged one is an error."""
        found = []
        for name in self.names(table):
            path = self.path(table, name)
            with suppress(FileNotFoundError), _read_errors(path):
                if path.stat().st_size:
                    check_parquet(path)
                    found.append(name)
        return found

    def size(self) -> int:
        """Return the bytes of all files."""
        total = 0
        for table in TABLES:
            for name in self.names(table):
                with suppress(FileNotFoundError):  # a failure that was taken up again meanwhile
                    total += self.path(table, name).stat().st_size
        return total

    def _read(self, path: Path, columns: Mapping[str, str]) -> pl.DataFrame | None:
        """Return the rows of one file; None if it does not exist. Columns that an older version lacks are null."""
        try:
            with _read_errors(path):
                if not path.stat().st_size:
                    return None
                frame, _ = read_parquet(path)
        except FileNotFoundError:
            return None
        wrong = {name: str(kind) for name, kind in frame.schema.items() if columns.get(name, str(kind)) != str(kind)}
        if wrong:
            name, kind = next(iter(wrong.items()))
            raise InputError(f"{path}: column {name} has type {kind}, expected {columns[name]}")
        return with_all_columns(frame, columns)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn the errors of reading a file into an InputError of one line, but for that of a file that does not exist."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{path}: is damaged; delete it and add its model again") from None
