"""Standard streams that are closed or full, signals, names that would break a line."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attngeo.__main__ import main
from attngeo.cli.common import print_error
from attngeo.data import bundled

ENCODER = str(bundled("encoder"))


def run(*arguments: str, before: str = "", streams: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a shell, after the command `before`; `streams` redirects what it should not inherit."""
    command = ["bash", "-c", f'{before} "$@" {streams}', "bash", sys.executable, "-m", "attngeo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_standard_output_is_one_line() -> None:
    done = run("published", streams=">/dev/full")
    assert done.returncode == 2
    assert done.stderr == "attngeo: error: standard output: cannot be written (No space left on device)\n"


def test_an_output_that_does_not_fit_is_named_and_not_left(tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    done = run("score", ENCODER, "--no-nulls", "--heads", "--out", str(out), before="ulimit -f 1;")
    assert done.returncode == 2
    assert done.stderr == f"attngeo: error: {out}: cannot be written (File too large)\n"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_during_the_imports_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    done = run("--version", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_temporary_folder(number: signal.Signals, tmp_path: Path) -> None:
    script = f"""
import signal, sys, time
from pathlib import Path
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    signal.signal(number, handler)  # also where the tests were started by nohup, which lets them be ignored
import attngeo.cli.app
from attngeo.__main__ import main
from attngeo.io.files import atomic_folder

def command(prog_name):
    with atomic_folder(Path({str(tmp_path / "results")!r})):
        print("begun", flush=True)
        while True:
            time.sleep(0.05)

sys.modules["attngeo.cli.app"].app = command
main()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
            process.send_signal(number)
            assert process.communicate(timeout=60)[1] == ""
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_operating_system_begins_with_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(PermissionError(13, "Permission denied", "run/\x1b"), None, debug=False)
    print_error(OSError(28, "No space left on device"), None, debug=False)
    assert capsys.readouterr().err == (
        "attngeo: error: run/\\x1b: Permission denied\nattngeo: error: [Errno 28] No space left on device\n"
    )


def test_the_command_prints_to_a_stream_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard output of a notebook is no text file."""
    monkeypatch.setattr(sys, "argv", ["attngeo", "--version"])
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code and printed.getvalue().startswith("attngeo ")
