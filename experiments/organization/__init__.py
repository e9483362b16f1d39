"""Networks on many texts: the passages and tables behind docs/organization.md."""

__all__: list[str] = []
