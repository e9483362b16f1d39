"""Small random models of every kind whose heads can be removed, inputs for them, and models with gated heads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
import transformers as tf

from attngeo import PrunePlan
from tests.live.random_models import SIZES, VOCABULARY, encoder_decoder_options, random_model
from tools import prove_prune

TEXT = SIZES | VOCABULARY | {"max_position_embeddings": 64}
GROUPED = TEXT | {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 6}  # not 48/6
PAIR = encoder_decoder_options(64)

MODELS: dict[str, Any] = {
    "bert": lambda: (tf.BertForMaskedLM, tf.BertConfig(**TEXT)),
    "albert": lambda: (tf.AlbertForMaskedLM, tf.AlbertConfig(**TEXT | {"num_hidden_layers": 3}, embedding_size=16)),
    "modernbert": lambda: (
        tf.ModernBertForMaskedLM,
        tf.ModernBertConfig(**TEXT, local_attention=8, sep_token_id=2, cls_token_id=1, attention_bias=True),
    ),
    "vit": lambda: (tf.ViTForImageClassification, tf.ViTConfig(**SIZES, image_size=32, patch_size=8, num_labels=3)),
    "gpt2": lambda: (
        tf.GPT2LMHeadModel,
        tf.GPT2Config(n_embd=32, n_head=4, n_layer=2, n_positions=64, **VOCABULARY),
    ),
    "gpt_neox": lambda: (tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig(**TEXT, rotary_pct=0.5)),
    "llama": lambda: (tf.LlamaForCausalLM, tf.LlamaConfig(**GROUPED, attention_bias=True)),
    "qwen3": lambda: (tf.Qwen3ForCausalLM, tf.Qwen3Config(**GROUPED, attention_bias=True)),
    "gemma2": lambda: (
        tf.Gemma2ForCausalLM,
        tf.Gemma2Config(
            **GROUPED, sliding_window=6, attn_logit_softcapping=0.7, query_pre_attn_scalar=5, attention_bias=True
        ),
    ),
    "phi3": lambda: (tf.Phi3ForCausalLM, tf.Phi3Config(**GROUPED)),
    "t5": lambda: (
        tf.T5ForConditionalGeneration,
        tf.T5Config(d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0, **VOCABULARY),
    ),
    "bart": lambda: (tf.BartForConditionalGeneration, tf.BartConfig(**PAIR)),
    "whisper": lambda: (
        tf.WhisperForConditionalGeneration,
        tf.WhisperConfig(
            **PAIR,
            max_source_positions=32,
            max_target_positions=32,
            num_mel_bins=8,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
    ),
}
GROUPED_KINDS = ("llama", "qwen3", "gemma2", "phi3")
PAIRS = ("t5", "bart", "whisper")
GENERATING = ("gpt2", "gpt_neox", *GROUPED_KINDS, *PAIRS)
EAGER_ONLY = ("gemma2",)  # soft-capped logits
# Heads to remove, unequally many in each layer; with grouped keys, one of every group of a layer, or a whole group.
_DEFAULT = ["L0H2", "L1H0", "L1H3", "L1H1"]
_GROUPED = ["L0H1", "L0H5", "L1H3", "L1H4", "L1H5"]
_PAIR = ["encoder/L0H2", "decoder/L1H0", "decoder/L1H1", "cross/L0H3", "cross/L1H1", "cross/L1H2", "encoder/L1H0"]


def tiny_model(kind: str, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Any:
    """Return the same model at every call, in evaluation mode, with biases ≠ 0 and heads that prefer some tokens."""
    return random_model(*MODELS[kind](), attention, dtype)


def removed_heads(kind: str) -> list[str]:
    """Return the labels of the heads that tests remove from a model of this type."""
    if kind == "albert":  # one layer, used three times
        return ["L0H1", "L0H3"]
    return _GROUPED if kind in GROUPED_KINDS else _PAIR if kind in PAIRS else _DEFAULT


def inputs_for(kind: str, padded: bool = True) -> dict[str, Any]:
    """Return a batch of three, the last two rows padded at the end."""
    generator = torch.Generator().manual_seed(1)
    if kind == "vit":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
    ids = torch.randint(3, 50, (3, 11), generator=generator)
    if kind == "whisper":
        return {"input_features": torch.randn(3, 8, 64, generator=generator), "decoder_input_ids": ids[:, :7]}
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 8:] = 0
        mask[2, 5:] = 0
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    return batch | ({"decoder_input_ids": ids[:, :7]} if kind in ("t5", "bart") else {})


def headless_model(kind: str) -> Any:
    """Return the model without its language-model head: its loss is the distance from its own full output."""
    model = tiny_model(kind)
    if kind not in PAIRS:
        return model if kind == "vit" else model.base_model
    classes = {"t5": tf.T5Model, "bart": tf.BartModel, "whisper": tf.WhisperModel}
    headless = classes[kind](model.config)
    weights = {name.removeprefix("model."): value for name, value in model.state_dict().items()}
    headless.load_state_dict(weights, strict=False)
    return headless.eval()


def calibration_inputs(kind: str, padded: bool = False, rows: int = 24) -> list[dict[str, Any]]:
    """Return rows for a calibration; padded: of different lengths, and some with padding of their own."""
    generator = torch.Generator().manual_seed(3)
    if kind == "vit":
        return [{"pixel_values": torch.randn(1, 3, 32, 32, generator=generator)} for _ in range(rows)]
    found: list[dict[str, Any]] = []
    for number in range(rows):
        length = 20 - 3 * (number % 5) if padded else 20
        row = {"input_ids": torch.randint(3, 50, (1, length), generator=generator)}
        if padded and number % 3 == 0:
            row["attention_mask"] = (torch.arange(length) < length - 2).long()[None]
        if kind == "whisper":
            row = {"decoder_input_ids": row["input_ids"]}
            row["input_features"] = torch.randn(1, 8, 64, generator=generator)
        found.append(row)
    return found


def record(model: Any, layer: Any, rows: list[dict[str, Any]]) -> list[np.ndarray]:
    """Return what the output projection of a layer reads, and 1 if it has a bias, divided by the norm of the stream.

    One array [tokens, H·r (+ 1)] for each use of the layer, over all positions that are no padding.
    """
    uses: list[list[np.ndarray]] = []
    for row in rows:
        streams: list[Any] = []
        outputs: list[Any] = []
        hooks = [
            layer.stream_module(model).register_forward_pre_hook(
                lambda _, args, named, kept=streams: kept.append(args[0] if args else named["hidden_states"]),
                with_kwargs=True,
            ),
            layer.output.register_forward_pre_hook(lambda _, args, kept=outputs: kept.append(args[0])),
        ]
        if "input_ids" in row and model.config.is_encoder_decoder:
            start = torch.full_like(row["input_ids"][:, :1], model.config.decoder_start_token_id)
            row = row | {"decoder_input_ids": torch.cat([start, row["input_ids"][:, :-1]], 1)}
        with torch.no_grad():
            model(**row)
        for hook in hooks:
            hook.remove()
        uses = uses or [[] for _ in outputs]
        for kept, stream, z in zip(uses, streams, outputs, strict=True):
            reads = "decoder_input_ids" not in row or layer.stack == "encoder"
            mask = row["attention_mask"][0].bool() if reads and "attention_mask" in row else slice(None)
            z = torch.cat([z, torch.ones_like(z[..., :1])], 2) if layer.output.bias is not None else z
            kept.append((z.double() / stream.double().norm(dim=2, keepdim=True))[0, mask].numpy())
    return [np.concatenate(parts) for parts in uses]


def gated(model: Any, heads: list[str]) -> AbstractContextManager[None]:
    """Set the outputs of these heads to zero before the output projection, inside the context."""
    return prove_prune.gated(model, PrunePlan.from_heads(model, heads))


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Assert that no entry differs by more than `tolerance` times the largest entry of the reference."""
    assert actual.shape == expected.shape
    size = float(expected.abs().max())
    assert size > 0
    assert float((actual - expected).abs().max()) <= tolerance * size
