"""Small random models with a loss, batches with labels, and the gradients that autograd gives for untouched models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers as tf

from tests.live.random_models import SIZES, VOCABULARY, encoder_decoder_options, opt_options, random_model

TEXT = SIZES | VOCABULARY | {"max_position_embeddings": 32}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
ENCODER_DECODER = encoder_decoder_options(32)

MODELS: dict[str, Any] = {
    "bert": lambda: (tf.BertForMaskedLM, tf.BertConfig(**TEXT)),
    "gpt2": lambda: (
        tf.GPT2LMHeadModel,
        tf.GPT2Config(
            n_embd=32, n_head=4, n_layer=2, n_positions=32, scale_attn_by_inverse_layer_idx=True, **VOCABULARY
        ),
    ),
    "llama": lambda: (tf.LlamaForCausalLM, tf.LlamaConfig(**GROUPED)),
    "t5": lambda: (
        tf.T5ForConditionalGeneration,
        tf.T5Config(d_model=32, d_kv=6, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0, **VOCABULARY),
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
    "opt": lambda: (tf.OPTForCausalLM, tf.OPTConfig(**opt_options(32))),
    "esm": lambda: (tf.EsmForMaskedLM, tf.EsmConfig(**TEXT, position_embedding_type="rotary", mask_token_id=4)),
    "gpt_oss": lambda: (
        tf.GptOssForCausalLM,
        tf.GptOssConfig(
            **GROUPED, sliding_window=4, num_local_experts=2, num_experts_per_tok=1, experts_implementation="eager"
        ),
    ),
    "bart": lambda: (tf.BartForConditionalGeneration, tf.BartConfig(**ENCODER_DECODER)),
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


def model_with_loss(kind: str, attention: str = "eager", dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Return the same model at every call, with weights large enough for heads to prefer some tokens and biases ≠ 0."""
    architecture, config = MODELS[kind]()
    for name, value in changes.items():
        setattr(config, name, value)
    return random_model(architecture, config, attention, torch.float64).to(dtype)


# Under a sliding window padding attends to nothing, and float64 models with eager attention return NaN by themselves.
WINDOWED = ("gemma2", "modernbert", "gpt_oss")


def labelled_batch(kind: str, padded: bool = True) -> dict[str, Any]:
    """Return three sequences, the last two padded at the end; masked models have labels for 40% of the tokens."""
    generator = torch.Generator().manual_seed(1)
    if kind == "vit":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator).double(), "labels": torch.tensor([0, 2])}
    ids = torch.randint(3, 50, (3, 9), generator=generator)
    mask = torch.ones_like(ids)
    if padded and kind not in WINDOWED:
        mask[1, 6:] = 0
        mask[2, 4:] = 0
    ids = ids * mask
    labels = ids.masked_fill(mask == 0, -100)
    if "Masked" in MODELS[kind]()[0].__name__:
        labels = labels.masked_fill(torch.rand(ids.shape, generator=generator) > 0.4, -100)
    elif kind in ("t5", "bart"):
        labels = torch.randint(3, 50, (3, 5), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def autograd_gradients(kind: str, attention: str) -> dict[str, torch.Tensor]:
    """Return the `.grad` of each parameter after an ordinary backward pass of an untouched model."""
    model = model_with_loss(kind, attention)
    model(**labelled_batch(kind)).loss.backward()
    parameters = model.named_parameters(remove_duplicate=False)
    return {name: weight.grad for name, weight in parameters if weight.grad is not None}


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Assert equality up to `tolerance` times the largest entry, and that the largest entry is not 0."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    size = np.abs(expected).max()
    assert size > 0
    assert np.abs(actual - expected).max() <= tolerance * size
