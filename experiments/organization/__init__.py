"""Networks on many texts: the passages behind the figures of docs/organization.md."""

__all__: list[str] = []
