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
of a row is made by `reference.row_name`; results of a newer version of attngeo replace the file of older ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.errors import AttngeoError, InputError
from attngeo.io.archive import load_json, save_json
from attngeo.io.files import TEMPORARY, remove_unfinished, write_errors, write_file
from attngeo.io.tables import parquet_bytes, read_alike, read_parquet, table_of
from attngeo.weights.scoring.score_table import COLUMNS

if TYPE_CHECKING:
    import polars as pl

MANIFEST = "attngeo-atlas.json"
FORMAT_VERSION = 1  # of the layout of the folder
ABANDONED = 3600  # seconds after which an unfinished file belongs to no living process; writing one takes milliseconds
TOGETHER = 500  # files that are read by one call, which is four times as fast as one call for each

# ---- the columns of organised networks

# Short name in columns → name of a basis in `SparsityControls`.
BASES = {
    "trees": "trees",
    "shuffled": "shuffled axes",
    "dyadic": "dyadic trees",
    "cosines": "cosines per head",
    "permuted_trees": "permuted: trees",
    "permuted_dyadic": "permuted: dyadic trees",
}
# Name in columns → name of a figure in `InvarianceReport`; each also has a column that ends in `_control`.
CONTRASTS = {
    "heads_correlation": "heads: affinity rank correlation",
    "heads_information": "heads: tree information",
    "heads_procrustes": "heads: Procrustes distance",
    "queries_correlation": "queries: affinity rank correlation",
    "queries_information": "queries: tree information",
    "queries_procrustes": "queries: Procrustes distance",
    "keys_correlation": "keys: affinity rank correlation",
    "keys_information": "keys: tree information",
    "keys_procrustes": "keys: Procrustes distance",
    "logits_exponent": "exponent of the logits",
    "residual_exponent": "exponent of the residual",
}
_OF_A_TEXT = {
    "part": "String",  # hash of everything the row depends on
    "content": "String",
    "options": "String",  # those that are not the defaults, as JSON
    "results": "Int64",  # version of the results
    "text": "String",  # hash of the text
    "opening": "String",  # its first words
    "tokens": "Int64",
    "heads": "Int64",  # that were captured
}

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
    # A model whose attention was organised.
    "networks": {
        "model": "String",
        "revision": "String",
        "commit": "String",
        "content": "String",  # the commit, or a hash of the files: what the results depend on
    },
    # One network on one text: the trees of its heads, and the sparsity along all trees, with controls.
    "organized": _OF_A_TEXT
    | {
        "stage": "String",  # logits or probabilities
        "depth": "Int64",  # levels of the tree of the heads
        "gain": "Float64",  # 1 − (l1/l2 along the trees) / (l1/l2 along dyadic trees)
        "gain_permuted": "Float64",  # the same for permuted values, which have no structure
        **{
            f"{figure}_{basis}": "Float64"
            for figure in ("l1_l2", "share90", "share99", "exponent")
            for basis in BASES
            if (figure, basis) != ("exponent", "cosines")
        },
        "shared_key": "Float64",  # share of the pairs of heads joined first that share a key head; null: none do
        "shared_key_chance": "Float64",  # the same for a tree with shuffled heads
    },
    # The heads of one network on one text, pair by pair.
    "head_pairs": {
        "part": "String",
        "head": "String",
        "other": "String",
        "affinity": "Float32",
        "level": "Int64",  # the last level of the tree on which both are in one folder
    },
    # One network on one text: its geometry before and after the softmax, with the control.
    "invariance": _OF_A_TEXT
    | {
        "chosen": "Int64",  # heads that were organised on their own
        **{name + suffix: "Float64" for name in CONTRASTS for suffix in ("", "_control")},
    },
}


