"""Warnings and log messages reach the user as lines, those about open files excepted."""

from __future__ import annotations

import logging
import warnings

from attngeo.io.progress import messages_to


def test_warnings_and_log_messages_are_said_in_one_line_each() -> None:
    said: list[str] = []
    with messages_to(said.append):
        warnings.warn("layer 3\n has no queries", UserWarning, stacklevel=1)
        logging.getLogger("attngeo").info("a folder\n was made")
    assert said == ["warning: layer 3 has no queries", "a folder was made"]


def test_a_file_that_an_interrupt_left_open_is_not_mentioned() -> None:
    said: list[str] = []
    with messages_to(said.append):
        warnings.warn("unclosed file <_io.BufferedWriter>", ResourceWarning, stacklevel=1)
    assert said == []
