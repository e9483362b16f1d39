"""Checkpoint → queries and keys → bilinear form → scores."""