STATE = ("model", "revision", "commit", "options")  # what identifies a row of the table of models
IN_FRAME = (*STATE, "model_type")  # columns of the table of models that stand beside the scores
FRAME_COLUMNS = (*IN_FRAME, *(name for name in TABLES["scores"] if name != "part"), "part")


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
            found = "is a file" if self.root.exists() else "no such folder"
            raise InputError(f"{self.root}: {found}, expected an atlas")
        if not manifest.is_file():
            raise InputError(f"{self.root}: is not an atlas, it has no {MANIFEST}")
        version = load_json(manifest, "atlas").get("version")
        if version != FORMAT_VERSION:
            raise InputError(
                f"{manifest}: version is {version!r}, expected {FORMAT_VERSION}; update attngeo to read it"
            )

    def is_new(self) -> bool:
        """Return whether the folder does not exist, or is empty but for a file that another process is writing."""
        try:
            return all(name.startswith(TEMPORARY) for name in os.listdir(self.root))
        except OSError as error:
            return isinstance(error, FileNotFoundError)

    def create(self) -> None:
        """Make the folders if they do not exist, and remove what killed processes left behind."""
        with _writing(self.root):
            if self.is_new():
                self.root.mkdir(parents=True, exist_ok=True)
                save_json(self.root / MANIFEST, "atlas", {"version": FORMAT_VERSION})
            self.check()
            for table in TABLES:
                (self.root / table).mkdir(exist_ok=True)
                remove_unfinished(self.root / table, ABANDONED)

    # One file.

    def path(self, table: str, name: str) -> Path:
        """Return the path of a file of a table."""
        return self.root / table / f"{name}.parquet"

    def has(self, table: str, name: str) -> bool:
        """Return whether a table has a file of this name."""
        return self.path(table, name).exists()

    def write(self, table: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of one file, or nothing."""
        path = self.path(table, name)
        with _writing(path):
            write_file(path, parquet_bytes(table_of(rows, TABLES[table]), {}), durable=True)

    def remove(self, table: str, name: str) -> None:
        """Delete a file, if it exists."""
        path = self.path(table, name)
        with _writing(path):
            path.unlink(missing_ok=True)

    def remove_earlier(self, table: str, name: str) -> None:
        """Delete the other files of a table whose names begin with the first part of `name`."""
        for other in self.names(table, prefix=name.partition("-")[0]):
            if other != name:
                self.remove(table, other)

    def row(self, table: str, name: str) -> dict[str, Any] | None:
        """Return the first row of a file; None if there is no such file."""
        frame = self.read(table, name)
        return None if frame is None else frame.row(0, named=True)

    def read(self, table: str, name: str) -> pl.DataFrame | None:
        """Return the rows of one file; None if it does not exist."""
        path = self.path(table, name)
        with suppress(FileNotFoundError), _read_errors(path):
            return read_parquet(path)[0].select(list(TABLES[table]))
        return None

    # All files of a table.

    def names(self, table: str, prefix: str = "") -> list[str]:
        """Return the names of the files of a table that begin with `prefix`, sorted."""
        return sorted(path.stem for path in (self.root / table).glob(f"{prefix}*.parquet"))

    def frame(self, table: str) -> pl.DataFrame:
        """Return all rows of a table, in the order of the names of its files."""
        import polars as pl

        names = self.names(table)
        frames = [table_of([], TABLES[table])]
        for first in range(0, len(names), TOGETHER):
            some = names[first : first + TOGETHER]
            paths = [self.path(table, name) for name in some]
            try:
                frames.append(read_alike([path.read_bytes() for path in paths]).select(list(TABLES[table])))
            except (
                OSError,
                ValueError,
                pl.exceptions.PolarsError,
            ):  # of one of them, which is named where each is read by itself
                frames += [frame for name in some if (frame := self.read(table, name)) is not None]
        return pl.concat(frames)

    def size(self) -> int:
        """Return the bytes of all files."""
        total = 0
        for path in self.root.glob("*/*.parquet"):
            with suppress(FileNotFoundError):  # a failure that was taken up again meanwhile
                total += path.stat().st_size
        return total

    # The tables of scored models.

    def models(self) -> pl.DataFrame:
        """Return one row per model, revision, commit and options."""
        return self.frame("models").sort(*STATE, "part")

    def failures(self) -> pl.DataFrame:
        """Return one row per reference that could not be scored."""
        return self.frame("failures").sort("model", "revision", "options", "results")

    def scores(self) -> pl.DataFrame:
        """Return the scores of all models, sorted: those of a copy appear under its name too."""
        models = self.models()  # first: the part of a model is written before its row
        joined = models.select(*IN_FRAME, "part").join(self.frame("scores"), on="part", how="inner")
        return joined.select(FRAME_COLUMNS).sort(*STATE, "part", "stack", "layer", "head", nulls_last=False)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn the errors of writing into an AtlasWriteError of one line."""
    try:
        with write_errors(path):
            yield
    except InputError:
        raise
    except AttngeoError as error:
        raise AtlasWriteError(str(error)) from error


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn the errors of reading a file into an InputError of one line, but for that of a file that does not exist."""
    import polars as pl

    try:
        yield
    except (FileNotFoundError, InputError):
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, pl.exceptions.PolarsError):
        raise InputError(f"{path}: is damaged or of another version; delete it and add its model again") from None
