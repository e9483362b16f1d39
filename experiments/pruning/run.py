"""Measure one model without 10 to 70% of its heads, by every criterion, with and without the refit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attngeo.applications.prune.calibrate import Calibration, calibrate
from attngeo.applications.prune.calibration.rows import Batch, batched, read_rows
from attngeo.applications.prune.criteria.methods import METHODS
from attngeo.applications.prune.loss_curve import SHARES, plans
from attngeo.applications.prune.prune import prune
from attngeo.live.load import LoadedModel
from experiments.pruning.measures import Losses, disagreement, sentence_embeddings, window_losses
from experiments.pruning.subjects import Subject


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    split: str = "development"  # evaluation texts: "development", or "fresh" once the rule is frozen
    tokens: int = 8192  # of calibration, held-out quarter included
    evaluation_tokens: int = 16384
    draws: tuple[int, ...] = (0,)  # of calibration texts
    shares: tuple[float, ...] = SHARES
    methods: tuple[str, ...] = METHODS
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # of random removals
    unit: str = "query"


def run(subject: Subject, settings: Settings, device: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield one record per measurement; the first of each draw is that of the full model."""
    loaded = subject.load()
    if device is not None:
        loaded.model.to(device)
    for draw in settings.draws:
        yield from _one_draw(subject, loaded, settings, draw)


def _one_draw(subject: Subject, loaded: LoadedModel, settings: Settings, draw: int) -> Iterator[dict[str, Any]]:
    begin = time.perf_counter()
    texts = subject.calibration(draw, settings.tokens)
    calibration = _calibrated(loaded, texts, settings.tokens, draw)
    seconds = time.perf_counter() - begin
    measure, full = _measure(subject, calibration, loaded, settings)
    common = {"subject": subject.name, "draw": draw, **{k: v for k, v in asdict(settings).items() if k in _KEPT}}
    common["fit_tokens"] = calibration.statistics.tokens
    yield common | {"method": "full", "seconds": seconds, "losses": _rounded(full)}
    for method in settings.methods:
        for seed in settings.seeds if method == "random" else (0,):
            begin = time.perf_counter()
            chosen = list(plans(calibration, method, settings.shares, settings.unit, seed))
            seconds = time.perf_counter() - begin
            for plan in chosen:
                for refit in (False, True):
                    pruned, applied = _pruned(calibration, plan, refit)
                    losses = measure(pruned)
                    yield common | {
                        "method": method, "seed": seed, "share": round(plan.share, 4), "refit": refit,
                        "applied": applied, "increase": float(np.mean(losses) - np.mean(full)), "seconds": seconds,
                        "parameters": pruned.num_parameters(), "losses": _rounded(losses),
                    }  # fmt: skip


_KEPT = ("split", "tokens", "unit")


def _calibrated(loaded: LoadedModel, texts: Sequence[str], tokens: int, draw: int) -> Calibration:
    """Calibrate on the first `tokens` tokens of the texts."""
    tokenizer: Any = loaded.tokenizer
    if len(texts) == 1:
        ids = tokenizer(texts[0], add_special_tokens=False)["input_ids"][:tokens]
        texts = [tokenizer.decode(ids)]
    else:
        lengths = np.cumsum([len(tokenizer(text)["input_ids"]) for text in texts])
        texts = texts[: int(np.searchsorted(lengths, tokens)) + 1]
    return calibrate(loaded, list(texts), seed=draw)


def _measure(
    subject: Subject, calibration: Calibration, loaded: LoadedModel, settings: Settings
) -> tuple[Callable[[Any], Losses], Losses]:
    """Return the measure of a pruned model, one value per window, and that of the full model."""
    texts = subject.evaluation(settings.split, settings.evaluation_tokens)
    rows = read_rows(texts, loaded, calibration.objective, seed=7)
    batches = batched(_first(rows, settings.evaluation_tokens))
    if subject.sentences:
        reference = sentence_embeddings(loaded.model, batches)
        return lambda model: disagreement(reference, sentence_embeddings(model, batches)), disagreement(
            reference, reference
        )
    return lambda model: window_losses(model, batches), window_losses(loaded.model, batches)


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
    return [round(float(value), 5) for value in values]
