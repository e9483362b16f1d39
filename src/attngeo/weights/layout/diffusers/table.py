"""The rows of the table of layouts that hold for diffusers models only.

In joint attention two streams, such as image and text tokens, share one product of queries and keys. The first stream
has the projections `to_q` and `to_k`, the second `add_q_proj` and `add_k_proj`. That makes four forms: one per stream,
and one for the queries of each stream with the keys of the other.
"""

from __future__ import annotations

from attngeo.weights.layout.diffusers.blocks_first import BlocksFirst
from attngeo.weights.layout.storage.fused import Blocks
from attngeo.weights.layout.storage.separate import Separate
from attngeo.weights.layout.table import Layout

# Added to the path of an attention layer for the forms that involve its second stream.
SECOND = "second"  # second stream with itself
TO_SECOND = "cross_to_second"  # queries of the first stream, keys of the second
FROM_SECOND = "cross_from_second"  # queries of the second stream, keys of the first

_ONLY = "_class_name"  # the condition that a config is one of diffusers

DIFFUSERS_TABLE: tuple[Layout, ...] = (
    Layout(
        "add_q_proj.weight",
        "add_k_proj.weight",
        Separate,
        condition=_ONLY,
        suffix=SECOND,
        gains=("norm_added_q.weight", "norm_added_k.weight"),
    ),
    Layout(
        "to_q.weight",
        "add_k_proj.weight",
        Separate,
        condition=_ONLY,
        suffix=TO_SECOND,
        gains=("norm_q.weight", "norm_added_k.weight"),
    ),
    Layout(
        "add_q_proj.weight",
        "to_k.weight",
        Separate,
        condition=_ONLY,
        suffix=FROM_SECOND,
        gains=("norm_added_q.weight", "norm_k.weight"),
    ),
    Layout(
        "to_q_t.weight",
        "to_k_t.weight",
        Separate,
        condition=_ONLY,
        suffix=SECOND,
        gains=("q_rms_norm_t.weight", "k_rms_norm_t.weight"),
    ),
    Layout(
        "to_q.weight",
        "to_k_t.weight",
        Separate,
        condition=_ONLY,
        suffix=TO_SECOND,
        gains=("q_rms_norm.weight", "k_rms_norm_t.weight"),
    ),
    Layout(
        "to_q_t.weight",
        "to_k.weight",
        Separate,
        condition=_ONLY,
        suffix=FROM_SECOND,
        gains=("q_rms_norm_t.weight", "k_rms_norm.weight"),
    ),
    Layout("to_query.weight", "to_key.weight", Separate, condition=_ONLY),
    Layout("to_qkv.weight", "to_qkv.weight", Blocks, condition=_ONLY),
    Layout("to_qkv_mlp_proj.weight", "to_qkv_mlp_proj.weight", BlocksFirst, condition=_ONLY),
)
