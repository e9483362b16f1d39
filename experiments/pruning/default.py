"""The choice of the default criterion: `python -m experiments.pruning default --corpus DIR --out FILE.jsonl`.

Stages, each logged before the next one begins; a command that is run again skips what its log holds:

    development   the candidates on development texts, 16,384 calibration tokens, 30% of the heads, with the refit
    choice        the default, by the rule below
    confirmation  the candidates and random removal, on calibration and evaluation texts that no other run has used
    restriction   SmolLM2 on fresh texts, 8,192 calibration tokens: the same number of query heads from every group

The rule: the ratio of two criteria is the geometric mean over the models of the ratios of their increases of the loss
(mean over draws, an increase below FLOOR counting as FLOOR). Of `error` and `refit`, which need no gradients, the one
with the smaller ratio to `sensitivity` is the default, unless that ratio is above EQUAL; then it is `sensitivity`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from experiments.pruning.records import Record, Series
from experiments.pruning.run import Settings, run
from experiments.pruning.subjects import Subject, subjects

CANDIDATES = ("error", "refit", "sensitivity")
FLOOR, EQUAL = 0.005, 1.05
SHARE, TOKENS = 0.3, 16384
ORDER = ("encoder", "decoder", "rxnfp", "minilm", "smollm2")


def stages(models: Path, corpus: Path, done: Sequence[Record]) -> Iterator[Record]:
    """Yield the records that are not among those `done`, stage by stage."""
    records = list(done)
    own = subjects(models, corpus)
    for name in ORDER:
        for record in run(own[name], _settings(own[name], "development"), records):
            records.append(record)
            yield record
    if not any(one["method"] == "choice" for one in records):
        found = {method: ratio_to(records, method, "sensitivity", "development") for method in CANDIDATES[:2]}
        best = min(found, key=found.__getitem__)
        chosen = best if found[best] <= EQUAL else "sensitivity"
        record = {"subject": "all", "split": "development", "method": "choice", "ratios": found, "default": chosen}
        records.append(record)
        yield record
    for name in ORDER:
        for record in run(own[name], _settings(own[name], "confirmation"), records):
            records.append(record)
            yield record
    equal = Settings("fresh", draws=(0,), shares=(SHARE,), methods=CANDIDATES, refits=(True,), unit="equal")
    yield from run(own["smollm2"], equal, records)


def ratio_to(records: Sequence[Record], ours: str, theirs: str, split: str, models: Sequence[str] = ORDER) -> float:
    """Return the geometric mean over the models of the ratio of two criteria's increases of the loss."""
    ratios = []
    for name in models:
        series = Series(name, split, TOKENS, unit_of(name))
        one, other = (series.increase(records, method, SHARE, True) or 0.0 for method in (ours, theirs))
        ratios.append(max(one, FLOOR) / max(other, FLOOR))
    return float(np.exp(np.mean(np.log(ratios))))


def unit_of(subject: str) -> str:
    """Return the unit that is the default of this model."""
    return "group" if subject == "smollm2" else "query"


def _settings(subject: Subject, split: str) -> Settings:
    large, confirms = subject.name == "smollm2", split == "confirmation"
    first = 3 if confirms else 0
    return Settings(
        split,
        TOKENS,
        8192 if large else 16384,
        tuple(range(first, first + (1 if large else 3))),
        (SHARE,),
        (*CANDIDATES, "random") if confirms else CANDIDATES,
        (0,),
        (True,),
        unit_of(subject.name),
    )
