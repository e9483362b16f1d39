"""`score_reference`: one task of an atlas, the scores of one model, written to its folder.

Whatever happens in between, the task can be repeated: it writes a part, then the row that refers to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from attngeo.atlas.budget import keeping_budget
from attngeo.atlas.fingerprint import fingerprint
from attngeo.atlas.options import RESULT_VERSION, ScoreOptions
from attngeo.atlas.outcome import Outcome, State, write_failure
from attngeo.atlas.reference import Reference, row_name
from attngeo.atlas.store import AtlasWriteError, Store
from attngeo.errors import AttngeoError, SourceError, one_line
from attngeo.io.archive import digest
from attngeo.io.threads import one_core
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.scoring.score import missing_scores, score_rows
from attngeo.weights.scoring.score_table import Row
from attngeo.weights.sources.byte_file import bytes_read
from attngeo.weights.sources.hub.throttle import Ledger

# Bytes of memory of one task. Measured: 0.1 GB, and 9 times the queries and keys of the largest layer in float32, which
# are a small share of a large checkpoint; 3 GB are enough for a layer of width 8192.
BASE_MEMORY, MEMORY_PER_BYTE, MOST_MEMORY = 300 << 20, 4, 3 << 30


@dataclass(frozen=True)
class ScoreJob:
    """What the tasks of one call of `Atlas.add` share. A task is a `Reference`."""

    store: Store
    options: ScoreOptions
    ledger: Ledger | None = None  # of the requests to the hub; None: no model is there

    def run(self, task: Reference) -> Outcome:
        """Score one model into the atlas."""
        with keeping_budget(self.ledger, task):
            return score_reference(self.store, task, self.options)

    def lose(self, task: Reference, error: AttngeoError) -> Outcome:
        """Write a row of failures."""
        return fail(self.store, task, self.options, error)

    def memory(self, task: Reference) -> int:
        """Return how many bytes of memory scoring one model takes."""
        size = task.size()
        return MOST_MEMORY if size is None else min(BASE_MEMORY + MEMORY_PER_BYTE * size, MOST_MEMORY)


def score_reference(store: Store, reference: Reference, options: ScoreOptions) -> Outcome:
    """Score one model into the atlas, unless it holds the model already; an error becomes a row of failures.

    Only an error in writing the atlas itself, or the cache, is raised, as AtlasWriteError.
    """
    try:
        with one_core():
            state, read = _add(store, reference, options)
    except AtlasWriteError:
        raise
    except Exception as error:
        return fail(store, reference, options, error)
    store.remove("failures", failure_name(reference, options))
    return Outcome(reference, state, read=read)


def known_before(store: Store, reference: Reference, options: ScoreOptions, retry: bool) -> Outcome | None:
    """Return the outcome of a reference that needs no task, without a request to the hub; None if a task is needed."""
    failure = None if retry else store.row("failures", failure_name(reference, options))
    if failure is not None and failure["results"] == RESULT_VERSION:
        return Outcome(reference, "failed", str(failure["message"]))
    state = reference.state()
    known = state is not None and _part_of(store, _model_name(reference, state, options)) is not None
    return Outcome(reference, "known") if known else None


def fail(store: Store, reference: Reference, options: ScoreOptions, error: Exception) -> Outcome:
    """Write a row of failures, and return the outcome."""
    return write_failure(store, failure_name(reference, options), reference, options.text, RESULT_VERSION, error)


def failure_name(reference: Reference, options: ScoreOptions) -> str:
    """Return the name of the file in the table of failures; the state of a model that fails may be unknown.

    It is the same for all versions of the results, so that no failure of an older one stays behind.
    """
    return digest("failure", reference.model, reference.revision, options.text)


def _add(store: Store, reference: Reference, options: ScoreOptions) -> tuple[State, int]:
    """Return what became of a reference, and how many bytes of weights were read, not counting a second reading."""
    located = reference.locate()
    name = _model_name(reference, located.state, options)
    if _part_of(store, name) is not None:
        return "known", 0
    row: Row = {"model": reference.model, "revision": reference.revision, "commit": located.commit}
    row |= {"options": options.text, "results": RESULT_VERSION}
    # Asked for by another revision.
    same_commit = store.names("models", prefix=name.partition("-")[0]) if located.commit else []
    if same_commit and (part := _part_of(store, same_commit[0])) is not None:
        other = store.row("models", same_commit[0]) or {}
        store.write("models", name, [other | row | {"part": part}])
        return "linked", 0
    notes: list[str] = []
    before = bytes_read()
    with _collected(notes), located.open() as checkpoint:
        layers = open_layers(checkpoint, num_heads=options.num_heads, norms=options.folded, unproven=options.unproven)
        notes += layers.left_out
        part = fingerprint(layers, options)
        read = bytes_read() - before
        known = store.has("scores", part)
        rows = store.rows("scores", part) if known else score_rows(checkpoint, model="", **asdict(options)).rows
        if not known:
            # Files here may be written again meanwhile; those of a commit never change.
            touched = located.commit is None and reference.state() != located.state
            if touched and fingerprint(layers, options) != part:
                raise SourceError(f"{reference.model}: its files changed while they were read; try it again")
            store.write("scores", part, [scores | {"part": part} for scores in rows])
        model_type = (checkpoint.config or {}).get("model_type")
    if (missing := missing_scores(rows)) is not None:
        notes.append(missing)
    row |= {"part": part, "notes": "; ".join(notes) or None}
    row["model_type"] = model_type if isinstance(model_type, str) else None
    if located.commit is None:  # files that were replaced: nothing would tell their rows from those of the new ones
        store.remove_earlier("models", name)
    store.write("models", name, [row])
    return ("linked" if known else "scored"), read


def _model_name(reference: Reference, state: str, options: ScoreOptions) -> str:
    """Return the name of the file in the table of models."""
    return row_name(reference, state, options.text, RESULT_VERSION)


def _part_of(store: Store, name: str) -> str | None:
    """Return the part of a model in the atlas; None if the model, or its part, is missing."""
    row = store.row("models", name) if store.has("models", name) else None
    return str(row["part"]) if row is not None and store.has("scores", str(row["part"])) else None


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
