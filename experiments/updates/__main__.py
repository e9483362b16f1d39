"""The command line of the experiment on updates: `python -m experiments.updates run|table`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from attngeo.errors import AttngeoError
from attngeo.io.atomic import write_errors, write_file
from attngeo.io.messages import one_line
from experiments.initialisation.packed_tokens import unpacked
from experiments.updates.measure import Passes, Row
from experiments.updates.run import STEPS, config_for, measured_run

_COLUMNS = ("pairing_split", "pairing_shuffled", "symmetry_split", "symmetry_shuffled", "moved_symmetry", "row_spread",
            "column_spread", "moved_dominance", "since_start_symmetry", "since_start_dominance")  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Train and measure each objective and seed that is not in the results yet."""
    tokens = unpacked(options.tokens)
    rows = read(options.results) if options.results.exists() else []
    finished = {(row["objective"], row["seed"]) for row in rows}
    settings = dict(setting.split("=", 1) for setting in options.set)
    for seed in range(options.seeds):
        for objective in options.objective:
            if (objective, seed) in finished:
                continue
            work = Path(tempfile.mkdtemp(prefix="attngeo-updates-"))
            try:
                parsed = {key: json.loads(value) for key, value in settings.items()}
                config = config_for(objective, seed, work / "run", tokens, **parsed)
                rows += measured_run(config, options.steps, Passes(options.passes, options.rows))
            finally:
                shutil.rmtree(work)
            with write_errors(options.results):
                write_file(options.results, "".join(json.dumps(row) + "\n" for row in rows).encode())


def table(options: argparse.Namespace) -> None:
    """Print medians over heads and seeds, by objective and step."""
    rows = [row for path in options.results for row in read(path)]
    print("| objective | step | " + " | ".join(_COLUMNS) + " |\n|---|---|" + "---|" * len(_COLUMNS))
    for objective in dict.fromkeys(row["objective"] for row in rows):
        for step in sorted({row["step"] for row in rows if row["objective"] == objective}):
            some = [row for row in rows if (row["objective"], row["step"]) == (objective, step)]
            values = ([value for row in some if (value := row.get(name)) is not None] for name in _COLUMNS)
            shown = " | ".join(f"{median(known):.3f}".replace("-", "−") if known else "" for known in values)
            print(f"| {objective} | {step} | {shown} |")


def read(path: Path) -> list[Row]:
    """Return the rows of a results file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return 0, or 2 after an error, which is printed as one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m experiments.updates", description="What training does to forms.")
    commands = parser.add_subparsers(required=True)
    added = commands.add_parser("run", help=run.__doc__)
    added.add_argument("--tokens", type=Path, required=True, metavar="DIR", help="token files, packed or not")
    added.add_argument(
        "--results", type=Path, required=True, metavar="FILE", help="*.jsonl, one line per head and step"
    )
    added.add_argument("--objective", nargs="+", default=["masked", "causal"], choices=("masked", "causal"))
    added.add_argument("--seeds", type=int, default=3, metavar="N")
    added.add_argument("--steps", type=int, nargs="+", default=list(STEPS), metavar="N", help="steps that are measured")
    added.add_argument("--passes", type=int, default=64, metavar="N", help="masks or batches of one average")
    added.add_argument("--rows", type=int, default=16, metavar="N", help="rows of one pass")
    added.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings in place of the usual ones")
    added.set_defaults(command=run)
    added = commands.add_parser("table", help=table.__doc__)
    added.add_argument("results", type=Path, nargs="+", metavar="FILE")
    added.set_defaults(command=table)
    options = parser.parse_args(arguments)
    try:
        options.command(options)
        return 0
    except (AttngeoError, OSError, ValueError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
