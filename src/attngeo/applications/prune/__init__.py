"""Remove attention heads from a model: choose them, take them out, and refit what stays.

    prune_plan    a model and calibration inputs → PrunePlan: which heads go, in which order, at what cost
    PrunePlan     the heads to be removed; also made from labels of one's own choice
    prune         a model and a plan → a smaller model
    load_pruned   the folder of a pruned model → the model

Sub-packages: `removal` (how heads are taken out of a live model), `calibration` (what is measured on inputs) and
`criteria` (what a removal costs). They need torch and import it when they are used.
"""

from attngeo.applications.prune.load_pruned import load_pruned
from attngeo.applications.prune.plan import PrunePlan, RemovedHead
from attngeo.applications.prune.prune import prune
from attngeo.applications.prune.prune_plan import prune_plan

__all__ = ["PrunePlan", "RemovedHead", "load_pruned", "prune", "prune_plan"]
