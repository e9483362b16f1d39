"""Random models of given transformers types, and the sizes that the tests of several rooms make them with."""

from __future__ import annotations

from typing import Any

import torch
from transformers.utils import logging

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}
VOCABULARY = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def encoder_decoder_options(positions: int) -> dict[str, Any]:
    """Return the options of a config of BART's kind: two layers of four heads on each side."""
    options = VOCABULARY | {"d_model": 32, "decoder_start_token_id": 2, "max_position_embeddings": positions}
    for side in ("encoder", "decoder"):
        options |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 40}
    return options


def opt_options(positions: int) -> dict[str, Any]:
    """Return the options of a config of OPT: two layers of four heads."""
    options = VOCABULARY | {"hidden_size": 32, "ffn_dim": 40, "num_attention_heads": 4, "num_hidden_layers": 2}
    return options | {"max_position_embeddings": positions, "word_embed_proj_dim": 32}


def random_model(architecture: Any, config: Any, attention: str, dtype: torch.dtype) -> Any:
    """Return the same model at every call, in evaluation mode, with biases ≠ 0 and heads that prefer some tokens."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = architecture._from_config(config, attn_implementation=attention).to(dtype)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 1 and "norm" not in name.lower() and "ln" not in name:
                    weight.normal_(0, 0.3)
                elif weight.dim() == 2:
                    weight.normal_(0, 32**-0.5)
    logging.set_verbosity(level)
    return model.eval()
