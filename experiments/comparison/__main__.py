"""The command line of the comparison experiment.

    python -m experiments.comparison real-models [--models DIR]
    python -m experiments.comparison false-positives|power|distances --corpus FILE [--folder DIR]
    python -m experiments.comparison page docs/comparison.md|experiments/comparison/RESULTS.md [--logs DIR]

Each of the first prints one line of JSON per measurement, which `results/comparison` keeps; `page` writes the tables of
a page anew from these logs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attngeo.applications.compare import ModelComparison
from attngeo.io.archive import as_plain
from attngeo.io.files import write_file
from attngeo.io.progress import ProgressBar
from attngeo.training.data.tokens import Tokens, prepare_tokens
from experiments.comparison import distances, power, real_models
from experiments.comparison.false_positives import independent_rejections, trained_rejections
from experiments.comparison.page import read_logs, with_tables
from experiments.comparison.small_models import KINDS, new_model, trained_models

VOCABULARY = 2048


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.comparison")
    parser.add_argument("command", choices=["real-models", "false-positives", "power", "distances", "page"])
    parser.add_argument("path", type=Path, nargs="?", help="the page that `page` writes")
    parser.add_argument("--logs", type=Path, default=Path("results/comparison"), help="folder of the logs")
    parser.add_argument("--models", type=Path, default=Path(".models"), help="folder that `make models` fills")
    parser.add_argument("--corpus", help="text for the small models")
    parser.add_argument("--folder", type=Path, default=Path("out/comparison"), help="folder for the small models")
    parser.add_argument("--seeds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--untrained", type=int, default=200, help="pairs of untrained models")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args(arguments)
    if options.command == "real-models":
        _real_models(options.models)
        return
    if options.command == "page":
        page = with_tables(options.path.read_text("utf-8"), read_logs(options.logs))
        write_file(options.path, page.encode())
        return
    tokens = prepare_tokens(options.folder / "tokens", [options.corpus], vocabulary=VOCABULARY)
    for kind in options.kinds:
        {"false-positives": _false_positives, "power": _power, "distances": _distances}[options.command](
            kind, tokens, options
        )


def _real_models(models: Path) -> None:
    pairs = real_models.rxnfp_pairs(models)
    pairs |= {"SmolLM2, its bfloat16 copy": real_models.smollm2_pair(models), "bundled": real_models.bundled_pair()}
    for name, comparison in pairs.items():
        _print(pair=name, **_figures(comparison), layers=real_models.by_layer(comparison))


def _false_positives(kind: str, tokens: Tokens, options: argparse.Namespace) -> None:
    models = trained_models(options.folder, kind, tokens, range(options.seeds), options.steps)
    for align in (False, True):
        with ProgressBar(f"{kind}, trained") as bar:
            found = trained_rejections(models, align, bar.step)
        _print(kind=kind, models="trained", steps=options.steps, align=align, **as_plain(found))
    for align in (False, True):
        first = 10_000
        pairs = (
            tuple(new_model(kind, tokens.vocabulary, first + 2 * pair + side) for side in (0, 1))
            for pair in range(options.untrained)
        )
        with ProgressBar(f"{kind}, untrained") as bar:
            rejections = independent_rejections(list(pairs), align, bar.step)
        _print(kind=kind, models="untrained", align=align, **as_plain(rejections))


def _power(kind: str, tokens: Tokens, options: argparse.Namespace) -> None:
    (path,) = trained_models(options.folder, kind, tokens, [0], options.steps)
    for step, comparison in power.fine_tuned(path, tokens).items():
        _print(kind=kind, case="fine-tuned", steps=step, **_figures(comparison))
    for step, comparison in power.common_start(kind, tokens).items():
        _print(kind=kind, case="same initial values", steps=step, **_figures(comparison))
    for size, comparison in power.noisy(path).items():
        _print(kind=kind, case="noise", size=size, **_figures(comparison))
    for align, comparison in power.permuted(path, 100, tokens).items():
        _print(kind=kind, case="permuted", align=align, **_figures(comparison))


def _distances(kind: str, tokens: Tokens, options: argparse.Namespace) -> None:
    runs = [distances.run_geometries(kind, tokens, seed) for seed in (0, 1)]
    matrix = distances.distance_matrix([geometry for run in runs for geometry in run])
    n = len(distances.STEPS)
    for seed, block in enumerate((matrix[:n, :n], matrix[n:, n:])):
        from_last = [round(float(value), 4) for value in block[-1]]
        _print(
            kind=kind, seed=seed, steps=distances.STEPS, from_last=from_last, spearman=distances.time_correlation(block)
        )
    between = [round(float(matrix[i, n + i]), 4) for i in range(n)]
    _print(kind=kind, between_seeds=between, steps=distances.STEPS)


def _figures(comparison: ModelComparison) -> dict[str, Any]:
    related = comparison.related
    median = comparison.sorted()["change"].median()
    return {
        "change": median,
        "p": related.p_value,
        "cosine": related.cosine,
        "statistic": related.statistic,
        "null": [related.null_mean, related.null_std],
        "control": related.control,
    }


def _print(**figures: Any) -> None:
    rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps(rounded, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
