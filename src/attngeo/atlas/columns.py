"""The columns of the tables of organised networks, with their polars types."""

from __future__ import annotations

# Short name in columns → name of a basis in `SparsityControls`.
BASES = {
    "trees": "trees",
    "shuffled": "shuffled axes",
    "dyadic": "dyadic trees",
    "cosines": "cosines per head",
    "permuted_trees": "permuted: trees",
    "permuted_dyadic": "permuted: dyadic trees",
}
# Name in columns → name of a figure in `InvarianceReport`; each also has a column that ends in `_control`.
CONTRASTS = {
    "heads_correlation": "heads: affinity rank correlation",
    "heads_information": "heads: tree information",
    "heads_procrustes": "heads: Procrustes distance",
    "queries_correlation": "queries: affinity rank correlation",
    "queries_information": "queries: tree information",
    "queries_procrustes": "queries: Procrustes distance",
    "keys_correlation": "keys: affinity rank correlation",
    "keys_information": "keys: tree information",
    "keys_procrustes": "keys: Procrustes distance",
    "logits_exponent": "exponent of the logits",
    "residual_exponent": "exponent of the residual",
}

# A model whose attention was organised.
NETWORKS = {
    "model": "String",  # org/name[/path] on the hub, or an absolute path
    "revision": "String",  # on the hub: as it was asked for
    "commit": "String",
    "content": "String",  # the commit, or a hash of the files: what the results depend on
}

_INPUT = {
    "part": "String",  # hash of everything the row depends on
    "content": "String",
    "options": "String",  # those that are not the defaults, as JSON
    "results": "Int64",  # version of the results
    "text": "String",  # hash of the text
    "opening": "String",  # its first words
    "tokens": "Int64",
    "heads": "Int64",  # that were captured
}

# One network on one text: the trees of its heads, and the sparsity along all trees, with controls.
ORGANIZED = _INPUT | {
    "stage": "String",  # logits or probabilities
    "depth": "Int64",  # levels of the tree of the heads
    "gain": "Float64",  # 1 − (l1/l2 along the trees) / (l1/l2 along dyadic trees)
    "gain_permuted": "Float64",  # the same for permuted values, which have no structure
    **{
        f"{figure}_{basis}": "Float64"
        for figure in ("l1_l2", "share90", "share99", "exponent")
        for basis in BASES
        if (figure, basis) != ("exponent", "cosines")
    },
    "shared_key": "Float64",  # share of pairs of heads in the smallest folders that share a key head; null: none do
    "shared_key_chance": "Float64",  # the same for a tree with shuffled heads
}
# The heads of one network on one text, pair by pair.
HEAD_PAIRS = {
    "part": "String",
    "head": "String",
    "other": "String",
    "affinity": "Float32",
    "level": "Int64",  # the last level of the tree on which both are in one folder
}
# One network on one text: its geometry before and after the softmax, with the control.
INVARIANCE = _INPUT | {
    "chosen": "Int64",  # heads that were organised on their own
    **{name + suffix: "Float64" for name in CONTRASTS for suffix in ("", "_control")},
}
