"""`OrganizeJob`: one task of `Atlas.organize`, one question about one network on one text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from attngeo.atlas.organizing.network import find_content, load_network
from attngeo.atlas.organizing.questions import RESULT_VERSION, Question, Trees
from attngeo.atlas.organizing.texts import Text
from attngeo.atlas.outcome import Outcome, write_failure
from attngeo.atlas.reference import Reference
from attngeo.atlas.store import AtlasWriteError, Store
from attngeo.errors import AttngeoError
from attngeo.io.archive import digest
from attngeo.io.threads import one_core

BASE_MEMORY = 1 << 30  # bytes, with torch and transformers loaded


@dataclass(frozen=True)
class OrganizeTask:
    """One question about one network on one text."""

    reference: Reference
    content: str  # what all results of the network depend on
    text: Text
    question: Question

    @property
    def part(self) -> str:
        """Return the name of the file that holds the answer."""
        return digest(self.content, self.text.content, self.question.table, self.question.text, RESULT_VERSION)

    @property
    def failure(self) -> str:
        """Return the name of the file in the table of failures; it does not depend on the content, which may change."""
        about = (self.text.content, self.question.table, self.question.text)
        return digest("organize", self.reference.model, self.reference.revision, *about)


@dataclass(frozen=True)
class OrganizeJob:
    """What the tasks of one call of `Atlas.organize` share: the atlas."""

    store: Store

    def run(self, task: OrganizeTask) -> Outcome:
        """Answer one question, unless the atlas has the answer; an error becomes a row of failures."""
        if (failure := self.known_failure(task.reference)) is not None:
            return failure  # another task of this call could not load the network
        try:
            with one_core(), _one_torch_thread():
                outcome = self._answer(task)
        except AtlasWriteError:
            raise
        except Exception as error:
            return self.lose(task, error)
        if outcome.state != "failed":
            self.store.remove("failures", task.failure)
        return outcome

    def lose(self, task: OrganizeTask, error: Exception) -> Outcome:
        """Write a row of failures about one text."""
        options = f"{task.question.table} {task.question.text}".strip()
        about = f"{task.text.opening!r}: "
        version, part = RESULT_VERSION, task.part
        return write_failure(self.store, task.failure, task.reference, options, version, error, part, about)

    def memory(self, task: OrganizeTask) -> int:
        """Return how many bytes of memory one task takes; a model of 4 bits per weight grows eightfold."""
        return BASE_MEMORY + 8 * (task.reference.size() or 0)

    def known(self, task: OrganizeTask, retry: bool) -> Outcome | None:
        """Return the outcome of a task that need not be run; None if it must be."""
        if self._has(task):
            return Outcome(task.reference, "known")
        return None if retry else self._failed_before(task.reference, task.failure, task.part)

    def known_failure(self, reference: Reference) -> Outcome | None:
        """Return the outcome of a network that could not be found or loaded in an earlier call, else None."""
        return self._failed_before(reference, _network_failure(reference))

    def find(self, reference: Reference) -> str | Outcome:
        """Return what all results of a network depend on, or the outcome if it cannot be found."""
        try:
            content = find_content(self.store, reference)
        except AtlasWriteError:
            raise
        except AttngeoError as error:
            return self._fail_network(reference, error)
        self.store.remove("failures", _network_failure(reference))
        return content

    def _answer(self, task: OrganizeTask) -> Outcome:
        question, part = task.question, task.part
        if self._has(task):
            return Outcome(task.reference, "known")
        try:
            loaded = load_network(self.store, task.reference, task.content)
        except AttngeoError as error:
            return self._fail_network(task.reference, error)
        row, pairs = question.answer(loaded, task.text)
        row |= {"part": part, "content": task.content, "options": question.text, "results": RESULT_VERSION}
        row |= {"text": task.text.digest, "opening": task.text.opening}
        if pairs is not None:  # before the row: where there is a row, there are pairs
            self.store.write("head_pairs", part, [pair | {"part": part} for pair in pairs])
        self.store.write(question.table, part, [row])
        return Outcome(task.reference, "scored")

    def _has(self, task: OrganizeTask) -> bool:
        tables = (task.question.table, "head_pairs")[: 1 + isinstance(task.question, Trees)]
        return all(self.store.has(table, task.part) for table in tables)

    def _fail_network(self, reference: Reference, error: AttngeoError) -> Outcome:
        """Write a row of failures about a network as a whole."""
        return write_failure(self.store, _network_failure(reference), reference, "organize", RESULT_VERSION, error)

    def _failed_before(self, reference: Reference, name: str, part: str | None = None) -> Outcome | None:
        failure = self.store.row("failures", name)
        if failure is None or failure["part"] != part:
            return None
        return Outcome(reference, "failed", str(failure["message"]))


def _network_failure(reference: Reference) -> str:
    return digest("organize", reference.model, reference.revision)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Run torch on one thread, so that all executors give the same digits."""
    try:
        import torch
    except ImportError:  # loading the model will say what is missing
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
