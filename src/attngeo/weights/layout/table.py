"""How checkpoints store queries and keys: the one table that knows families by their tensors' names.

A tensor's name is `path.leaf`; a row of the table says which leaves of one path hold the queries and the keys and
how the heads lie in them. `docs/coverage.md` lists the model types for which a live model agreed with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Storage:
    """One way to store the queries and keys of a layer.

    kind      separate  query [H·r, d], key [G·r, d]
              blocks    one tensor, rows [q | k | v]
              heads     one tensor, rows [G, (H/G queries, key, value), r]
              key-value query apart, one tensor of rows [k | v]
              key-value-heads  query apart, one tensor of rows [G, (key, value), r]
              codegen   one tensor, rows [4, (q, v, k), H/4, r]
              latent    down- and up-projections with a norm between (MLA)
              other     no product of queries and keys (linear attention): never a site
    transposed  stored [in, out] (Conv1D, XLNet) instead of [out, in]
    types     model types the row is for; None: every type
    when      a config key that must be true for the row to hold ("!key": must not)
    """

    query: str
    key: str
    kind: str
    transposed: bool = False
    types: frozenset[str] | None = None
    when: str | None = None
    more: dict[str, str] = field(default_factory=dict)  # latent: the other tensors' leaves
    alone: bool = False  # the names leave no doubt: holds without a transformers config
    part: str = ""  # a path that holds several attentions: this one's name, added to the path


def _types(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _separate(*pairs: str) -> list[Storage]:
    return [Storage(query, key, "separate", alone=True) for query, _, key in (pair.partition("/") for pair in pairs)]


TABLE: tuple[Storage, ...] = (
    Storage("qkv_proj.weight", "output_gate.weight", "other", types=_types("minimax")),
    Storage("attn_qkv.weight", "ssm_out.weight", "other"),  # GGUF's gated delta nets
    # Latent attention comes first: its query may be a plain q_proj.
    Storage(
        "q_b_proj.weight",
        "kv_b_proj.weight",
        "latent",
        more={
            "query_down": "q_a_proj.weight",
            "query_gain": "q_a_layernorm.weight",
            "key_down": "kv_a_proj_with_mqa.weight",
            "key_gain": "kv_a_layernorm.weight",
        },
    ),
    Storage(
        "q_proj.weight",
        "kv_b_proj.weight",
        "latent",
        more={"key_down": "kv_a_proj_with_mqa.weight", "key_gain": "kv_a_layernorm.weight"},
    ),
    *_separate(
        "q_proj.weight/k_proj.weight",
        "query.weight/key.weight",
        "q.weight/k.weight",
        "q_lin.weight/k_lin.weight",
        "linear_q.weight/linear_k.weight",
        "query_proj.weight/key_proj.weight",
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
    Storage("cross_attn_q.weight", "cross_attn_k.weight", "separate", part="cross_attn"),  # GGUF's encoder-decoders
    Storage("q", "k", "separate", transposed=True, types=_types("xlnet")),
    # Fused, one row for each way of laying out the heads.
    Storage("in_proj.weight", "in_proj.weight", "heads", types=_types("deberta")),
    Storage(
        "query_key_value.weight",
        "query_key_value.weight",
        "heads",
        types=_types("gpt_neox gpt_neox_japanese bloom persimmon fuyu falcon"),
    ),
    Storage("qkv_proj.weight", "qkv_proj.weight", "codegen", types=_types("codegen")),
    Storage("c_attn.weight", "c_attn.weight", "blocks", types=_types("gpt_bigcode"), when="multi_query"),
    Storage("c_attn.weight", "c_attn.weight", "heads", types=_types("gpt_bigcode"), when="!multi_query"),
    Storage(
        "c_attn.weight",
        "c_attn.weight",
        "blocks",
        transposed=True,
        types=_types("gpt2 gpt-sw3 openai-gpt imagegpt decision_transformer clvp"),
    ),
    *(
        Storage(leaf, leaf, "blocks", alone=leaf in ("in_proj_weight", "qkv.weight"))
        for leaf in (
            "in_proj_weight",
            "qkv.weight",
            "Wqkv.weight",
            "qkv_proj.weight",
            "att_proj.weight",
            "attn_qkv.weight",
        )
    ),
    Storage("q_proj.weight", "kv_proj.weight", "key-value"),
    Storage("to_q.weight", "to_kv.weight", "key-value"),
)

# Types whose query projection gives each head its query and, behind it, the gate of its output.
GATED = re.compile(r"qwen3_?(next|5)|qwen4_?exp")

# Gains applied to queries and keys after their projection: leaves beside the projections, query and key.
QK_GAINS: tuple[tuple[str, str], ...] = (
    ("q_norm.weight", "k_norm.weight"),
    ("query_norm.weight", "key_norm.weight"),
    ("q_layernorm.weight", "k_layernorm.weight"),
    ("query_layernorm.weight", "key_layernorm.weight"),
    ("norm_q.weight", "norm_k.weight"),
    ("q_ln.weight", "k_ln.weight"),
    ("layernorm_q.weight", "layernorm_k.weight"),
    ("attn_q_norm.weight", "attn_k_norm.weight"),
)

# Paths that hold projections called query and key but no self- or cross-attention product of tokens.
NOT_ATTENTION = re.compile(r"(^|\.)(linear_attn|indexer|compressor|mlstm_layer|feed_forward|global_pointer)(\.|$)")

CROSS = re.compile(
    r"cross|encoder_attn|encdecattention|multihead_attn|encoder_decoder|x_attn|token_to_image|image_to_token|"
    r"inter_attention|src_attn|resampler|perceiver|pooling|attention_pool|\bhead\.attention",
    re.IGNORECASE,
)
