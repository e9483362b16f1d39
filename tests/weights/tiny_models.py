"""Tiny live models with different kinds of storage; each call returns a new model with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def bert(**settings: Any) -> Any:
    """Return a BERT (separate storage) with these settings in place of the usual ones."""
    from transformers import BertConfig, BertForMaskedLM

    usual = {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
    }
    return _with_seed_0(lambda: BertForMaskedLM(BertConfig(**(usual | settings))))


def gpt2() -> Any:
    """Return a GPT-2 (blocks, stored [in, out])."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return _with_seed_0(lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=40, bos_token_id=1, eos_token_id=2)))  # fmt: skip


def llama() -> Any:
    """Return a LLaMA (separate storage, grouped queries)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _with_seed_0(lambda: LlamaForCausalLM(LlamaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40)))  # fmt: skip


def neox() -> Any:
    """Return a GPT-NeoX (fused per head)."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return _with_seed_0(lambda: GPTNeoXForCausalLM(GPTNeoXConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)))  # fmt: skip


def t5() -> Any:
    """Return a T5 (encoder, decoder and cross-attention)."""
    from transformers import T5Config, T5ForConditionalGeneration

    return _with_seed_0(lambda: T5ForConditionalGeneration(T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4)))  # fmt: skip


def _with_seed_0(make: Callable[[], Any]) -> Any:
    """Return the model that `make` makes after seeding torch, in eval mode; torch's random state is kept."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()


FAMILIES = {"bert": bert, "gpt2": gpt2, "llama": llama, "neox": neox, "t5": t5}
