"""`attngeo score` printed to a real terminal and to a pipe: widths, bars, colours, NO_COLOR, dumb terminals."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from functools import partial

import pytest

from attngeo.data import NAMES, bundled
from tests.cli.commands import call

fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))  # not on Windows

WIDEST = 100
ESCAPE = re.compile(r"\x1b\[\d*m")
BAR = re.compile("[▏▎▍▌▋▊▉█]")


def on_a_terminal(*arguments: object, columns: int = 120, **env: str) -> str:
    """Return what `attngeo ARGUMENTS` prints to a real terminal of this width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "attngeo", *map(str, arguments)],
        stdout=follower,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**environment, "TERM": "xterm-256color", "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1", **env},
    )
    os.close(follower)
    printed = b""
    try:
        while chunk := os.read(leader, 65536):
            printed += chunk
    except OSError:  # the other side has closed the terminal
        pass
    os.close(leader)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return printed.decode().replace("\r\n", "\n")


def piped(*arguments: object) -> str:
    """Return what `attngeo ARGUMENTS` prints to a pipe."""
    done = call(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def widest(text: str) -> int:
    """Return the length of the longest line, without escape sequences; the name of the model may be of any length."""
    return max(len(line) for line in ESCAPE.sub("", text).splitlines() if os.sep not in line)


def test_real_models_fit_into_100_characters(minilm, smollm2):
    models = [minilm, smollm2]
    plain, shown = (show("score", *models, "--heads") for show in (piped, partial(on_a_terminal, columns=200)))
    assert widest(plain) <= WIDEST and widest(shown) <= WIDEST
    assert not ESCAPE.search(plain) and not BAR.search(plain)
    assert ESCAPE.search(shown) and BAR.search(shown)
    assert plain.count("symmetric (median") + plain.count("chance (median") + plain.count("offsets (median") == 2
    # Bars, colours and the spaces they need are all that differs.
    assert BAR.sub("", ESCAPE.sub("", shown)).split() == plain.split()


def test_no_color_dumb_terminals_and_files(tmp_path):
    encoder = bundled("encoder")
    without_colour = on_a_terminal("score", encoder, NO_COLOR="1")
    assert "\x1b" not in without_colour and BAR.search(without_colour)
    assert "\x1b" in on_a_terminal("score", encoder, NO_COLOR="")  # an empty value means nothing (no-color.org)
    plain = piped("score", encoder)
    assert on_a_terminal("score", encoder, TERM="dumb") == plain
    on_a_terminal("score", encoder, "--out", tmp_path / "scores.txt")
    assert (tmp_path / "scores.txt").read_text() == plain


def test_a_narrow_terminal_is_not_exceeded(minilm):
    shown = on_a_terminal("score", minilm, columns=60)
    table, below, *_ = ESCAPE.sub("", shown).split("\n\n")
    assert max(map(len, table.splitlines()[1:])) <= 60
    assert " ".join(below.split()).startswith("6 layers, clearly symmetric (median 0.49, chance ")


@pytest.mark.parametrize("command", [["demo"], ["compare", *map(bundled, NAMES)]])
def test_80_characters_are_enough(command):
    shown, plain = on_a_terminal(*command, columns=80), piped(*command)
    assert widest(shown) <= 80 < widest(plain)
    assert set(re.findall("[a-z]{3,}", shown)) - {"norm"} == set(re.findall("[a-z]{3,}", plain)) - {"norm"}
