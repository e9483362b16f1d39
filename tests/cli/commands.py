"""Run `attngeo` as a user does: in this process, or in one of its own where streams, signals or imports matter."""

from __future__ import annotations

import os
import subprocess
import sys
from subprocess import CompletedProcess

from typer.testing import CliRunner

from attngeo.cli import app


def call(*arguments: object) -> CompletedProcess[str]:
    """Run `attngeo ARGUMENTS` in this process, where NumPy and torch are loaded already."""
    words = list(map(str, arguments))
    done = CliRunner().invoke(app, words, prog_name="attngeo")
    return CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def run(*arguments: object, **environment: str) -> CompletedProcess[str]:
    """Run `attngeo ARGUMENTS` offline in a process of its own, with both streams piped."""
    return subprocess.run(
        [sys.executable, "-m", "attngeo", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )


def run_script(code: str) -> CompletedProcess[str]:
    """Run Python code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def error_line(done: CompletedProcess[str]) -> str:
    """Check that a command failed with one line on stderr and nothing on stdout; return the line."""
    assert (done.returncode, done.stdout) == (2, ""), (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("attngeo: error: "), done.stderr
    return lines[0].removeprefix("attngeo: error: ")
