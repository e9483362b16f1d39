"""The scores published with arXiv 2502.10927, and a scored model compared with them and with chance.

published                the published rows of all models, or of one (`scores`)
list_published           the published rows that match filters, per model or per layer (`scores`)
compare_with_published   a score table beside the published scores of its model or of similar models (`comparison`)
modality_of              the modality of a model, from its config (`comparison`)
verdicts                 what the scores of each stack say, in words: a `Verdict` with one sentence (`verdict`)
"""

from attngeo.weights.scoring.published.comparison import compare_with_published, modality_of
from attngeo.weights.scoring.published.scores import list_published, published
from attngeo.weights.scoring.published.verdict import Verdict, verdicts

__all__ = ["Verdict", "compare_with_published", "list_published", "modality_of", "published", "verdicts"]
