"""What the geometry of attention is used for: pruning heads and comparing models."""

__all__: list[str] = []
