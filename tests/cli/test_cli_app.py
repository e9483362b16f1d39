"""The list of commands is told without loading them: it must not differ from what they say themselves."""

import subprocess
import sys

import pytest
import typer

from attngeo.cli.app import _ROOMS, app


@pytest.mark.parametrize("name", _ROOMS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    group = typer.main.get_group(app)
    command = group.get_command(typer.Context(group), name)
    assert command is not None
    assert str(command.help).strip().splitlines()[0] == _ROOMS[name][1]


def test_help_loads_no_room() -> None:
    code = """
import sys
sys.argv = ["attngeo", "--help"]
import attngeo.cli
try:
    attngeo.cli.main()
finally:
    print([name for name in sys.modules if name.startswith("attngeo.cli.") and name != "attngeo.cli.app" or name in ("numpy", "torch")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(name in done.stdout for name in (*_ROOMS, "score", "published"))
