"""Tiny live models of four storage kinds, made anew each time with the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def bert(**other: Any) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
    }
    return _made(lambda: BertForMaskedLM(BertConfig(**(sizes | other))))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _made(lambda: GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=40,
                                                    bos_token_id=1, eos_token_id=2)))  # fmt: skip


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _made(lambda: LlamaForCausalLM(LlamaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40)))  # fmt: skip


def neox() -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return _made(lambda: GPTNeoXForCausalLM(GPTNeoXConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)))  # fmt: skip


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return _made(lambda: T5ForConditionalGeneration(T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4)))  # fmt: skip


def _made(make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()


FAMILIES = {"bert": bert, "gpt2": gpt2, "llama": llama, "neox": neox, "t5": t5}
