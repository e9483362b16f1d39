"""Compare two models: what changed, are they related, how far apart are they.

compare           the three answers → ModelComparison
ModelComparison   a table of changes, a verdict with a p-value, a distance; prints, draws, saves and loads

Inside, one package per question: `change`, `origin` and `distance`.
"""

from attngeo.applications.compare.compare import compare
from attngeo.applications.compare.comparison import ModelComparison

__all__ = ["ModelComparison", "compare"]
