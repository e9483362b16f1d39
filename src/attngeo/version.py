"""The version of attngeo, which files and pages state, and what else their numbers depend on."""

from __future__ import annotations

import shlex
import sys
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def commit() -> str | None:
    """Return the commit of attngeo where it runs from a git checkout, read without starting git; None elsewhere.

    Changes that are not committed are not seen.
    """
    root = Path(__file__).resolve().parents[2]  # of src/attngeo/version.py
    try:
        git = root / ".git"
        if git.is_file():  # a worktree: "gitdir: FOLDER"
            git = root / git.read_text("utf-8").strip().removeprefix("gitdir: ")
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        common = git / (git / "commondir").read_text("utf-8").strip() if (git / "commondir").exists() else git
        if (common / name).exists():
            return (common / name).read_text("utf-8").strip()
        packed = (common / "packed-refs").read_text("utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
    except OSError:  # not a checkout
        return None


def versions() -> dict[str, str]:
    """Return the versions of attngeo, of its commit where known, and of those libraries that this process has loaded.

    >>> versions()["attngeo"] == __version__
    True
    """
    known = {"attngeo": __version__, **({"commit": found} if (found := commit()) else {})}
    loaded = {name: sys.modules.get(name) for name in ("numpy", "torch", "transformers")}
    return known | {name: str(module.__version__) for name, module in loaded.items() if module is not None}


def command_line() -> str | None:
    """Return the command that this process runs, where it is `attngeo`; None for a library's caller."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    is_ours = program.stem == "attngeo" or program.parts[-2:] == ("attngeo", "__main__.py")
    return shlex.join(["attngeo", *sys.argv[1:]]) if is_ours else None
