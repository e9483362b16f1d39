"""A running transformers model: loading it, its attention modules, its query and key parameters, recording calls.

These names are imported here; they need torch only when they are called.
    load_model, LoadedModel       a reference → a model that can run, with its tokenizer and processors
    attention_stacks              a model → its attention modules by stack and layer: Stack, AttentionModule

attention_modules  also `recorded_attention`: send the attention calls of a model to a recorder; logits of such a call
checkpoint         a live model as a checkpoint that scoring can read, and its queries and keys as views; needs torch
frozen             frozen_model: run a model for a measurement and restore its state; needs torch
"""

from attngeo.live.attention_modules import AttentionModule, Stack, attention_stacks
from attngeo.live.load import LoadedModel, load_model

__all__ = ["AttentionModule", "LoadedModel", "Stack", "attention_stacks", "load_model"]
