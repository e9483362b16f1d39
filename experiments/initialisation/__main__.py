"""The command line of the initialisation experiment.

    python -m experiments.initialisation prepare|run|speed|table|figure|page|overlap|frequencies

It uses argparse and imports matplotlib late, so that `prepare`, `run` and `table` work on a machine without typer,
polars, rich and matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from attngeo.errors import AttngeoError, InputError, one_line
from attngeo.io.files import check_writable, write_errors, write_file
from attngeo.io.progress import Progress, ProgressBar, is_main_process, messages_to
from attngeo.training.data.tokens import Tokens, open_tokens, prepare_tokens
from experiments.initialisation.grid import GROUPS, group_cells
from experiments.initialisation.runs import FinishedRun, read_runs
from experiments.initialisation.statistics import compare
from experiments.initialisation.table import FORMATS, as_text
from experiments.initialisation.text.packed_tokens import pack

_PAGE = Path(__file__).with_name("RESULTS.md")
_RESULTS = tuple(Path(__file__).parents[2] / "results" / name for name in ("initialisation", "initialisation_grid"))
_ARCHITECTURES = ("bert", "pre-norm-bert", "modernbert", "llama")
_FORMAT_OF_SUFFIX = {".md": "markdown", ".csv": "csv"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0, or 2 after an error, which is printed as one line on stderr."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
        return 0
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        message = one_line(error)
        if not isinstance(error, (AttngeoError, OSError)):
            message = f"unexpected {type(error).__name__}: {message} (--debug shows where)"
        print(f"error: {message}", file=sys.stderr)
        return 2


def prepare(options: argparse.Namespace) -> None:
    """Tokenise a corpus and, if asked, write the token files compressed."""
    with ProgressBar("prepare") as bar, messages_to(bar.say):
        tokens = _tokens(options.into, options, bar.step)
    print(f"{options.into}: {tokens.train} training and {tokens.valid} held-out tokens, vocabulary {tokens.vocabulary}")
    if options.pack:
        print(f"packed: {pack(tokens, options.pack) / 2**20:.1f} MiB in {options.pack}")


def run(options: argparse.Namespace) -> None:
    """Run what is not finished of a grid and print the comparison of all finished runs."""
    from experiments.initialisation.run import run_experiment

    custom = {name: getattr(options, name) for name in ("lr", "seeds", "steps", "size", "objective")}
    work = options.work or options.results.with_name(f"{options.results.name.partition('.')[0]}.work")
    with ProgressBar("experiment") as bar, messages_to(bar.say):
        say = bar.say if is_main_process() else _ignore
        if options.train:
            _tokens(options.tokens, options, bar.step)
        left = run_experiment(
            options.tokens,
            options.results,
            groups=options.group,
            starts=options.start,
            custom=custom,
            settings=options.set,
            work=work,
            done=options.done,
            minutes=options.minutes,
            fine_tuning=options.fine_tune,
            say=say,
            progress=bar.step,
        )
        say(f"{left} runs left")
    finished = read_runs([path for path in (*options.done, options.results) if path.exists()])
    if finished and is_main_process():
        print(as_text(compare(finished)))


def speed(options: argparse.Namespace) -> None:
    """Measure steps per second of each architecture, and their share of the rate of bf16 matrix products."""
    from experiments.initialisation.speed import measure_architectures
    from experiments.initialisation.text.packed_tokens import unpacked

    folder = unpacked(options.tokens)
    names = options.architecture or _ARCHITECTURES
    rows = measure_architectures(folder, names, options.size, options.seconds, print)
    if options.out is not None:
        with write_errors(options.out):
            write_file(options.out, (json.dumps(rows, indent=2) + "\n").encode())


def table(options: argparse.Namespace) -> None:
    """Compare the initialisations of finished runs and print or write the table."""
    form = options.format or _FORMAT_OF_SUFFIX.get(options.out.suffix.lower() if options.out else "", "table")
    if options.out is not None:
        check_writable(options.out)
    text = FORMATS[form](compare(_finished_runs(options), options.against)) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        with write_errors(options.out):
            write_file(options.out, text.encode())
        print(f"wrote {options.out}", file=sys.stderr)


def figure(options: argparse.Namespace) -> None:
    """Draw the final loss of every architecture, each initialisation at its own best learning rate."""
    from attngeo.show.matplotlib import save_figure
    from experiments.initialisation.figure import architecture_figure

    save_figure(architecture_figure(_finished_runs(options), options.against), options.out)
    print(f"wrote {options.out}", file=sys.stderr)


def page(options: argparse.Namespace) -> None:
    """Make the tables of RESULTS.md, or of another page, anew from finished runs."""
    from experiments.initialisation.page.tables import with_tables

    try:
        before = options.page.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{options.page}: cannot be read as text ({error})") from error
    after = with_tables(before, read_runs(options.results))
    if after != before:
        with write_errors(options.page):
            write_file(options.page, after.encode())
    print(f"{options.page}: {'written' if after != before else 'unchanged'}", file=sys.stderr)


def overlap(options: argparse.Namespace) -> None:
    """Print the share of the n-grams of words of a held-out text that occur in the training text."""
    from experiments.initialisation.text.overlap import overlap_of_files

    share = overlap_of_files(options.train, options.valid, options.n)
    print(f"{share:.1%} of the {options.n}-grams of the held-out text occur in the training text")


def frequencies(options: argparse.Namespace) -> None:
    """Print the held-out loss of a model that knows only how often each token occurs."""
    from experiments.initialisation.text.frequencies import frequency_loss
    from experiments.initialisation.text.packed_tokens import unpacked

    mean, deviation = frequency_loss(open_tokens(unpacked(options.tokens)))
    print(f"{mean:.3f} nats per held-out token, with a standard deviation of {deviation:.3f} over the tokens")


def _tokens(folder: Path, options: argparse.Namespace, progress: Progress) -> Tokens:
    return prepare_tokens(
        folder,
        options.train,
        options.valid,
        tokenizer=options.tokenizer,
        vocabulary=options.vocab,
        progress=progress,
    )


def _finished_runs(options: argparse.Namespace) -> list[FinishedRun]:
    runs = read_runs(options.results)
    if options.group:
        wanted = {cell.key for cell in group_cells(options.group)}
        runs = [run for run in runs if run.cell.key in wanted]
    if not runs:
        part = f" of group {' '.join(options.group)}" if options.group else ""
        raise InputError(f"{' '.join(map(str, options.results))}: no finished runs{part} to compare")
    starts = sorted({run.cell.start for run in runs})
    if options.against not in starts and options.against != "baseline":
        raise InputError(f"--against {options.against}: no finished run has this initialisation; "
                         f"there are {', '.join(starts)}")  # fmt: skip
    return runs


class _Parser(argparse.ArgumentParser):
    """Prints errors as one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m experiments.initialisation",
                     description="Which initialisation saves training steps? A grid of initialisations × learning "
                                 "rates × seeds as paired runs, and their comparison.")  # fmt: skip
    commands = parser.add_subparsers(
        required=True, metavar="prepare|run|speed|table|figure|page|overlap|frequencies", parser_class=_Parser
    )

    def add(command: Callable[[argparse.Namespace], None], summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(command.__name__, help=summary, description=command.__doc__)
        added.set_defaults(command=command)
        added.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return added

    _prepare_options(add(prepare, "tokenise a corpus"))
    _run_options(add(run, "run what is not finished of a grid"))
    measured = add(speed, "measure how fast the architectures train")
    measured.add_argument("--tokens", type=Path, required=True, metavar="DIR", help="token files, packed or not")
    measured.add_argument("--architecture", **_SEVERAL, choices=_ARCHITECTURES, help="default: all of them")
    measured.add_argument("--size", nargs="+", default=["4x256", "12x768"], metavar="4x256", help="layers x width")
    measured.add_argument(
        "--seconds", type=float, default=1.0, metavar="X", help="length of a timed stretch; 5 are timed"
    )
    measured.add_argument("--out", type=Path, metavar="FILE", help="also write the measurements to this JSON file")
    for command, summary in ((table, "compare finished runs"), (figure, "draw finished runs")):
        added = add(command, summary)
        added.add_argument("results", type=Path, nargs="+", metavar="PATH", help="files or folders of finished runs")
        added.add_argument("--against", default="baseline", metavar="NAME", help="compare with this initialisation")
        added.add_argument("--group", **_SEVERAL, metavar="NAME", help="only the runs of these parts of the grid")
        if command is table:
            added.add_argument("--format", choices=tuple(FORMATS), help="default: by the suffix of --out, else table")
            added.add_argument("--out", type=Path, metavar="FILE", help="write to this file instead of stdout")
        else:
            added.add_argument("--out", type=Path, metavar="FILE", required=True, help="the picture, .png or .pdf")
    paged = add(page, "make the tables of RESULTS.md from finished runs")
    paged.add_argument(
        "--page", type=Path, default=_PAGE, metavar="FILE", help="another Markdown file with such tables"
    )
    paged.add_argument(
        "results", type=Path, nargs="*", default=list(_RESULTS), metavar="PATH", help="other files or folders of runs"
    )
    shared = add(overlap, "how much of a held-out text occurs in the training text")
    shared.add_argument("--train", **_SEVERAL, required=True, metavar="TEXT", help="training text")
    shared.add_argument("--valid", **_SEVERAL, required=True, metavar="TEXT", help="held-out text")
    shared.add_argument("-n", type=int, default=12, metavar="N", help="words of an n-gram")
    counted = add(frequencies, "the loss of a model that knows only how often each token occurs")
    counted.add_argument("--tokens", type=Path, required=True, metavar="DIR", help="token files, packed or not")
    return parser


def _prepare_options(parser: argparse.ArgumentParser) -> None:
    _text_options(parser, required=True)
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="folder of the token files")
    parser.add_argument("--pack", type=Path, metavar="DIR", help="also write the token files here, compressed")


