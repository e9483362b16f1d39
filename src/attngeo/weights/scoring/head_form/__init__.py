"""A closer look at the form of single heads: its row and column norms and the spectrum of its two parts.

part_spectra     eigenvalues of the symmetric and of the skew part of a form, from its factors
extreme_heads    the heads of a score table with the highest, the median and the lowest symmetry
head_forms       norms and spectra of chosen heads of a model → HeadForm
"""

from attngeo.weights.scoring.head_form.head_forms import HeadForm, extreme_heads, head_forms
from attngeo.weights.scoring.head_form.part_spectra import part_spectra

__all__ = ["HeadForm", "extreme_heads", "head_forms", "part_spectra"]
