"""The tables of RESULTS.md, made from the logs."""

__all__ = ["accuracy", "contrasts", "forms", "plateau", "tables", "words"]
