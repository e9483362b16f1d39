"""Layers scored several at a time, on a device.

LayerBatch        several layers of one shape, held as tensors and scored at once
layer_batches     the layers of a model in batches
rows_of_batches   the rows of a score table, batch by batch
"""

from attngeo.weights.scoring.batches.batch_rows import rows_of_batches
from attngeo.weights.scoring.batches.layer_batch import LayerBatch, layer_batches

__all__ = ["LayerBatch", "layer_batches", "rows_of_batches"]
