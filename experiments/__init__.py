"""Reproductions of the results in docs/; not part of the installed package."""
