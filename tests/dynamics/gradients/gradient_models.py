"""Small random models with a loss of their own, and what their unmodified selves say about gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers as tf
from transformers.utils import logging

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}
WORDS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = SIZES | WORDS | {"max_position_embeddings": 32}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
PAIR: dict[str, Any] = {"d_model": 32, "decoder_start_token_id": 2, "max_position_embeddings": 32, **WORDS}
for side in ("encoder", "decoder"):
    PAIR |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 40}

MODELS: dict[str, Any] = {
    "bert": lambda: (tf.BertForMaskedLM, tf.BertConfig(**TEXT)),
    "gpt2": lambda: (
        tf.GPT2LMHeadModel,
        tf.GPT2Config(n_embd=32, n_head=4, n_layer=2, n_positions=32, scale_attn_by_inverse_layer_idx=True, **WORDS),
    ),
    "llama": lambda: (tf.LlamaForCausalLM, tf.LlamaConfig(**GROUPED)),
    "t5": lambda: (
        tf.T5ForConditionalGeneration,
        tf.T5Config(d_model=32, d_kv=6, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0, **WORDS),
    ),
    "neox": lambda: (tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig(**TEXT, rotary_pct=0.5)),
    "modernbert": lambda: (
        tf.ModernBertForMaskedLM,
        tf.ModernBertConfig(**TEXT, local_attention=4, sep_token_id=2, cls_token_id=1),
    ),
    "gemma2": lambda: (
        tf.Gemma2ForCausalLM,
        tf.Gemma2Config(**GROUPED, sliding_window=4, attn_logit_softcapping=0.7, query_pre_attn_scalar=5),
    ),
    "qwen3": lambda: (tf.Qwen3ForCausalLM, tf.Qwen3Config(**GROUPED)),
    "albert": lambda: (
        tf.AlbertForMaskedLM,
        tf.AlbertConfig(**TEXT | {"num_hidden_layers": 3}, embedding_size=16),
    ),
    "opt": lambda: (
        tf.OPTForCausalLM,
        tf.OPTConfig(
            hidden_size=32,
            ffn_dim=40,
            num_attention_heads=4,
            num_hidden_layers=2,
            max_position_embeddings=32,
            word_embed_proj_dim=32,
            **WORDS,
        ),
    ),
    "esm": lambda: (tf.EsmForMaskedLM, tf.EsmConfig(**TEXT, position_embedding_type="rotary", mask_token_id=4)),
    "gpt_oss": lambda: (
        tf.GptOssForCausalLM,
        tf.GptOssConfig(
            **GROUPED, sliding_window=4, num_local_experts=2, num_experts_per_tok=1, experts_implementation="eager"
        ),
    ),
    "bart": lambda: (tf.BartForConditionalGeneration, tf.BartConfig(**PAIR)),
    "deepseek": lambda: (
        tf.DeepseekV3ForCausalLM,
        tf.DeepseekV3Config(
            **TEXT | {"num_key_value_heads": 4},
            q_lora_rank=12,
            kv_lora_rank=10,
            qk_nope_head_dim=6,
            qk_rope_head_dim=4,
            v_head_dim=8,
            first_k_dense_replace=2,
        ),
    ),
    "vit": lambda: (tf.ViTForImageClassification, tf.ViTConfig(**SIZES, image_size=32, patch_size=8, num_labels=3)),
}

# c of layer 0 and of layer 1, from the config alone.
SCALES: dict[str, tuple[float, float]] = dict.fromkeys(MODELS, (8**-0.5, 8**-0.5)) | {
    "gpt2": (8**-0.5, 8**-0.5 / 2),
    "t5": (1.0, 1.0),
    "gemma2": (5**-0.5, 5**-0.5),
    "deepseek": (10**-0.5, 10**-0.5),
}


def made(kind: str, attention: str = "eager", dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """The same model at every call, weights large enough for its heads to prefer some tokens, biases not zero."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        architecture, config = MODELS[kind]()
        for name, value in changes.items():
            setattr(config, name, value)
        model = architecture._from_config(config, attn_implementation=attention).to(torch.float64)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 1 and "norm" not in name.lower() and "ln" not in name:
                    weight.normal_(0, 0.3)
                elif weight.dim() == 2:
                    weight.normal_(0, 32**-0.5)
    logging.set_verbosity(level)
    return model.to(dtype).eval()


# With a window, padding sees nothing at all, and float64 models with plain attention then give NaN by themselves.
WINDOWED = ("gemma2", "modernbert", "gpt_oss")


def batch(kind: str, padded: bool = True) -> dict[str, Any]:
    """Three sequences, the last two with padding behind; under masked training a third of the tokens is asked for."""
    draw = torch.Generator().manual_seed(1)
    if kind == "vit":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=draw).double(), "labels": torch.tensor([0, 2])}
    ids = torch.randint(3, 50, (3, 9), generator=draw)
    mask = torch.ones_like(ids)
    if padded and kind not in WINDOWED:
        mask[1, 6:] = 0
        mask[2, 4:] = 0
    ids = ids * mask
    labels = ids.masked_fill(mask == 0, -100)
    if "Masked" in MODELS[kind]()[0].__name__:
        labels = labels.masked_fill(torch.rand(ids.shape, generator=draw) > 0.4, -100)
    elif kind in ("t5", "bart"):
        labels = torch.randint(3, 50, (3, 5), generator=draw)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def own_gradients(kind: str, attention: str) -> dict[str, torch.Tensor]:
    """`.grad` of a model nothing of ours ever touched."""
    model = made(kind, attention)
    model(**batch(kind)).loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters(remove_duplicate=False)}


def assert_same(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Equal to `tolerance` of the largest entry, and not because there is nothing."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    size = np.abs(expected).max()
    assert size > 0
    assert np.abs(found - expected).max() <= tolerance * size
