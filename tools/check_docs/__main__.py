"""`python -m tools.check_docs`: see the docstring of the package."""

from __future__ import annotations

import argparse
import sys

from tools.check_docs.check import check_page, pages


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check_docs")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="pages relative to the root; by default all")
    parser.add_argument("--fast", action="store_true", help="leave out the blocks that are marked as slow")
    parser.add_argument("--update", action="store_true", help="write what the blocks print into the pages")
    arguments = parser.parse_args()
    failures: list[str] = []
    for page in arguments.pages or pages():
        failures += check_page(
            page, slow=not arguments.fast, update=arguments.update, say=lambda line: print(line, flush=True)
        )
    print("\n\n".join(failures) or "every block prints what its page shows")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
