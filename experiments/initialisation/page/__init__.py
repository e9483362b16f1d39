"""The tables of docs/initialisation.md, made from the logs."""

__all__ = ["accuracy", "contrasts", "forms", "plateau", "tables", "words"]
