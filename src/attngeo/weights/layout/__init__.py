"""How model families store queries and keys, and how their weights are cut into heads."""
