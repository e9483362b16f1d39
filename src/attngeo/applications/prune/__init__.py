"""Remove attention heads from a model: choose them, take them out, and refit what stays.

    PrunePlan    which heads go, in which order, at what cost
    prune        a plan and a model → a smaller model

The modules behind them import torch when they are called.
"""

from attngeo.applications.prune.plan import PrunePlan, RemovedHead

__all__ = ["PrunePlan", "RemovedHead"]
