"""From the scores of a layer and its heads to the rows of a table.

layer_rows          score one layer and return its rows
layer_row           the row of a layer whose scores are known
head_rows           the rows of heads whose scores are known
add_gaussian_null   fill the columns that compare with independent Gaussian factors
add_folded          fill the columns of scores with the norm folded in
turning_pairs       the rotary pairs of a layer that rotates
Requested           which rows and columns are wanted
"""

from attngeo.weights.scoring.columns.layer_rows import (
    add_folded,
    add_gaussian_null,
    head_rows,
    layer_row,
    layer_rows,
    turning_pairs,
)
from attngeo.weights.scoring.columns.requested import Requested

__all__ = ["Requested", "add_folded", "add_gaussian_null", "head_rows", "layer_row", "layer_rows", "turning_pairs"]
