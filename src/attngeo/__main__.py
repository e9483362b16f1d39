"""`python -m attngeo` and the command `attngeo` run the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, also while its modules are imported."""
    try:
        from attngeo.cli.app import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
