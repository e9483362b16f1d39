"""The command line of the pruning experiment.

    python -m experiments.pruning run smollm2 --corpus DIR --out smollm2.jsonl [--device cuda] [--draws 0 1 2]
    python -m experiments.pruning table smollm2.jsonl … [--rule unexplained]

`run` writes one line of JSON per measurement; `table` prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from attngeo.applications.prune.criteria.methods import METHODS
from attngeo.applications.prune.loss_curve import SHARES
from experiments.pruning.run import Settings, run
from experiments.pruning.subjects import subjects
from experiments.pruning.table import markdown, targets


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.pruning")
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("subject", choices=["smollm2", "encoder", "decoder", "minilm", "rxnfp"])
    runner.add_argument("--models", type=Path, default=Path(".models"), help="folder that `make models` fills")
    runner.add_argument("--corpus", type=Path, required=True, help="folder with english-train.txt.xz and english-valid")
    runner.add_argument("--out", type=Path, help="JSON Lines file; default: standard output")
    runner.add_argument("--split", choices=["development", "fresh"], default="development")
    runner.add_argument("--tokens", type=int, default=8192, help="calibration tokens")
    runner.add_argument("--evaluation-tokens", type=int, default=16384)
    runner.add_argument("--draws", type=int, nargs="+", default=[0])
    runner.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    runner.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    runner.add_argument("--seeds", type=int, nargs="+", default=list(range(5)), help="of random removals")
    runner.add_argument("--unit", choices=["query", "group"], default="query")
    runner.add_argument("--device")
    tabler = commands.add_parser("table")
    tabler.add_argument("files", type=Path, nargs="+")
    tabler.add_argument("--rule", default="unexplained")
    tabler.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    options = parser.parse_args(arguments)
    if options.command == "table":
        records = [json.loads(line) for path in options.files for line in path.read_text().splitlines()]
        print(markdown(records, options.shares))
        print(targets(records, options.rule))
        return
    settings = Settings(
        options.split,
        options.tokens,
        options.evaluation_tokens,
        tuple(options.draws),
        tuple(options.shares),
        tuple(options.methods),
        tuple(options.seeds),
        options.unit,
    )
    subject = subjects(options.models, options.corpus)[options.subject]
    file = options.out.open("a") if options.out is not None else sys.stdout
    for record in run(subject, settings, options.device):
        print(json.dumps(record), file=file, flush=True)
        if "increase" in record:
            shown = {key: record[key] for key in ("method", "share", "refit", "applied", "seed")}
            print(shown, f"{record['increase']:+.4f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
