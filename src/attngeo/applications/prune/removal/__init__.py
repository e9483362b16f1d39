"""Take heads out of a live model: which projections hold them, and how the modules run without them.

    families    the model types that are supported
    layers      the attention layers of a model with all their projections
    cut         cut the projections down to the heads that are kept
    attention   attention with a position bias of the full model
    own_config  a module's view of the model's config
    record      what a pruned model says about itself in its config

The modules import torch, so import their names from them directly.
"""

__all__: list[str] = []
