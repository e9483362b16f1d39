"""Run a model once on calibration inputs and collect what criteria and refit need.

    objective    which loss a model is measured by
    rows         texts, images, sounds or tensors → rows, and batches of rows
    losses       the loss of each row, and of a whole set of rows
    measure      the pass over the rows: head outputs, gates, gradients
    statistics   what is kept of the pass for the refit, saved as .npz

The modules import torch, so import their names from them directly.
"""

__all__: list[str] = []
