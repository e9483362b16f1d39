"""Tables of the records, as Markdown: what docs/pruning.md and RESULTS.md show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from attngeo.applications.prune.curve import SHARES
from experiments.page_tables import pipe_table
from experiments.pruning.default import CANDIDATES, EQUAL, TOKENS, ratio_to, unit_of
from experiments.pruning.records import Ratio, Record, Series, ratio
from experiments.pruning.subjects import SPLITS

SUBJECTS = {
    "smollm2": "SmolLM2",
    "encoder": "bundled encoder",
    "decoder": "bundled decoder",
    "rxnfp": "rxnfp's BERT",
    "minilm": "MiniLM",
}
RULE = "refit"  # the default of `attngeo.prune_plan`
SHARE = 0.3  # at which the rule is judged
# All criteria in the logs; `attngeo` had those that it has no longer when they were measured.
METHODS = (
    "refit", "error", "sensitivity", "unexplained", "gradient", "fisher", "magnitude", "output", "folders", "entropy",
    "random",
)  # fmt: skip


def tables(records: Sequence[Record], rule: str = RULE) -> dict[str, str]:
    """Return every table of the page by name; one without records is left out."""
    made: dict[str, Callable[[], list[list[str]]]] = {
        "targets": lambda: targets(records, rule),
        "development": lambda: choice(records, "development", CANDIDATES),
        "confirmation": lambda: choice(records, "confirmation", (*CANDIDATES, "random")),
        "influence": lambda: influence(records),
        "texts": lambda: texts(records),
        "restriction": lambda: restriction(records),
        "calibration": lambda: calibration(records),
        "groups": lambda: groups(records),
        "organisation": lambda: organisation(records),
        "seconds": lambda: seconds(records),
        **{f"losses, {name}": lambda name=name: losses(records, name) for name in SUBJECTS},  # type: ignore[misc]
    }
    found = {name: make() for name, make in made.items()}
    return {name: _markdown(rows) for name, rows in found.items() if len(rows) > 1}


def losses(records: Sequence[Record], subject: str) -> list[list[str]]:
    """Return the increase of the loss without / with refit, by method and share."""
    series, own = Series(subject), [one for one in records if (one["subject"], one["split"]) == (subject, "fresh")]
    shares = [share for share in SHARES if any(one.get("share") == share for one in own)]
    rows = [["method", *(f"{share:.0%}" for share in shares)]]
    for method in METHODS:
        cells = [_pair(series, own, method, share) for share in shares]
        rows += [[method, *cells]] if any(cells) else []
    return rows


def targets(records: Sequence[Record], rule: str) -> list[list[str]]:
    """Return the ratio of the rule with refit to the baselines, with paired intervals over blocks of windows."""
    baselines = (("random", False), ("gradient", False), ("random", True), ("gradient", True))
    rows = [["model", *(f"{method}, {'with' if refit else 'without'} refit" for method, refit in baselines)]]
    for subject, name in SUBJECTS.items():
        series = Series(subject)
        ours = series.increases(records, rule, SHARE, True)
        found = [ratio(ours, series.increases(records, method, SHARE, refit)) for method, refit in baselines]
        rows += [[name, *map(_text, found)]] if any(found) else []
    return rows


def choice(records: Sequence[Record], split: str, methods: Sequence[str]) -> list[list[str]]:
    """Return the increases of the candidates with refit on the texts of the choice of the default, and their ratios."""
    rivals = [rival for rival in ("sensitivity", "random") if rival in methods]
    rows = [["model", *methods, *(f"{RULE} / {rival}" for rival in rivals)]]
    for subject, name in SUBJECTS.items():
        series = Series(subject, split, TOKENS, unit_of(subject))
        cells = [series.increase(records, method, SHARE, True) for method in methods]
        if any(cell is not None for cell in cells):
            ours, *theirs = (series.increases(records, method, SHARE, True) for method in (RULE, *rivals))
            rows.append([name, *map(_number, cells), *(_text(ratio(ours, one)) for one in theirs)])
    return rows


def influence(records: Sequence[Record]) -> list[list[str]]:
    """Return the ratios that chose the default, on development texts, and what they are without each of the models."""
    rows = [["models", "error / sensitivity", f"{RULE} / sensitivity", "chosen by the rule"]]
    if not any(one["method"] == "choice" for one in records):
        return rows
    for left_out in (None, *SUBJECTS):
        models = [name for name in SUBJECTS if name != left_out]
        found = {one: ratio_to(records, one, "sensitivity", "development", models) for one in ("error", RULE)}
        best = min(found, key=found.__getitem__)
        chosen = best if found[best] <= EQUAL else "sensitivity"
        title = "all five" if left_out is None else f"without {SUBJECTS[left_out]}"
        rows.append([title, *(f"{found[one]:.2f}" for one in ("error", RULE)), chosen])
    return rows


def texts(records: Sequence[Record]) -> list[list[str]]:
    """Return the loss of each full model on the evaluation texts; that of MiniLM is 0 by definition."""
    rows = [["model", *SPLITS]]
    for subject, name in SUBJECTS.items():
        full = {
            one["split"]: mean(one["losses"])
            for one in records
            if (one["subject"], one["method"]) == (subject, "full") and any(one["losses"])
        }
        rows += [[name, *(_number(full.get(split)) for split in SPLITS)]] if full else []
    return rows


def restriction(records: Sequence[Record]) -> list[list[str]]:
    """Return what groups of equal size cost on SmolLM2: the increases with the refit, by what is removed."""
    rows = [["30% of the heads of SmolLM2", *CANDIDATES]]
    units = {"query": "any query heads", "equal": "as many query heads of every group", "group": "whole groups"}
    for unit, name in units.items():
        series = Series("smollm2", unit=unit)
        cells = [series.increase(_first_draw(records), method, SHARE, True) for method in CANDIDATES]
        rows += [[name, *map(_number, cells)]] if any(cell is not None for cell in cells) else []
    return rows


def calibration(records: Sequence[Record]) -> list[list[str]]:
    """Return the increase of the loss with refit by number of calibration tokens: sensitivity / gradient importance."""
    sizes = sorted({one["tokens"] for one in records if one.get("tokens") and one["split"] == "fresh"})
    rows = [["model", *(f"{size:,}" for size in sizes)]] if len(sizes) > 1 else [[]]
    for subject, name in SUBJECTS.items():
        cells = []
        for size in sizes:
            series = Series(subject, tokens=size)
            pair = [
                series.increase(_first_draw(records), method, SHARE, True) for method in ("sensitivity", "gradient")
            ]
            cells.append("" if pair[0] is None else " / ".join(map(_number, pair)))
        rows += [[name, *cells]] if sum(map(bool, cells)) > 1 else []
    return rows


def groups(records: Sequence[Record]) -> list[list[str]]:
    """Return what the removal of whole groups costs, without / with refit, beside that of single query heads."""
    rows = [["method", "query heads", "whole groups"]]
    for method in METHODS:
        whole = _pair(Series("smollm2", unit="group"), records, method, SHARE)
        rows += [[method, _pair(Series("smollm2"), records, method, SHARE), whole]] if whole else []
    return rows


def organisation(records: Sequence[Record]) -> list[list[str]]:
    """Return the ratio of what the organisation suggests to random removal, without and with refit."""
    cells = [(method, refit) for method in ("folders", "entropy") for refit in (False, True)]
    rows = [["model", *(f"{method}, {'with' if refit else 'without'} refit" for method, refit in cells)]]
    for subject, name in SUBJECTS.items():
        series = Series(subject)
        found = [
            ratio(series.increases(records, method, SHARE, refit), series.increases(records, "random", SHARE, refit))
            for method, refit in cells
        ]
        rows += [[name, *map(_text, found)]] if any(found) else []
    return rows


def seconds(records: Sequence[Record]) -> list[list[str]]:
    """Return processor seconds: the passes over the calibration texts, and the choice of heads by each method."""
    own = [one for one in records if one.get("tokens") == 8192 and one.get("unit") == "query"]
    steps = ("calibration", "geometry", *METHODS)
    rows = [["model", *steps]]
    for subject, name in SUBJECTS.items():
        found = [
            [one["seconds"] for one in own if (one["subject"], one["method"]) == (subject, step)] for step in steps
        ]
        rows += [[name, *(_seconds(mean(values)) if values else "" for values in found)]] if any(found) else []
    return rows


def _first_draw(records: Sequence[Record]) -> list[Record]:
    return [one for one in records if one.get("draw", 0) == 0]


def _pair(series: Series, records: Sequence[Record], method: str, share: float) -> str:
    """Return the increase without / with refit; empty where neither was measured."""
    pair = [series.increase(records, method, share, refit) for refit in (False, True)]
    return "" if pair == [None, None] else " / ".join(map(_number, pair))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def _seconds(value: float) -> str:
    return "< 0.01" if value < 0.01 else f"{value:.2g}"


def _text(value: Ratio | None) -> str:
    return "–" if value is None else str(value)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return pipe_table(rows[0], rows[1:])
