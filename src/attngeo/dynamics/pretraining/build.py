"""Build what a config describes: the initialised model and the objective."""

from __future__ import annotations

import torch

from attngeo.dynamics.data.masking import MaskedObjective
from attngeo.dynamics.data.tokens import Tokens
from attngeo.dynamics.initialisation.by_name import initialise_
from attngeo.dynamics.pretraining.bert import Bert, Shape
from attngeo.dynamics.pretraining.config import PretrainConfig
from attngeo.dynamics.pretraining.objective import CausalObjective, Objective
from attngeo.errors import InputError


def build_model(config: PretrainConfig, tokens: Tokens, device: torch.device) -> Bert:
    """Return the initialised model on `device`; every weight outside queries and keys depends on the seed only.

    The authors' recipe and the mimetic initialisations with values change other weights too.
    """
    if tokens.vocabulary > config.vocab:
        raise InputError(f"{tokens.folder}: its tokenizer has {tokens.vocabulary} tokens and does not fit a model with "
                         f"vocab = {config.vocab}")  # fmt: skip
    layers, hidden, heads = config.shape
    shape = Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        intermediate=config.intermediate or 4 * hidden,
        vocabulary=-(-tokens.vocabulary // 64) * 64,  # rounded up to whole tiles of the output product
        length=config.length,
        causal=config.objective == "causal",
    )
    on_gpu = device.type == "cuda"
    bf16 = config.precision == "bf16" or (config.precision == "auto" and on_gpu)
    compiled = config.compile == "yes" or (config.compile == "auto" and on_gpu)
    model = Bert(shape, torch.bfloat16 if bf16 else torch.float32, compiled)
    model.initialise(config.seed)
    initialise_(model, config.start, scale=config.scale, seed=config.seed)
    model.to(device)
    return model


def build_objective(config: PretrainConfig, tokens: Tokens) -> Objective:
    """Return the objective of a config."""
    if config.objective == "causal":
        return CausalObjective()
    return MaskedObjective(tokens.mask, tokens.special, tokens.vocabulary, config.masked)
