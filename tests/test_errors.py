"""Messages of attngeo's exceptions are one printable line."""

from __future__ import annotations

import pickle

import pytest

from attngeo.errors import AttngeoError, InputError, disk_is_full, first_line, reason


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("file: tensor 'é … ×' is missing", "file: tensor 'é … ×' is missing"),
        ("first\nsecond\n", "first second"),
        ("a\0b\x1b[31m", "a\\x00b\\x1b[31m"),
        ("half \ud800 and \u202e", "half \\ud800 and \\u202e"),
    ],
)
def test_a_message_is_one_one_line(message: str, line: str) -> None:
    error = InputError(message)
    assert str(error) == line
    assert str(pickle.loads(pickle.dumps(error))) == line


def test_a_long_name_loses_its_middle_and_the_message_keeps_its_advice() -> None:
    name = "x" * 10_000
    message = str(AttngeoError(f"weights.bin: no tensor {name!r}, did you mean 'x'? See `attngeo score --help`."))
    assert message.startswith("weights.bin: no tensor 'x") and "…" in message
    assert message.endswith("', did you mean 'x'? See `attngeo score --help`.")
    assert 250 < len(message) <= 300


def test_the_reason_is_that_of_the_operating_system() -> None:
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            raise RuntimeError("unexpected position 64 vs 12") from None
    except RuntimeError as error:
        assert reason(error) == "No space left on device" and disk_is_full(error)
    assert not disk_is_full(OSError(2, "No such file or directory"))
    assert reason(ValueError("one\ntwo")) == first_line(ValueError("\n one\ntwo")) == "one"
    assert first_line(KeyError()) == "KeyError"
