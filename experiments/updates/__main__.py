"""The command line of the experiment on updates: `python -m experiments.updates run|page`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from attngeo.errors import AttngeoError, one_line
from attngeo.io.files import write_errors, write_file
from experiments.initialisation.text.packed_tokens import unpacked
from experiments.page_tables import replace_tables
from experiments.updates.measure import Passes
from experiments.updates.records import read_rows
from experiments.updates.run import STEPS, config_for, measured_run
from experiments.updates.tables import tables

_PAGE = Path(__file__).with_name("RESULTS.md")
_RESULTS = Path(__file__).parents[2] / "results" / "updates"


def run(options: argparse.Namespace) -> None:
    """Train and measure each objective and seed that is not in the results yet."""
    tokens = unpacked(options.tokens)
    rows = read_rows([options.results]) if options.results.exists() else []
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


def page(options: argparse.Namespace) -> None:
    """Make the tables of RESULTS.md, or of another page, anew from the results."""
    rows = read_rows(options.results)
    text = replace_tables(options.page.read_text("utf-8"), tables(rows), "measurements")
    with write_errors(options.page):
        write_file(options.page, text.encode())


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
    added = commands.add_parser("page", help=page.__doc__)
    added.add_argument(
        "--page", type=Path, default=_PAGE, metavar="FILE", help="another Markdown file with such tables"
    )
    added.add_argument(
        "results", type=Path, nargs="*", default=[_RESULTS], metavar="PATH", help="other results files or folders"
    )
    added.set_defaults(command=page)
    options = parser.parse_args(arguments)
    try:
        options.command(options)
        return 0
    except (AttngeoError, OSError, ValueError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
