"""`organize_networks`: all tasks of one call of `Atlas.organize`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from attngeo.atlas.executors import Executor
from attngeo.atlas.organized import Organized
from attngeo.atlas.organizing.job import OrganizeJob, OrganizeTask
from attngeo.atlas.organizing.questions import Invariance, Trees
from attngeo.atlas.organizing.texts import Text
from attngeo.atlas.outcome import Outcome
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
    counts: Counter[str] = Counter()
    told: set[str] = set()

    def note(outcome: Outcome) -> None:
        counts[outcome.state] += 1
        if outcome.state == "failed" and say is not None and outcome.line not in told:
            told.add(outcome.line)  # a network that cannot be loaded fails on each text
            say(outcome.line)

    asked = [(trees, texts), (invariance, texts[:invariance_texts])]
    left = []
    for reference in references:
        content = (None if retry else job.known_failure(reference)) or job.find(reference)
        if isinstance(content, Outcome):
            note(content)
            continue
        for task in (OrganizeTask(reference, content, text, question) for question, some in asked for text in some):
            if (known := job.known(task, retry)) is None:
                left.append(task)
            else:
                note(known)
    before = sum(counts.values())
    for done, outcome in enumerate(executor.run(job, left), before + 1):
        note(outcome)
        if progress is not None:
            progress(done, before + len(left))
    return Organized(counts["scored"], counts["known"], counts["failed"])
