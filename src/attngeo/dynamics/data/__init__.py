"""A corpus as packed token files."""
