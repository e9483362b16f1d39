"""Initialisations of queries and keys: symmetric, controls, and recipes of others."""
