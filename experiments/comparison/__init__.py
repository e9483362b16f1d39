"""Measurements of model comparison behind docs/comparison.md; `page` makes its tables.

small_models      train small encoders and decoders, from different or from the same initial values
false_positives   how often unrelated models are called related
power             how far a copy may have moved before the relation is lost
distances         the distance of checkpoints of one run, and its rank correlation with training time
real_models       published fine-tunes, and a quantised model compared with its bfloat16 copy

`python -m experiments.comparison COMMAND` runs them.
"""

__all__ = ["distances", "false_positives", "page", "power", "real_models", "small_models"]
