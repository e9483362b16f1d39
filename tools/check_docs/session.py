"""Run blocks one after the other, as a reader would who works through a page."""

from __future__ import annotations

import ast
import io
import logging
import os
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from tools.check_docs.blocks import Block, PageError, commands, open_quote

ROOT = Path(__file__).resolve().parents[2]
# What examples read; everything that they write stays in the folder of the session.
LINKED = (".models", "bench", "experiments", "results", "src", "tests", "tools")


class Session:
    """A folder with the names that its Python blocks have defined."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        for name in LINKED:
            if (ROOT / name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(ROOT / name)

    def run(self, block: Block) -> str:
        """Return what a block prints; for console blocks, with the commands."""
        with inside(self.folder):
            if block.file:
                Path(block.file).write_text(block.code, "utf-8")
                return ""
            if block.setup:
                self.python(block.setup, f"{block} (setup)")
            if block.language == "python":
                return self.python(block.code, str(block))
            return "".join(f"$ {command}\n{self.command(command, shown)}" for command, shown in commands(block.code))

    def python(self, code: str, where: str) -> str:
        out = io.StringIO()
        try:
            with redirect_stdout(out):
                exec(compile(code, where, "exec"), self.names)
        except Exception:
            return out.getvalue() + traceback.format_exc(limit=-1)
        return out.getvalue()

    def command(self, command: str, shown: str) -> str:
        """Return what a command prints, both streams together; of a pipeline stdout comes first."""
        head, tail = split_pipe(command)
        if not head.startswith("attngeo ") or unquoted(head, ";&<>$`"):
            text, code = shell(command)
        else:
            text, code = attngeo(words(head)[1:], tail)
        if code and "error:" not in shown and not shown.strip():
            text += f"(exit code {code})\n"
        return text


def attngeo(arguments: list[str], tail: str) -> tuple[str, int]:
    """Run `attngeo` in this process, which has loaded its modules already."""
    from typer.testing import CliRunner

    from attngeo.cli import app

    result = CliRunner().invoke(app, arguments, prog_name="attngeo")
    reopen_log_streams()
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return result.output + "".join(traceback.format_exception(result.exception)), 1
    if not tail:
        return result.output, result.exit_code
    text, code = shell(tail, result.stdout)
    return text + result.stderr, code


def reopen_log_streams() -> None:
    """Let loggers that were set up inside CliRunner, whose stderr is closed now, write to the real one."""
    for logger in list(logging.Logger.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
                handler.stream = sys.stderr
                vars(handler).pop("flush", None)  # transformers puts that of the old stream here


def shell(command: str, given: str | None = None) -> tuple[str, int]:
    done = subprocess.run(
        ["bash", "-c", command], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout, done.returncode


def words(command: str) -> list[str]:
    """Return the words of a command as bash reads them, with patterns such as *.txt filled in."""
    done = subprocess.run(["bash", "-c", f'printf "%s\\0" {command}'], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def split_pipe(command: str) -> tuple[str, str]:
    """Return a command and what it is piped into.

    >>> split_pipe("attngeo score 'a | b' | grep c | head")
    ("attngeo score 'a | b'", 'grep c | head')
    """
    for place, letter in enumerate(command):
        if letter == "|" and not open_quote(command[:place]):
            return command[:place].rstrip(), command[place + 1 :].lstrip()
    return command, ""


def unquoted(command: str, letters: str) -> bool:
    return any(letter in letters and not open_quote(command[:place]) for place, letter in enumerate(command))


def check_syntax(block: Block) -> None:
    """Raise PageError if a block that is not run could not be read."""
    try:
        if block.language == "python":
            ast.parse(block.code)
        elif block.language == "console":
            for command, _ in commands(block.code):
                shlex.split(command, comments=True)
    except (SyntaxError, ValueError) as error:
        raise PageError(f"{block}: {error}") from error


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, offline, with the commands of this environment first; restore everything afterwards."""
    environment, here, argv = dict(os.environ), Path.cwd(), sys.argv
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    os.environ.update(HF_HUB_OFFLINE="1", MPLBACKEND="Agg", COLUMNS="100", PYTHONWARNINGS="ignore")
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(here)
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
