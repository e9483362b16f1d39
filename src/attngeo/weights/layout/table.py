"""The table of layouts: by which tensor names a model stores its queries and keys, and in which kind of storage.

A tensor's name is `path.leaf`. A row of the table names the leaves that hold the queries and the keys below one path,
and the storage class that knows how the heads lie in them. Some leaves mean something else in every family; the facts
about a model type say which storage they have there (`Family.storage`). `docs/coverage.md` lists the model types for
which the query-key products of a live model agree with the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from attngeo.weights.layout.storage import Blocks, BlocksFirst, CodeGen, KeyValue, Latent, PerHead, Separate, Storage


@dataclass(frozen=True)
class Layout:
    """One row of the table. The first row that fits a path is the one that counts."""

    query: str  # leaf of the tensor that holds the queries
    key: str  # leaf of the tensor that holds the keys; the same leaf in fused storage
    # None: linear attention, which has no product of queries and keys, so that it is never scored. `Storage` itself:
    # the row holds only where the facts about the model type name the storage.
    storage: type[Storage] | None
    others: Mapping[str, str] = field(default_factory=dict)  # role → leaf of a further tensor (latent attention)
    unambiguous: bool = False  # the leaves have one meaning everywhere: the row holds without a transformers config
    diffusers: bool = False  # the row is for models of diffusers alone
    suffix: str = ""  # added to the layer's path, where one path holds several attentions
    gains: tuple[str, str] | None = None  # leaves of the QK-norm gains; None: those of `QK_GAINS` that are there


# What the facts about a model type may name as the storage of a leaf: the class, and whether it is stored [in, out].
STORAGES: dict[str, tuple[type[Storage], bool]] = {
    "per head": (PerHead, False),  # with one key head, the same as blocks
    "blocks": (Blocks, False),
    "blocks in-out": (Blocks, True),
    "codegen": (CodeGen, False),
    "separate in-out": (Separate, True),
}


def _separate(*pairs: str) -> list[Layout]:
    """Return one unambiguous row per pair "query leaf/key leaf"."""
    return [Layout(query, key, Separate, unambiguous=True) for query, _, key in (pair.partition("/") for pair in pairs)]


# Added to the path of a layer with joint attention for the forms that involve its second stream.
SECOND = "second"  # second stream with itself
TO_SECOND = "cross_to_second"  # queries of the first stream, keys of the second
FROM_SECOND = "cross_from_second"  # queries of the second stream, keys of the first


# Joint attention: two streams, such as image and text, share one product of queries and keys. That makes four forms:
# one per stream (that of the first stream is an ordinary row), and one for the queries of each stream with the keys of
# the other. Leaves of queries and keys, leaves of their gains, suffix.
_JOINT = (
    ("add_q_proj", "add_k_proj", "norm_added_q", "norm_added_k", SECOND),
    ("to_q", "add_k_proj", "norm_q", "norm_added_k", TO_SECOND),
    ("add_q_proj", "to_k", "norm_added_q", "norm_k", FROM_SECOND),
    ("to_q_t", "to_k_t", "q_rms_norm_t", "k_rms_norm_t", SECOND),
    ("to_q", "to_k_t", "q_rms_norm", "k_rms_norm_t", TO_SECOND),
    ("to_q_t", "to_k", "q_rms_norm_t", "k_rms_norm", FROM_SECOND),
)


def _joint(query: str, key: str, q_norm: str, k_norm: str, suffix: str) -> Layout:
    gains = f"{q_norm}.weight", f"{k_norm}.weight"
    return Layout(f"{query}.weight", f"{key}.weight", Separate, diffusers=True, suffix=suffix, gains=gains)


TABLE: tuple[Layout, ...] = (
    Layout("qkv_proj.weight", "output_gate.weight", None),  # lightning attention
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
    Layout("q", "k", Storage),  # XLNet
    # Fused storage, in the order of the heads that the facts about the type name: the projection of a state-space model
    # is called in_proj, too.
    *(Layout(leaf, leaf, Storage) for leaf in ("in_proj.weight", "query_key_value.weight", "c_attn.weight")),
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
    *(_joint(*row) for row in _JOINT),
    Layout("to_query.weight", "to_key.weight", Separate, diffusers=True),
    Layout("to_qkv.weight", "to_qkv.weight", Blocks, diffusers=True),
    Layout("to_qkv_mlp_proj.weight", "to_qkv_mlp_proj.weight", BlocksFirst, diffusers=True),
)

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
