"""The tasks of an atlas: `Task`, what all of them have in common, and `ScoreTask`, which scores one model.

Whatever happens in between, a task can be repeated: it writes a part, then the row that refers to it.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from attngeo.atlas.reference import Reference, row_name
from attngeo.atlas.store import AtlasWriteError, Store
from attngeo.errors import AttngeoError, disk_is_full, first_line, one_line
from attngeo.io.archive import digest
from attngeo.io.threads import one_core
from attngeo.weights.layout.layers import Layers, open_layers
from attngeo.weights.scoring.score import missing_scores, score_rows
from attngeo.weights.scoring.score_table import Row
from attngeo.weights.sources.byte_file import bytes_read

if TYPE_CHECKING:
    from hashlib import _Hash

# Bytes of memory of one task. Measured: 0.1 GB, and 9 times the queries and keys of the largest layer in float32, which
# are a small share of a large checkpoint; 3 GB are enough for a layer of width 8192.
BASE_MEMORY, MEMORY_PER_BYTE, MOST_MEMORY = 300 << 20, 4, 3 << 30

# scored: new rows; linked: the same weights were scored before, under another name or revision;
# known: nothing to do; failed: there is a row in the table of failures
State = Literal["scored", "linked", "known", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of one task."""

    reference: Reference
    state: State
    message: str = ""  # of a failure
    read: int = 0  # bytes of weights that were read, each counted once

    @property
    def line(self) -> str:
        """Return the message of a failure with the name of the model."""
        return self.message if self.reference.model in self.message else f"{self.reference}: {self.message}"


@dataclass(frozen=True)
class Options:
    """Options that are part of the name of a result."""

    @property
    def text(self) -> str:
        """Return the options that differ from the defaults, as JSON; empty if none does.

        >>> ScoreOptions(nulls=False).text
        '{"nulls": false}'
        """
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return json.dumps(changed) if changed else ""


@dataclass(frozen=True)
class Task:
    """Something to compute about one model. It is pickled for other processes, and may be repeated in another one."""

    version: ClassVar[int]  # of the results: raised whenever the same weights and options give others
    reference: Reference

    @property
    def asked(self) -> tuple[str, ...]:
        """Return what is asked about the model, first the text of the options, for the rows of failures."""
        raise NotImplementedError

    @property
    def part(self) -> str | None:
        """Return the name of the files with the result, where that is known before the task is run."""
        return None

    @property
    def failure(self) -> str:
        """Return the name of the file in the table of failures, which does not depend on the state of the model."""
        return digest(self.reference.model, self.reference.revision, *self.asked)

    def is_known(self, store: Store) -> bool:
        """Return whether the atlas has the result, as far as that can be told without a request to the hub."""
        raise NotImplementedError

    def work(self, store: Store) -> Outcome:
        """Compute the result and write it into the atlas."""
        raise NotImplementedError

    def memory(self) -> int:
        """Return how many bytes of memory the task needs."""
        raise NotImplementedError

    def named(self, message: str) -> str:
        """Return the message of a failure with what the failure is about, where the model does not say enough."""
        return message

    def run(self, store: Store) -> Outcome:
        """Do the task, unless the atlas has its result; an error becomes a row of failures.

        Only an error in writing the atlas itself, or the cache, is raised, as AtlasWriteError.
        """
        try:
            with one_core():
                outcome = self.work(store)
        except AtlasWriteError:
            raise
        except Exception as error:
            return self.fail(store, error)
        if outcome.state != "failed":
            store.remove("failures", self.failure)
        return outcome

    def fail(self, store: Store, error: Exception) -> Outcome:
        """Write a row of failures, and return the outcome. A full disk is not the fault of a model, and is raised."""
        message = str(error) if isinstance(error, AttngeoError) else one_line(first_line(error))
        if disk_is_full(error):
            raise AtlasWriteError(message) from error
        message = self.named(message)
        row = {"model": self.reference.model, "revision": self.reference.revision, "results": self.version}
        row |= {"options": self.asked[0], "part": self.part, "kind": type(error).__name__, "message": message}
        store.write("failures", self.failure, [row])
        return Outcome(self.reference, "failed", message)

    def failed_before(self, store: Store) -> Outcome | None:
        """Return the outcome of a task that failed in an earlier call, and would do the same again; else None."""
        row = store.row("failures", self.failure)
        if row is None or (row["results"], row["part"]) != (self.version, self.part):
            return None
        return Outcome(self.reference, "failed", str(row["message"]))

    def outcome_before(self, store: Store, retry: bool) -> Outcome | None:
        """Return the outcome of a task that need not be run; None if it must be."""
        if not retry and (failed := self.failed_before(store)) is not None:
            return failed
        return Outcome(self.reference, "known") if self.is_known(store) else None


