"""`Atlas`: the scores of many models in one folder of Parquet files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.arguments import whole_number
from attngeo.atlas.executors import Executor, check_ray, in_process, local_processes, ray_tasks
from attngeo.atlas.progress import CallProgress, RunningCall, running_calls
from attngeo.atlas.query import run_query
from attngeo.atlas.reference import references
from attngeo.atlas.store import Store
from attngeo.atlas.task import Outcome, ScoreOptions, ScoreTask, Task
from attngeo.atlas.views import (
    agreement_frame,
    beside_published,
    model_points,
    networks_frame,
    published_points,
    summarize,
    training_records,
)
from attngeo.display import draw
from attngeo.errors import InputError
from attngeo.io.progress import accepts_progress_bar
from attngeo.io.threads import core_count

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Added:
    """What became of the references of one call of `Atlas.add`.

    >>> print(Added(scored=10, linked=1, known=0, failed=2))
    10 scored, 1 linked to the same weights, 0 known before, 2 failed
    """

    scored: int  # models that were scored
    linked: int  # models whose weights were in the atlas under another name or revision
    known: int  # models that were in the atlas
    failed: int  # now, or in an earlier call and not tried again

    def __str__(self) -> str:
        return (
            f"{self.scored} scored, {self.linked} linked to the same weights, {self.known} known before, "
            f"{self.failed} failed"
        )


@dataclass(frozen=True)
class Organized:
    """What became of the tasks of one call of `Atlas.organize`, one per network, text and question.

    >>> print(Organized(organized=120, known=0, failed=2))
    120 results computed, 0 known before, 2 failed
    """

    organized: int
    known: int  # answers that were in the atlas
    failed: int  # now, or in an earlier call and not tried again

    def __str__(self) -> str:
        results = "result" if self.organized == 1 else "results"
        return f"{self.organized} {results} computed, {self.known} known before, {self.failed} failed"


@dataclass(frozen=True)
class AtlasStatus:
    """The size of an atlas at one moment.

    >>> print(AtlasStatus(models=3, copies=1, failures=2, parts=2, bytes=21_000))
    3 models (1 with the weights of another one), 2 failures, 2 parts, 21.0 kB
    """

    models: int  # models at one revision, scored with one set of options
    copies: int  # those among them whose scores are those of another one
    failures: int
    parts: int  # files with scores
    bytes: int  # of all files
    organized: int = 0  # answers of networks on texts: trees and sparsity, softmax invariance
    running: tuple[RunningCall, ...] = ()  # calls that are adding to it now

    def __str__(self) -> str:
        copies = f" ({self.copies} with the weights of another one)" if self.copies else ""
        counts = [_count(self.models, "model") + copies, _count(self.failures, "failure"), _count(self.parts, "part")]
        if self.organized:
            counts.append(_count(self.organized, "result") + " of networks on texts")
        return "\n".join([", ".join([*counts, f"{self.bytes / 1000:,.1f} kB"]), *map(str, self.running)])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Atlas:
    """A folder that holds the scores of many models.

    Processes that add to it may be killed at any moment and may run at the same time. The folder is made by the first
    call of `add`.

    >>> atlas = attngeo.Atlas("atlas")
    >>> atlas.add([attngeo.bundled(name) for name in ("encoder", "decoder")], workers=0)
    Added(scored=2, linked=0, known=0, failed=0)
    >>> frame = atlas.frame()
    >>> frame.filter(frame["head"].is_null()).group_by("stack").len().sort("stack").rows()
    [('decoder', 4), ('encoder', 4)]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._store = Store(self.path)
        if not self._store.is_new():
            self._store.check()

    def __repr__(self) -> str:
        return f"Atlas({str(self.path)!r})"

    @accepts_progress_bar
    def add(
        self,
        refs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        workers: int | None = None,
        ray: bool | str = False,
        retry: bool = False,
        heads: bool = True,
        nulls: bool = True,
        folded: bool = True,
        num_heads: int | None = None,
        unproven: bool = False,
        progress: Callable[[int, int], None] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Added:
        """Score models and add them to the atlas; models that it already holds are skipped.

        refs:     folders, files and hub ids `org/name[@revision]`, one or several
        workers:  number of worker processes, by default one per core; 0: in this process
        ray:      True: run the tasks on a local Ray started for the call; an address: on that Ray cluster
        retry:    try references again that failed in an earlier call
        heads, nulls, folded, num_heads, unproven: as in `attngeo.score`
        progress: called with (number of references done, number of all references)
        say:      called with one line about each reference that fails

        A model that cannot be scored becomes a row of `failures()`, and the others are scored.
        """
        num_heads = None if num_heads is None else whole_number(num_heads, "num_heads", 1)
        options = ScoreOptions(heads, nulls, folded, num_heads, unproven)
        tasks = [ScoreTask(reference, options) for reference in references(refs)]
        executor = _executor(workers, ray)
        self._store.create()
        counts = self._run(tasks, (), executor, retry, progress, say)
        return Added(counts["scored"], counts["linked"], counts["known"], counts["failed"])

    @accepts_progress_bar
    def organize(
        self,
        refs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        texts: Iterable[str],
        *,
        stage: str = "logits",
        stack: str | None = None,
        permuted: bool = True,
        invariance: int | None = None,
        invariance_heads: int = 24,
        truncate: bool = False,
        seed: int = 0,
        workers: int | None = None,
        ray: bool | str = False,
        retry: bool = False,
        progress: Callable[[int, int], None] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Organized:
        """Run networks on many texts: head affinities and trees, sparsity with controls, softmax invariance.

        refs:             folders, files and hub ids `org/name[@revision]`, one or several
        texts:            the texts; the results of each are kept, so that an interrupted call continues
        stage:            "logits" or "probabilities", for trees and sparsity
        stack, truncate:  as in `attngeo.capture`
        permuted:         also fit trees to permuted values, as a control
        invariance:       measure the softmax invariance on this many of the first texts; None: on all, 0: on none
        invariance_heads: number of heads organised one by one for the invariance, drawn for each text; 0: all
        seed:             of the controls and of the choice of heads
        workers, ray, retry, progress, say: as in `add`

        >>> atlas = attngeo.Atlas("organized")
        >>> texts = ["The heads of a layer read the same text.", "Each of them looks for something else in it."]
        >>> print(atlas.organize(attngeo.bundled("encoder"), texts, invariance=0, workers=0))
        2 results computed, 0 known before, 0 failed
        >>> atlas.organized().select("tokens", "heads").rows()
        [(14, 16), (13, 16)]
        """
        from attngeo.atlas.organize import Invariance, Trees, checked_texts, load_network, organize_tasks
        from attngeo.organization.tensor import check_stack, check_stage

        named = references(refs)
        check_stack(stack)
        check_stage(stage)
        whole_number(seed, "seed")
        whole_number(invariance_heads, "invariance_heads")
        some = None if invariance is None else whole_number(invariance, "invariance")
        trees = Trees(stack, truncate, seed, stage, permuted)
        contrasts = Invariance(stack, truncate, seed, invariance_heads)
        checked = checked_texts(texts)
        executor = _executor(workers, ray)
        self._store.create()
        asked = [(trees, checked), (contrasts, checked[:some])]
        failures, tasks = organize_tasks(self._store, named, asked, retry)
        counts = self._run(tasks, failures, executor, retry, progress, say)
        load_network.cache_clear()  # where the tasks ran in this process
        return Organized(counts["scored"], counts["known"], counts["failed"])

    def _run(
        self,
        tasks: Sequence[Task],
        done: Sequence[Outcome],
        executor: Executor,
        retry: bool,
        progress: Callable[[int, int], None] | None,
        say: Callable[[str], None] | None,
    ) -> Counter[str]:
        """Run the tasks whose results the atlas lacks, and return how many ended in which state, with those `done`."""
        store = Store(self.path.absolute())
        with CallProgress(store.root, len(tasks) + len(done), progress, say) as call:
            for outcome in done:
                call.add(outcome)
            left = []
            for task in tasks:
                if (known := task.outcome_before(store, retry)) is None:
                    left.append(task)
                else:
                    call.add(known)
            with closing(executor(store, left)) as outcomes:
                for outcome in outcomes:
                    call.add(outcome)
        return call.counts

    def _checked(self) -> Store:
        """Return the files of the atlas; InputError unless there is one."""
        self._store.check()
        return self._store

    def organized(self) -> pl.DataFrame:
        """Return head trees and sparsity of organised networks: one row per network, options and text."""
        return networks_frame(self._checked(), "organized")

    def invariance(self) -> pl.DataFrame:
        """Return the softmax invariance of organised networks: one row per network, options and text."""
        return networks_frame(self._checked(), "invariance")

    def agreement(self) -> pl.DataFrame:
        """Return how well head geometries on two texts agree: one row per network, options and pair of texts."""
        return agreement_frame(self._checked())

    def summary(self) -> pl.DataFrame:
        """Return the mean over texts of each figure of each organised network, with its 95% interval and its control.

        The figures are those of `organized()`, `invariance()` and `agreement()`.
        """
        return summarize(self._checked())

    def frame(self) -> pl.DataFrame:
        """Return the scores of all models: one row per layer and per head, with the columns of a `ScoreTable`."""
        return self._checked().scores()

    def models(self) -> pl.DataFrame:
        """Return one row per model: its commit, the options, and the part that holds its scores."""
        return self._checked().models()

    def failures(self) -> pl.DataFrame:
        """Return one row per reference that could not be scored: the kind of the error and its message."""
        return self._checked().failures()

    def sql(self, query: str) -> pl.DataFrame:
        """Return the result of a SELECT over the tables of the atlas; needs DuckDB.

        `scores`, `models` and `failures` are those of `frame()`, `models()` and `failures()`; `organized`, `invariance`
        and `head_pairs` are the results of `organize()`. A query can read the atlas and nothing else.

        >>> atlas = attngeo.Atlas("sql")
        >>> _ = atlas.add(attngeo.bundled("encoder"), workers=0)
        >>> atlas.sql("select count(*) as layers from scores where head is null").item()
        4
        """
        return run_query(self._checked(), query)

    def plot(self, x: str = "symmetry", y: str = "directionality", *, revisions: str | None = None) -> Figure:
        """Return a figure of all models in the plane of two columns of the scores, or of one run over its steps.

        x, y:      columns of `frame()`; each point is the median over the layers of one stack of a model. Published
                   models are drawn behind them where both columns were published.
        revisions: a hub id whose revisions are checkpoints of one run (step1000, …), or a folder that contains
                   checkpoints: draw symmetry and directionality of its layers over the steps instead

        >>> atlas = attngeo.Atlas("plot")
        >>> _ = atlas.add([attngeo.bundled(name) for name in ("encoder", "decoder")], workers=0)
        >>> [panel.get_title("left") for panel in atlas.plot().axes]
        ['encoders', 'decoders']
        """
        frame = self.frame()
        if frame.is_empty():
            raise InputError(f"{self.path}: has no scores to draw, add models first")
        if revisions is not None:
            return draw("training_figure", training_records(frame, revisions))
        return draw("atlas_figure", model_points(frame, x, y), published_points(x, y), x, y)

    def published(self, *, layers: bool = False) -> pl.DataFrame:
        """Return the scores of published models next to the published ones: medians per stack, or one row per layer."""
        return beside_published(self.frame(), layers=layers)

    def status(self) -> AtlasStatus:
        """Return how many models and failures the atlas holds; other processes may be writing to it."""
        store = self._checked()
        models = store.models()
        parts, organized, invariance = (len(store.names(table)) for table in ("scores", "organized", "invariance"))
        failures = store.failures().height
        copies = models.height - models["part"].n_unique()
        running = tuple(running_calls(self.path))
        return AtlasStatus(models.height, copies, failures, parts, store.size(), organized + invariance, running)


def _executor(workers: int | None, ray: bool | str) -> Executor:
    """Return who runs the tasks."""
    workers = None if workers is None else whole_number(workers, "workers")
    if ray is not False:
        if workers == 0:
            raise InputError("workers is 0, expected at least 1 with Ray")
        address = None if ray is True else ray
        check_ray(address)
        return partial(ray_tasks, address=address, workers=workers)
    return in_process if workers == 0 else partial(local_processes, count=workers or core_count())
