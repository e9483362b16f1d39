"""Build what a config describes: the initialised model and the objective."""

from __future__ import annotations

import warnings

import torch

from attngeo.errors import InputError
from attngeo.training.data.masking import MaskedObjective
from attngeo.training.data.tokens import Tokens
from attngeo.training.initialise import initialise_
from attngeo.training.pretraining.architectures import Bert, Llama, Model, ModernBert, PreNormBert, Shape
from attngeo.training.pretraining.batches import CausalObjective, Objective, Rows
from attngeo.training.pretraining.config import PretrainConfig
from attngeo.training.pretraining.measure import mean_self_logits

_ARCHITECTURES: dict[str, type[Model]] = {"bert": Bert, "modernbert": ModernBert, "llama": Llama}
_SELF_BIAS_ROWS = 16  # held-out rows on which the self-bias is measured


def build_model(config: PretrainConfig, tokens: Tokens, device: torch.device) -> Model:
    """Return the initialised model on `device`; every weight outside queries and keys depends on the seed only.

    The authors' recipe and the mimetic initialisations with values change other weights too.
    """
    if tokens.vocabulary > config.vocab:
        raise InputError(f"{tokens.folder}: its tokenizer has {tokens.vocabulary} tokens and does not fit a model with "
                         f"vocab = {config.vocab}")  # fmt: skip
    pad = tokens.special[0]
    if pad and config.norm == "pre" and config.keep_model:
        raise InputError(f"{tokens.folder}: [PAD] is token {pad} of its tokenizer, expected token 0 with norm = 'pre'; "
                         "transformers' model counts positions from it (or set keep_model = false)")  # fmt: skip
    kind = PreNormBert if config.norm == "pre" else _ARCHITECTURES[config.architecture]
    layers, hidden, heads = config.shape
    # A gated feed-forward layer has three matrices in place of two: 8d/3, in whole tiles of 64, is about as large.
    usual = 4 * hidden if config.architecture == "bert" else -(-8 * hidden // (3 * 64)) * 64
    shape = Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        intermediate=config.intermediate or usual,
        vocabulary=-(-tokens.vocabulary // 64) * 64,  # rounded up to whole tiles of the output product
        length=config.length,
        causal=config.objective == "causal",
        pad=pad,
    )
    on_gpu = device.type == "cuda"
    bf16 = config.precision == "bf16" or (config.precision == "auto" and on_gpu)
    compiled = config.compile == "yes" or (config.compile == "auto" and on_gpu)
    self_bias = _unit_symmetric_self_logits(kind, shape, config, tokens) if config.self_bias else None
    model = kind(shape, torch.bfloat16 if bf16 else torch.float32, compiled, self_bias)
    model.initialise(config.seed)
    initialise_(model, config.start, scale=config.scale, seed=config.seed)
    model.to(device)
    return model


def _unit_symmetric_self_logits(kind: type[Model], shape: Shape, config: PretrainConfig, tokens: Tokens) -> list[float]:
    """Return the mean logit of a token with itself in each layer of the unit symmetric initialisation, same seed.

    It is measured on held-out rows, on the CPU in float32, so that every device gets the same numbers.
    """
    model = kind(shape)
    model.initialise(config.seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* symmetric initialisation")  # this model is measured, never trained
        initialise_(model, "symmetric", scale="unit", seed=config.seed)
    rows = Rows(tokens, "valid", config.length, torch.device("cpu"), config.batch)
    some = rows.take(torch.arange(min(_SELF_BIAS_ROWS, rows.count)))  # [rows, length]
    means: list[float] = mean_self_logits(model, some)
    return means


def build_objective(config: PretrainConfig, tokens: Tokens) -> Objective:
    """Return the objective of a config."""
    if config.objective == "causal":
        return CausalObjective()
    return MaskedObjective(tokens.mask, tokens.special, tokens.vocabulary, config.masked)
