"""The `attngeo` command line: one module per command group."""

from attngeo.cli.app import app, main

__all__ = ["app", "main"]