# ---- scores


@dataclass(frozen=True)
class ScoreOptions(Options):
    """Options of `attngeo.score` that an atlas accepts."""

    heads: bool = True
    nulls: bool = True
    folded: bool = True  # also for models on the hub, so that rows do not depend on where a model is stored
    num_heads: int | None = None
    unproven: bool = False


@dataclass(frozen=True)
class ScoreTask(Task):
    """Score one model."""

    version = 4
    options: ScoreOptions = ScoreOptions()

    @property
    def asked(self) -> tuple[str, ...]:
        return (self.options.text,)

    def is_known(self, store: Store) -> bool:
        state = self.reference.state()
        return state is not None and self._has(store, self._row_name(state))

    def memory(self) -> int:
        size = self.reference.size()
        return MOST_MEMORY if size is None else min(BASE_MEMORY + MEMORY_PER_BYTE * size, MOST_MEMORY)

    def work(self, store: Store) -> Outcome:
        reference, options = self.reference, self.options
        located = reference.locate()
        name = self._row_name(located.state)
        if self._has(store, name):
            return Outcome(reference, "known")
        row: Row = {"model": reference.model, "revision": reference.revision, "commit": located.commit}
        row |= {"options": options.text, "results": self.version}
        # Asked for by another revision.
        same_commit = store.names("models", prefix=name.partition("-")[0]) if located.commit else []
        if same_commit and self._has(store, same_commit[0]):
            store.write("models", name, [(store.row("models", same_commit[0]) or {}) | row])
            return Outcome(reference, "linked")
        notes: list[str] = []
        before = bytes_read()
        with _collected(notes), located.open() as checkpoint:
            layers = open_layers(
                checkpoint, num_heads=options.num_heads, norms=options.folded, unproven=options.unproven
            )
            notes += layers.left_out
            part = fingerprint(layers, options)
            read = bytes_read() - before  # not counting a second reading
            if (known := store.read("scores", part)) is not None:
                rows = known.to_dicts()
            else:
                rows = score_rows(checkpoint, model="", **asdict(options)).rows
                store.write("scores", part, [scores | {"part": part} for scores in rows])
            row["model_type"] = (checkpoint.config or {}).get("model_type")
        if (missing := missing_scores(rows)) is not None:
            notes.append(missing)
        row |= {"part": part, "notes": "; ".join(notes) or None}
        if located.commit is None:  # files that were replaced: nothing would tell their rows from those of the new ones
            store.remove_earlier("models", name)
        store.write("models", name, [row])
        return Outcome(reference, "scored" if known is None else "linked", read=read)

    def _row_name(self, state: str) -> str:
        """Return the name of the file in the table of models."""
        return row_name(self.reference, state, self.options.text)

    def _has(self, store: Store, name: str) -> bool:
        """Return whether the atlas has a model and its part, both of this version."""
        row = store.row("models", name)
        return row is not None and row["results"] == self.version and store.has("scores", row["part"])


def fingerprint(layers: Layers, options: ScoreOptions) -> str:
    """Return the hash of the weights that are scored, how they are laid out in heads, and the options: 40 digits.

    Names of tensors, files and the model are not part of it, so that a renamed copy has the same fingerprint. All
    layers are read once.
    """
    content = hashlib.sha256()
    _add(content, [ScoreTask.version, options.heads, options.nulls])
    for weights in layers:
        for name in HASHED:
            _add(content, getattr(weights, name))
    return content.hexdigest()[:40]


# What the rows of a layer depend on.
HASHED = (
    "stack", "layer", "query", "key", "heads_known", "cross", "qk_norm", "rotary", "rotary_known", "norm", "numbers",
)  # fmt: skip


def _add(content: _Hash, value: Any) -> None:
    """Add a value to a hash: of an array its layout and its bytes, of a dataclass each field."""
    if is_dataclass(value):
        for field in fields(value):
            _add(content, getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        # The order of the values in memory changes the last digits of products.
        _add(content, [value.dtype.str, value.shape, value.strides])
        # Queries and keys are views of stored rows [r, d]: with their last axes swapped they are mostly contiguous.
        content.update(np.ascontiguousarray(value.swapaxes(-1, -2) if value.ndim > 1 else value).data)
    else:
        text = json.dumps(value).encode()
        content.update(len(text).to_bytes(8, "little") + text)


@contextmanager
def _collected(notes: list[str]) -> Iterator[None]:
    """Collect the warnings raised inside as single lines, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            texts = (one_line(warning.message) for warning in caught if issubclass(warning.category, UserWarning))
            notes += dict.fromkeys(texts)
