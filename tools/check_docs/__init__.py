"""Run the console and Python blocks of README.md and docs/, and compare what they print with what the pages show.

    python -m tools.check_docs [PAGE ...]            run every block, the slow ones too (`make docs-check`)
    python -m tools.check_docs --fast [PAGE ...]     leave out those marked slow (`make test` does the same)
    python -m tools.check_docs --update [PAGE ...]   write what the blocks print into the pages

The blocks of a page run in order, in one folder that looks like the root of the repository. Python blocks share their
names. A Python block that prints is followed by a `text` block with what it prints. An HTML comment before a block
marks it:

    <!-- slow -->              takes more than 10 s: run by `make docs-check` only
    <!-- needs: corpus -->     needs a corpus, a gpu or the hub: parsed, not run
    <!-- varies: seconds -->   numbers on lines that contain this word depend on the machine
    <!-- file: run.toml -->    the block is the content of this file
    <!-- setup                 Python that runs before the block and that the reader does not see
    model = ...
    -->
"""

from __future__ import annotations

__all__ = ["Block", "check_page", "difference", "pages", "parse"]

from tools.check_docs.blocks import Block, parse
from tools.check_docs.check import check_page, pages
from tools.check_docs.compare import difference
