"""Scores of a model during training, as records."""
