"""Remove attention heads from a model: choose them, take them out, and refit what stays.

    prune_plan    a model and calibration inputs → PrunePlan: which heads go, in which order, at what cost
    PrunePlan     the heads to be removed; also made from labels of one's own choice
    prune         a model and a plan → a smaller model
    load_pruned   the folder of a pruned model → the model

rows      calibration inputs, what is predicted in them, and the loss
measure   the pass over them: second moments of the head outputs, gradients
criteria  what the removal of heads costs
plan      plans, and the choice of the cheapest heads
removal   which projections hold the heads of a live model, and how they are cut
curve     losses by share of heads removed, and `attngeo prune`
"""

from attngeo.applications.prune.plan import PrunePlan, RemovedHead, prune_plan
from attngeo.applications.prune.prune import load_pruned, prune

__all__ = ["PrunePlan", "RemovedHead", "load_pruned", "prune", "prune_plan"]
