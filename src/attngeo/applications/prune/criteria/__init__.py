"""Criteria for the order in which heads are removed: what each removal costs, and the greedy choice of the cheapest.

units            what is removed at once: a query head, or a key head with all its query heads
greedy           the choice of the cheapest unit over all layers, at least one per layer being kept
scores           fixed costs: gradient, fisher, magnitude, output, random
downdate         costs that know of the refit: sensitivity, unexplained, refit; and of each other: error
organized_heads  what the organisation of the network suggests: folders, entropy
methods          the names of all criteria
"""

__all__: list[str] = []
