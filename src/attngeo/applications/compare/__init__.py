"""Compare models: what changed, are they related, how far apart are they.

compare            two models → ModelComparison
compare_all        several models → ModelMap
ModelComparison    a table of changes, a verdict with a p-value, a distance; prints, draws, saves and loads
ModelMap           the distances of several models: a matrix, a dendrogram, a map

Inside, `change` answers the first question, `relation` the second, and `distance` the third.
"""

from attngeo.applications.compare.compare import compare, compare_all
from attngeo.applications.compare.comparison import ModelComparison, ModelMap

__all__ = ["ModelComparison", "ModelMap", "compare", "compare_all"]
