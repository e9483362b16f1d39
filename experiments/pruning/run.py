"""Measure one model without 10 to 70% of its heads, by every criterion, with and without the refit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from time import process_time
from typing import Any

import numpy as np

from attngeo.applications.prune import prune
from attngeo.applications.prune.criteria import METHODS
from attngeo.applications.prune.curve import SHARES
from attngeo.applications.prune.measure import Calibration, calibrate
from attngeo.applications.prune.plan import choose_heads
from attngeo.applications.prune.rows import Batch, batched, objective_of, read_rows
from attngeo.live.load import LoadedModel
from experiments.pruning.measures import Losses, blocks, disagreement, sentence_embeddings, window_losses
from experiments.pruning.records import Record
from experiments.pruning.subjects import Subject

Measure = Callable[[Any], Losses]


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    split: str = "development"  # evaluation texts, one of SPLITS
    tokens: int = 8192  # of calibration, held-out quarter included
    evaluation_tokens: int = 16384
    draws: tuple[int, ...] = (0,)  # of calibration texts
    shares: tuple[float, ...] = SHARES
    methods: tuple[str, ...] = METHODS
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # of random removals
    refits: tuple[bool, ...] = (False, True)
    unit: str = "query"  # "equal": query heads, equally many of every group, as the option "query" is today


@dataclass(frozen=True)
class Removal:
    """One measurement: a method, a share and whether the layers are refitted, with one draw of calibration texts."""

    draw: int
    method: str
    seed: int
    share: float
    refit: bool


def removals(settings: Settings, draw: int) -> list[Removal]:
    """Return what is measured with one draw; what does not depend on the calibration is measured with draw 0."""
    return [
        Removal(draw, method, seed, share, refit)
        for method in settings.methods
        for seed in (settings.seeds if method == "random" else (0,))
        for share in settings.shares
        for refit in settings.refits
        if refit or draw == 0 or method not in _WITHOUT_CALIBRATION
    ]


def run(subject: Subject, settings: Settings, done: Sequence[Record] = ()) -> Iterator[Record]:
    """Yield one record per measurement that is not among those `done`: the full model, calibrations, removals."""
    common = {"subject": subject.name, "split": settings.split, "evaluation_tokens": settings.evaluation_tokens}
    done = [one for one in done if common.items() <= one.items()]
    calibrated = common | {"tokens": settings.tokens, "unit": settings.unit}
    finished = {_removal(one) for one in done if "increase" in one and calibrated.items() <= one.items()}
    missing = {draw: [one for one in removals(settings, draw) if one not in finished] for draw in settings.draws}
    if not any(missing.values()):
        return
    loaded = subject.load()
    measure = _measure(subject, loaded, settings)
    full = next((np.array(one["losses"]) for one in done if one["method"] == "full"), None)
    if full is None:
        full = blocks(measure(loaded.model))
        yield common | {"method": "full", "parameters": loaded.model.num_parameters(), "losses": _rounded(full)}
    known: dict[Any, Record] = {}
    for wanted in missing.values():
        if wanted:
            yield from _one_draw(subject, loaded, settings, calibrated, wanted, measure, full, known)


def _one_draw(
    subject: Subject,
    loaded: LoadedModel,
    settings: Settings,
    common: Record,
    wanted: Sequence[Removal],
    measure: Measure,
    full: Losses,
    known: dict[Any, Record],
) -> Iterator[Record]:
    draw = wanted[0].draw
    begin = process_time()
    calibration = _calibrated(loaded, subject.calibration(draw, settings.tokens), settings.tokens, draw)
    seconds = process_time() - begin
    yield common | {
        "method": "calibration", "draw": draw, "seconds": round(seconds, 3), "fit_tokens": calibration.statistics.tokens
    }  # fmt: skip
    if any(one.method in ("folders", "entropy") for one in wanted):
        begin = process_time()
        assert calibration.organized
        yield common | {"method": "geometry", "draw": draw, "seconds": round(process_time() - begin, 3)}
    for method, seed in dict.fromkeys((one.method, one.seed) for one in wanted):
        begin = process_time()
        unit = "query" if settings.unit == "equal" else settings.unit
        chosen = {
            share: choose_heads(calibration, method, share=share, unit=unit, seed=seed) for share in settings.shares
        }
        seconds = process_time() - begin
        for one in wanted:
            if (one.method, one.seed) == (method, seed):
                plan = chosen[one.share]
                key = frozenset(plan.labels), draw if one.refit else None  # several methods often remove the same heads
                if key not in known:
                    pruned, applied = _pruned(calibration, plan, one.refit)
                    known[key] = {
                        "applied": applied, "parameters": pruned.num_parameters(), "losses": blocks(measure(pruned))
                    }  # fmt: skip
                losses = known[key]["losses"]
                yield common | asdict(one) | known[key] | {
                    "heads": len(plan.removed), "increase": round(float(np.mean(losses - full)), 5),
                    "seconds": round(seconds, 3), "losses": _rounded(losses),
                }  # fmt: skip


_WITHOUT_CALIBRATION = ("random",)  # the same heads whatever the calibration texts are
_ALL = 10**9  # tokens: no fewer are read


def _removal(record: Record) -> Removal:
    return Removal(**{field.name: record[field.name] for field in fields(Removal)})


def _calibrated(loaded: LoadedModel, texts: Sequence[str], tokens: int, draw: int) -> Calibration:
    """Calibrate on the first `tokens` tokens of the texts."""
    tokenizer: Any = loaded.tokenizer
    if len(texts) == 1:
        ids = tokenizer(texts[0], add_special_tokens=False)["input_ids"][:tokens]
        texts = [tokenizer.decode(ids)]
    else:
        lengths = np.cumsum([len(tokenizer(text)["input_ids"]) for text in texts])
        texts = texts[: int(np.searchsorted(lengths, tokens)) + 1]
    return calibrate(loaded, list(texts), tokens=_ALL, seed=draw, gradients=True)


def _measure(subject: Subject, loaded: LoadedModel, settings: Settings) -> Measure:
    """Return the measure of a model: one value per window or set of sentences."""
    texts = subject.evaluation(settings.split, settings.evaluation_tokens)
    rows = _first(read_rows(texts, loaded, objective_of(loaded), tokens=_ALL, seed=7), settings.evaluation_tokens)
    order = np.argsort([row.inputs["input_ids"].shape[1] for row in rows], kind="stable")  # less padding
    batches, back = batched([rows[index] for index in order]), np.argsort(order)
    if subject.sentences:
        reference = sentence_embeddings(loaded.model, batches)[back]
        return lambda model: disagreement(reference, sentence_embeddings(model, batches)[back])
    return lambda model: window_losses(model, batches)[back]


def _first(rows: Sequence[Batch], tokens: int) -> Sequence[Batch]:
    """Return the first rows that together have at least `tokens` tokens."""
    lengths = np.cumsum([row.inputs["input_ids"].shape[1] for row in rows])
    if lengths[-1] < tokens:
        raise SystemExit(f"evaluation texts: {lengths[-1]} tokens, expected at least {tokens}")
    return rows[: int(np.searchsorted(lengths, tokens)) + 1]


def _pruned(calibration: Calibration, plan: Any, refit: bool) -> tuple[Any, bool | None]:
    """Return the pruned model, and whether the refit was applied (None: not asked for)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the refit was not applied")
        pruned = prune(calibration.model, plan, refit=refit)
    return pruned, pruned.config.attngeo_pruned["refit"]["applied"] if refit else None


def _rounded(values: Losses) -> list[float]:
    return [round(float(value), 4) for value in values]
