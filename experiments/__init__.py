"""Reproductions of the results in docs/. They are not part of the installed package."""

__all__ = ["comparison", "initialisation", "organization", "pruning", "updates"]