def _text_options(parser: argparse.ArgumentParser, required: bool) -> None:
    train = "training text; tokens are prepared from it" if required else "first prepare --tokens from this text"
    parser.add_argument("--train", **_SEVERAL, required=required, metavar="TEXT", help=train)
    parser.add_argument("--valid", **_SEVERAL, metavar="TEXT", help="held-out text; default: every hundredth document")
    parser.add_argument("--tokenizer", default="train", metavar="DIR", help="use this tokenizer; default: train one")
    parser.add_argument("--vocab", type=int, default=16_384, metavar="N", help="size of a tokenizer that is trained")


_SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}


def _run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tokens", type=Path, required=True, metavar="DIR", help="token files, packed or not")
    _text_options(parser, required=False)
    add("--results", type=Path, required=True, metavar="FILE", help="*.jsonl.xz to which finished runs are appended")
    add("--done", type=Path, **_SEVERAL, metavar="PATH", help="files or folders of runs finished before")
    add("--work", type=Path, metavar="DIR", help="folder of unfinished runs; default: NAME.work beside --results")
    add("--minutes", type=float, metavar="N", help="stop after N minutes; the same command continues")
    add("--group", **_SEVERAL, metavar="NAME", help=f"parts of the grid: {', '.join(GROUPS)}; default: core")
    add("--start", **_SEVERAL, metavar="NAME", help="only these initialisations")
    add("--set", **_SEVERAL, metavar="KEY=VALUE", help="settings in place of the usual ones")
    add("--fine-tune", action="store_true", help="fine-tune each model after its training and record the accuracy")
    add("--lr", **_SEVERAL, type=float, metavar="X", help="learning rates of a custom grid, or in place of a group's")
    add("--seeds", type=int, metavar="N", help="number of seeds of a custom grid")
    add("--steps", type=int, metavar="N", help="steps per run of a custom grid")
    add("--size", metavar="4x256", help="layers x width of the models of a custom grid")
    add("--objective", metavar="masked|causal", help="objective of a custom grid")


def _ignore(line: str) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
