"""The table of layouts: by which tensor names a family stores its queries and keys, and in which kind of storage.

A tensor's name is `path.leaf`. A row of the table names the leaves that hold the queries and the keys below one path,
and the storage class that knows how the heads lie in them. `docs/coverage.md` lists the model types for which the
query-key products of a live model agree with the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from attngeo.weights.layout.storage.base import Storage
from attngeo.weights.layout.storage.fused import Blocks, CodeGen, PerHead
from attngeo.weights.layout.storage.key_value import KeyValue
from attngeo.weights.layout.storage.latent import Latent
from attngeo.weights.layout.storage.separate import Separate


@dataclass(frozen=True)
class Layout:
    """One row of the table. The first row that fits a path is the one that counts."""

    query: str  # leaf of the tensor that holds the queries
    key: str  # leaf of the tensor that holds the keys; the same leaf in fused storage
    storage: type[Storage] | None  # None: linear attention, which has no product of queries and keys; never scored
    transposed: bool = False  # tensors are stored [in, out] (Conv1D, XLNet) instead of [out, in]
    types: frozenset[str] | None = None  # model types the row is for; None: all types
    condition: str | None = None  # a config key that must be true for the row to hold; "!key": must be false
    others: Mapping[str, str] = field(default_factory=dict)  # role → leaf of a further tensor (latent attention)
    unambiguous: bool = False  # the leaves have one meaning everywhere: the row holds without a transformers config
    suffix: str = ""  # added to the layer's path, where one path holds several attentions
    gains: tuple[str, str] | None = None  # leaves of the QK-norm gains; None: those of `QK_GAINS` that are there


def _types(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _separate(*pairs: str) -> list[Layout]:
    """Return one unambiguous row per pair "query leaf/key leaf"."""
    return [Layout(query, key, Separate, unambiguous=True) for query, _, key in (pair.partition("/") for pair in pairs)]


TABLE: tuple[Layout, ...] = (
    Layout("qkv_proj.weight", "output_gate.weight", None, types=_types("minimax")),
    Layout("attn_qkv.weight", "ssm_out.weight", None),  # GGUF's gated delta nets
    # Kimi delta attention, in files and in live models; its queries have the name of those of attention layers.
    Layout("q_proj.weight", "A_log", None),
    Layout("q_proj.weight", "forget_gate.A_log", None),
    # Latent attention comes before separate storage: its query may be called q_proj too.
    Layout(
        "q_b_proj.weight",
        "kv_b_proj.weight",
        Latent,
        others={
            "query_down": "q_a_proj.weight",
            "query_gain": "q_a_layernorm.weight",
            "key_down": "kv_a_proj_with_mqa.weight",
            "key_gain": "kv_a_layernorm.weight",
        },
    ),
    Layout(
        "q_proj.weight",
        "kv_b_proj.weight",
        Latent,
        others={"key_down": "kv_a_proj_with_mqa.weight", "key_gain": "kv_a_layernorm.weight"},
    ),
    *_separate(
        "q_proj.weight/k_proj.weight",
        "query.weight/key.weight",
        "q.weight/k.weight",
        "q_lin.weight/k_lin.weight",
        "linear_q.weight/linear_k.weight",
        "query_proj.weight/key_proj.weight",
        "query_net.weight/key_net.weight",
        "Wq.weight/Wk.weight",
        "wq.weight/wk.weight",
        "project_q.weight/project_k.weight",
        "to_q.weight/to_k.weight",
        "q_head.weight/k_head.weight",
        "q_proj.linear.weight/k_proj.linear.weight",
        "q_proj_weight/k_proj_weight",
        "attn_q.weight/attn_k.weight",  # GGUF
        "attention.projection_query.weight/attention.projection_key.weight",
    ),
    Layout("cross_attn_q.weight", "cross_attn_k.weight", Separate, suffix="cross_attn"),  # GGUF's encoder-decoders
    Layout("q", "k", Separate, transposed=True, types=_types("xlnet")),
    # Fused storage: one row per order of the heads.
    Layout("in_proj.weight", "in_proj.weight", PerHead, types=_types("deberta")),
    Layout(
        "query_key_value.weight",
        "query_key_value.weight",
        PerHead,
        types=_types("gpt_neox gpt_neox_japanese bloom persimmon fuyu falcon"),
    ),
    Layout("qkv_proj.weight", "qkv_proj.weight", CodeGen, types=_types("codegen")),
    Layout("c_attn.weight", "c_attn.weight", Blocks, types=_types("gpt_bigcode"), condition="multi_query"),
    Layout("c_attn.weight", "c_attn.weight", PerHead, types=_types("gpt_bigcode"), condition="!multi_query"),
    Layout(
        "c_attn.weight",
        "c_attn.weight",
        Blocks,
        transposed=True,
        types=_types("gpt2 gpt-sw3 openai-gpt imagegpt decision_transformer clvp"),
    ),
    *(
        Layout(leaf, leaf, Blocks, unambiguous=leaf in ("in_proj_weight", "qkv.weight"))
        for leaf in (
            "in_proj_weight",
            "qkv.weight",
            "Wqkv.weight",
            "wqkv.weight",
            "w_qkv.weight",
            "qkv_proj.weight",
            "att_proj.weight",
            "attn_qkv.weight",
        )
    ),
    Layout("q_proj.weight", "kv_proj.weight", KeyValue),
    Layout("to_q.weight", "to_kv.weight", KeyValue),
)

# Model types whose query projection stores, behind the query of each head, the gate of the head's output.
GATED_TYPES = re.compile(r"qwen3_?(next|5)|qwen4_?exp")

# Gains applied to queries and keys after their projection: leaves of query and key gain, beside the projections.
QK_GAINS: tuple[tuple[str, str], ...] = (
    ("q_norm.weight", "k_norm.weight"),
    ("query_norm.weight", "key_norm.weight"),
    ("q_layernorm.weight", "k_layernorm.weight"),
    ("query_layernorm.weight", "key_layernorm.weight"),
    ("norm_q.weight", "norm_k.weight"),
    ("q_ln.weight", "k_ln.weight"),
    ("layernorm_q.weight", "layernorm_k.weight"),
    ("attn_q_norm.weight", "attn_k_norm.weight"),
    ("q_rms_norm.weight", "k_rms_norm.weight"),  # diffusers' HiDream
)

# Paths with projections called query and key that are no self- or cross-attention between tokens.
NOT_ATTENTION = re.compile(
    r"(^|\.)(linear_attn|indexer|compressor|mlstm_layer|feed_forward|global_pointer|dot_product_scoring|"
    # diffusers: pool the text into an embedding of the time
    r"time_embed|time_extra_emb|add_time_condition|add_embedding)(\.|$)"
)

# Paths of cross-attention.
CROSS = re.compile(
    r"cross|encoder_attn|encdecattention|multihead_attn|encoder_decoder|x_attn|token_to_image|image_to_token|"
    r"inter_attention|src_attn|second_sub_layer|resampler|perceiver|pooling|attention_pool|\bhead\.attention",
    re.IGNORECASE,
)
