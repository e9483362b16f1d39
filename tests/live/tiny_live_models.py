"""Small random models of real transformers types, inputs for them, and the logits of their own eager attention."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf
from torch.overrides import TorchFunctionMode

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
VOCABULARY = {"vocab_size": 60, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = SIZES | VOCABULARY
ENCODER_DECODER = {
    "d_model": 32,
    "vocab_size": 60,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
    "max_position_embeddings": 64,
}
for side in ("encoder", "decoder"):
    ENCODER_DECODER |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 48}
CONVOLUTIONS = {"conv_dim": (16, 16), "conv_kernel": (10, 4), "conv_stride": (8, 4), "num_conv_pos_embeddings": 8}
CONVOLUTIONS |= {"num_conv_pos_embedding_groups": 4}

CONFIGS: dict[str, Any] = {
    "bert": lambda: tf.BertConfig(**TEXT),
    "roberta": lambda: tf.RobertaConfig(**TEXT),
    "albert": lambda: tf.AlbertConfig(**SIZES | {"num_hidden_layers": 3}, vocab_size=60, embedding_size=16),
    "modernbert": lambda: tf.ModernBertConfig(**TEXT, local_attention=4, sep_token_id=2, cls_token_id=1),
    "gpt2": lambda: tf.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=60, n_positions=64),
    "llama": lambda: tf.LlamaConfig(**TEXT, num_key_value_heads=2),
    "gemma2": lambda: tf.Gemma2Config(
        **TEXT, num_key_value_heads=2, head_dim=8, sliding_window=3, attn_logit_softcapping=0.5
    ),
    "gemma3": lambda: tf.Gemma3TextConfig(**TEXT, num_key_value_heads=2, head_dim=8, sliding_window=3),
    "gpt_oss": lambda: tf.GptOssConfig(
        **TEXT, num_key_value_heads=2, head_dim=8, sliding_window=3, num_local_experts=2, num_experts_per_tok=1
    ),
    "t5": lambda: tf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=60),
    "bart": lambda: tf.BartConfig(**ENCODER_DECODER),
    "whisper": lambda: tf.WhisperConfig(
        **ENCODER_DECODER | {"max_source_positions": 32, "max_target_positions": 32, "num_mel_bins": 8}
    ),
    "vit": lambda: tf.ViTConfig(**SIZES, image_size=32, patch_size=8),
    "beit": lambda: tf.BeitConfig(**SIZES, image_size=32, patch_size=8, use_relative_position_bias=True),
    "wav2vec2": lambda: tf.Wav2Vec2Config(**SIZES, **CONVOLUTIONS),
    "wav2vec2-adapter": lambda: tf.Wav2Vec2Config(**SIZES, **CONVOLUTIONS, add_adapter=True),
    "sew": lambda: tf.SEWConfig(**SIZES, **CONVOLUTIONS, squeeze_factor=2),
    "clip": lambda: tf.CLIPConfig(
        text_config=SIZES | {"vocab_size": 60, "max_position_embeddings": 16},
        vision_config=SIZES | {"image_size": 32, "patch_size": 8},
    ),
    "bloom": lambda: tf.BloomConfig(hidden_size=32, n_head=4, n_layer=2, vocab_size=60),
}


def tiny_model(kind: str, attention: str = "eager") -> Any:
    """Return a model of this type whose weights are large enough for its logits to differ from one another."""
    torch.manual_seed(0)
    config = CONFIGS[kind]()
    model = tf.AutoModel.from_config(config, attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "norm" not in name.lower():
                weight.normal_(0, weight.shape[-1] ** -0.5)
            elif "sinks" in name:
                weight.normal_()
    return model.eval()


def model_inputs(kind: str) -> dict[str, Any]:
    """Return prepared tensors for a model of this type, a batch of one."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 60, (1, 9), generator=generator)
    if kind in ("vit", "beit"):
        return {"pixel_values": torch.randn(1, 3, 32, 32, generator=generator)}
    if kind == "wav2vec2":
        return {"input_values": torch.randn(1, 400, generator=generator)}
    if kind == "clip":
        return {"input_ids": ids, "pixel_values": torch.randn(1, 3, 32, 32, generator=generator)}
    if kind == "whisper":
        return {"input_features": torch.randn(1, 8, 64, generator=generator), "decoder_input_ids": ids[:, :5]}
    return {"input_ids": ids, "decoder_input_ids": ids[:, :5]} if kind in ("t5", "bart") else {"input_ids": ids}


class SoftmaxInputs(TorchFunctionMode):
    """Context manager that records the input of every softmax over a [batch, heads, queries, keys] tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "softmax" and args[0].dim() == 4:
            self.logits.append(args[0].detach().clone())
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def eager_run(model: Any, tensors: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """Return the model's output with eager attention, and the masked logits [1, H, Q, K] of each attention call."""
    with torch.no_grad(), SoftmaxInputs() as softmaxes:
        output = model(**tensors)
    return output, softmaxes.logits
