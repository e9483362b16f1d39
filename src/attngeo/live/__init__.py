"""A running transformers model: loading it, its attention modules, its query and key parameters, recording calls.

These names are imported here; they need torch only when they are called.
    load_model, LoadedModel       a reference → a model that can run, with its tokenizer and processors
    attention_stacks              a model → its attention modules by stack and layer: Stack, AttentionModule

The following modules import torch when they are imported, so import their names from them directly.
    frozen             frozen_model: run a model for a measurement and restore its state
    attention_hook     recorded_attention: send the attention calls of a model to a recorder
    attention_logits   logits from the queries, keys and masks of an attention call
    checkpoint         a live model as a checkpoint that scoring can read
    saved_tensors      what transformers saves of a live model, and from which weights it is made
    adapters           the weight a layer multiplies with, low-rank adapters (LoRA, DoRA) included
    block_structure    whether a live attention layer reads a norm of its own block, and whether it rotates
    parameters         the queries and keys of a live model as views of its parameters
"""

from attngeo.live.attention_modules import AttentionModule, Stack, attention_stacks
from attngeo.live.load import LoadedModel, load_model

__all__ = ["AttentionModule", "LoadedModel", "Stack", "attention_stacks", "load_model"]
