"""The command line of the pruning experiment.

    python -m experiments.pruning run smollm2 --corpus DIR --out smollm2.jsonl [--draws 0 1 2] [--shares 0.3] …
    python -m experiments.pruning default --corpus DIR --out results/pruning/default.jsonl
    python -m experiments.pruning table LOG…
    python -m experiments.pruning page docs/pruning.md LOG…              (or experiments/pruning/RESULTS.md)
    python -m experiments.pruning figure docs/images/pruning.png LOG…

`run` appends one line of JSON per measurement to a log and skips what the log holds already, and so does `default`,
which chooses the default criterion and confirms it. `table` prints all tables,
`page` writes those of a page, `figure` draws the loss against the share of heads removed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from attngeo.applications.prune.criteria import METHODS
from attngeo.applications.prune.curve import SHARES
from attngeo.io.files import write_file
from experiments.pruning.default import stages
from experiments.pruning.page import with_tables
from experiments.pruning.records import read_records
from experiments.pruning.run import Settings, run
from experiments.pruning.subjects import SPLITS, subjects
from experiments.pruning.table import tables


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.pruning")
    commands = parser.add_subparsers(dest="command", required=True)
    runner, chooser = commands.add_parser("run"), commands.add_parser("default")
    for one in (runner, chooser):
        one.add_argument("--models", type=Path, default=Path(".models"), help="folder that `make models` fills")
        one.add_argument("--corpus", type=Path, required=True, help="folder of english-train.txt.xz and english-valid")
        one.add_argument("--out", type=Path, required=True, help="JSON Lines file; what it holds is not measured again")
    runner.add_argument("subject", choices=["smollm2", "encoder", "decoder", "minilm", "rxnfp"])
    runner.add_argument("--split", choices=SPLITS, default="development")
    runner.add_argument("--tokens", type=int, default=8192, help="calibration tokens")
    runner.add_argument("--evaluation-tokens", type=int, default=16384)
    runner.add_argument("--draws", type=int, nargs="+", default=[0])
    runner.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    runner.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    runner.add_argument("--seeds", type=int, nargs="+", default=list(range(5)), help="of random removals")
    runner.add_argument("--refit", choices=["with", "without", "both"], default="both")
    runner.add_argument("--unit", choices=["query", "equal", "group"], default="query")
    for name in ("table", "page", "figure"):
        maker = commands.add_parser(name)
        if name != "table":
            maker.add_argument("path", type=Path, help="the Markdown file, or the image file, that is written")
        maker.add_argument("logs", type=Path, nargs="+", help="log files, or folders of them")
    options = parser.parse_args(arguments)
    if options.command in ("run", "default"):
        _measure(options)
        return
    records = read_records(options.logs)
    if options.command == "table":
        print("\n\n".join(f"{name}\n\n{table}" for name, table in tables(records).items()))
    elif options.command == "page":
        write_file(options.path, with_tables(options.path.read_text("utf-8"), records).encode())
    else:
        from attngeo.show.matplotlib import save_figure
        from experiments.pruning.figure import share_figure

        save_figure(share_figure(records), options.path)


def _measure(options: argparse.Namespace) -> None:
    """Append the measurements that the log does not hold yet."""
    with options.out.open("a+") as file:
        file.seek(0)
        done = [json.loads(line) for line in file]
        if options.command == "default":
            found = stages(options.models, options.corpus, done)
        else:
            found = run(subjects(options.models, options.corpus)[options.subject], _settings(options), done)
        for record in found:
            print(json.dumps(record), file=file, flush=True)
            if "increase" in record:
                shown = [record[key] for key in ("subject", "draw", "method", "seed", "share", "refit", "applied")]
                print(*shown, f"{record['increase']:+.4f}", file=sys.stderr, flush=True)


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        options.split,
        options.tokens,
        options.evaluation_tokens,
        tuple(options.draws),
        tuple(options.shares),
        tuple(options.methods),
        tuple(options.seeds),
        {"with": (True,), "without": (False,), "both": (False, True)}[options.refit],
        options.unit,
    )


if __name__ == "__main__":
    main()
