"""`organize_networks`: all tasks of one call of `Atlas.organize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from attngeo.atlas.executors import Executor
from attngeo.atlas.organized import Organized
from attngeo.atlas.organizing.job import OrganizeJob, OrganizeTask
from attngeo.atlas.organizing.network import load_network
from attngeo.atlas.organizing.questions import Invariance, Trees
from attngeo.atlas.organizing.texts import Text
from attngeo.atlas.outcome import Outcome
from attngeo.atlas.progress import CallProgress
from attngeo.atlas.reference import Reference


def organize_networks(
    job: OrganizeJob,
    executor: Executor,
    references: Sequence[Reference],
    texts: Sequence[Text],
    trees: Trees,
    invariance: Invariance,
    invariance_texts: int | None,
    retry: bool,
    progress: Callable[[int, int], None] | None,
    say: Callable[[str], None] | None,
) -> Organized:
    """Run the tasks that the atlas does not hold; those of one network follow each other, so that it is loaded once."""
    asked = [(trees, texts), (invariance, texts[:invariance_texts])]
    known: list[Outcome] = []
    left = []
    for reference in references:
        content = (None if retry else job.known_failure(reference)) or job.find(reference)
        if isinstance(content, Outcome):
            known.append(content)
            continue
        for task in (OrganizeTask(reference, content, text, question) for question, some in asked for text in some):
            if (outcome := job.known(task, retry)) is None:
                left.append(task)
            else:
                known.append(outcome)
    told: set[str] = set()

    def say_once(line: str) -> None:
        if say is not None and line not in told:
            told.add(line)  # a network that cannot be loaded fails on each text
            say(line)

    with CallProgress(job.store.root, len(known) + len(left), progress, say_once) as call:
        for outcome in chain(known, executor.run(job, left)):
            call.add(outcome)
    load_network.cache_clear()  # where the tasks ran in this process
    counts = call.counts
    return Organized(counts["scored"], counts["known"], counts["failed"])
