"""The list of commands, which is printed without importing them, agrees with the help of each command."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from attngeo.cli.app import COMMANDS, app


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_agrees_with_the_help_of_the_command_and_every_option_has_one(name: str) -> None:
    group = typer.main.get_group(app)
    command = group.get_command(typer.Context(group), name)
    assert command is not None
    assert str(command.help).strip().splitlines()[0] == COMMANDS[name][1]
    for one in [command, *getattr(command, "commands", {}).values()]:
        assert [option.name for option in one.params if not getattr(option, "help", None)] == []


@pytest.mark.parametrize("words", [["organize"], ["compare"], ["atlas", "add"]], ids=" ".join)
def test_help_names_arguments_without_their_types(words: list[str]) -> None:
    text = CliRunner().invoke(app, [*words, "--help"]).output
    assert "  REF  " in text
    assert "<" not in text and "[[" not in text and "...}" not in text


@pytest.mark.parametrize(("words", "option"), [("organize", "--out"), ("atlas organize", "--texts")])
def test_help_says_which_options_are_required(words: str, option: str) -> None:
    text = CliRunner().invoke(app, [*words.split(), "--help"]).output
    block = re.search(rf"^  {option} .*?(?=^  -|\Z)", text, re.M | re.S)
    assert block is not None and "Required." in block[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--nonsense", "no such option: --nonsense (see attngeo --help)"),
        ("scor model", "no such command 'scor', did you mean 'score'? (see attngeo --help)"),
        ("score", "missing argument 'REF' (see attngeo score --help)"),
        ("prune model --out", "option '--out' requires an argument (see attngeo prune --help)"),
        ("atlas ad", "no such command 'ad'. Did you mean 'add'? (see attngeo atlas --help)"),
    ],
)
def test_usage_errors_are_one_line(words: str, line: str) -> None:
    done = CliRunner().invoke(app, words.split(), prog_name="attngeo")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"attngeo: error: {line}\n")


def test_help_imports_no_command_and_no_large_library() -> None:
    script = """
import sys
sys.argv = ["attngeo", "--help"]
import attngeo.cli
try:
    attngeo.cli.main()
finally:
    commands = [name for name in sys.modules if name.startswith("attngeo.cli.") and name != "attngeo.cli.app"]
    large = "numpy polars matplotlib scipy rich huggingface_hub torch".split()
    print(commands + [name for name in large if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(name in done.stdout for name in COMMANDS)
