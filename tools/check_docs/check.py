"""Check the blocks of one page, or write what they print into it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.check_docs.blocks import Block, PageError, parse
from tools.check_docs.compare import difference
from tools.check_docs.session import ROOT, Session, check_syntax

LONGEST = 10.0  # seconds that a block may take in `make test`


def pages() -> list[str]:
    """Return the pages whose blocks are checked, relative to the root."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def check_page(
    page: str, *, slow: bool = True, update: bool = False, say: Callable[[str], None] = lambda line: None
) -> list[str]:
    """Run the blocks of a page; return one text per block that fails, beginning with its place.

    slow:   also run the blocks that are marked as slow
    update: write what is printed into the page where it differs
    say:    called with one line per block that was run
    """
    path = ROOT / page
    failures: list[str] = []
    changes: list[tuple[int, int, str]] = []
    with TemporaryDirectory(prefix="docs-") as folder:
        session = Session(Path(folder))
        for block in parse(path.read_text("utf-8"), page):
            try:
                check_syntax(block)
            except PageError as error:
                failures.append(str(error))
                continue
            if block.needs or (block.slow and not slow):
                continue
            began = time.perf_counter()
            printed = session.run(block)
            seconds = time.perf_counter() - began
            late = " (mark it as slow)" if seconds > LONGEST and not block.slow else ""
            say(f"{block}: {seconds:.1f} s{late}")
            shown = block.code if block.language == "console" else block.shown or ""
            found = difference(shown, printed, block.varies)
            if found and update and not re.search(r"^Traceback|^\(exit code", printed, re.M):
                changes += change(block, printed)
            elif found:
                failures.append(f"{block}: the output is not what the page shows\n{found}")
    if changes:
        path.write_text(replaced(path.read_text("utf-8"), changes), "utf-8")
    return failures


def change(block: Block, printed: str) -> list[tuple[int, int, str]]:
    """Return which lines of the page become what."""
    if block.language == "console":
        return [(block.start, block.end, printed)]
    if block.output is not None:
        return [(*block.output, printed)]
    return [(block.end + 1, block.end + 1, f"\n```text\n{printed.rstrip()}\n```\n")]


def replaced(text: str, changes: list[tuple[int, int, str]]) -> str:
    lines = text.splitlines()
    for start, end, new in sorted(changes, reverse=True):
        fence = lines[start - 1]
        indent = " " * (len(fence) - len(fence.lstrip()))
        lines[start:end] = [f"{indent}{line}".rstrip() for line in new.rstrip("\n").splitlines()]
    return "\n".join(lines) + "\n"
