"""`keep_heads_`: cut the projections of attention layers down to the heads that are kept, in place.

The rows of queries, keys, values and their biases that belong to a removed head go, and the rows of the output
projection that read it. A key head goes when no query head reads it any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from attngeo.applications.prune.removal.attention import use_pruned_attention
from attngeo.applications.prune.removal.layers import PrunableLayer, is_conv1d
from attngeo.applications.prune.removal.own_config import OwnConfig
from attngeo.arrays import Ints

# Attributes of attention modules that count heads or rows; a module that has one reads it in its forward or shows it.
_COUNTS = ("num_attention_heads", "num_heads", "n_heads")
_ROWS = ("all_head_size", "inner_dim", "split_size")


def keep_heads_(layers: Sequence[PrunableLayer], kept: Mapping[tuple[str, int], Sequence[int]]) -> None:
    """Keep only the heads `kept`, numbered as in the full model, of each (stack, layer)."""
    for layer in layers:
        numbers = kept[layer.stack, layer.layer]
        if len(numbers) < layer.heads.queries:
            _cut_layer(layer, [head.head in numbers for head in layer.labels])


def _cut_layer(layer: PrunableLayer, stays: Sequence[bool]) -> None:
    """Remove the query heads h with stays[h] False, and the key heads that none of the others reads."""
    queries = [head for head, keep in enumerate(stays) if keep]
    keys = sorted({head // layer.heads.group for head in queries})
    for path, rows in _input_rows(layer, queries, keys).items():
        _keep_outputs(layer.inputs[path], rows)
    _keep_inputs(layer.output, blocks(queries, layer.heads.size))
    _set_attributes(layer, queries, len(keys))


def _input_rows(layer: PrunableLayer, queries: Sequence[int], keys: Sequence[int]) -> dict[str, Ints]:
    """Return, for each projection of the token vectors, the rows that stay, in ascending order."""
    query, key = _query_key_rows(layer)  # [H, r], [G, r]
    rows: dict[str, list[Ints]] = {path: [] for path in layer.inputs}
    rows[layer.site.storage.query.removesuffix(".weight")] += [query[list(queries)]]
    rows[layer.site.storage.key.removesuffix(".weight")] += [key[list(keys)]]
    rows[layer.value] += [value_rows(layer)[list(keys)]]
    return {path: np.sort(np.concatenate([part.ravel() for part in parts])) for path, parts in rows.items()}


def value_rows(layer: PrunableLayer) -> Ints:
    """Return the rows [G, r] of the projection `layer.value` that hold the values of each key head."""
    name = f"{layer.value}.weight"
    rows = _row_numbers(layer.inputs[layer.value]).ravel()
    for holder, side in zip((layer.site.storage.query, layer.site.storage.key), _query_key_rows(layer), strict=True):
        if holder == name:  # fused: what is neither query nor key is value
            rows = rows[~np.isin(rows, side)]
    return rows.reshape(layer.heads.keys, layer.heads.size)


def _query_key_rows(layer: PrunableLayer) -> tuple[Ints, Ints]:
    """Return the rows of the queries [H, r] and of the keys [G, r] in their projections."""
    # The storage class knows which rows belong to which head; it is asked with the numbers of the rows as weights.
    numbers: dict[str, Any] = {f"{path}.weight": _row_numbers(module) for path, module in layer.inputs.items()}
    query, key = layer.site.storage.factors(numbers, layer.heads)  # [H, 1, r], [G, 1, r]
    return query[:, 0], key[:, 0]


def _row_numbers(projection: nn.Module) -> Ints:
    """Return the numbers of the outputs of a projection in the shape of a stored weight with one input."""
    # NumPy, because tensors made while a model is being built are on the meta device and have no values.
    numbers = np.arange(projection.weight.shape[1 if is_conv1d(projection) else 0])
    return numbers[None] if is_conv1d(projection) else numbers[:, None]


def blocks(heads: Sequence[int], size: int) -> Ints:
    """Return the numbers of the entries of `heads` in a concatenation of heads of one size.

    >>> blocks([0, 2], 3).tolist()
    [0, 1, 2, 6, 7, 8]
    """
    entries: Ints = (np.asarray(heads, np.int64)[:, None] * size + np.arange(size)).ravel()
    return entries


def _keep_outputs(projection: nn.Module, rows: Ints) -> None:
    axis = 1 if is_conv1d(projection) else 0
    projection.weight = _selected(projection.weight, axis, rows)
    if projection.bias is not None:
        projection.bias = _selected(projection.bias, 0, rows)
    setattr(projection, "nf" if is_conv1d(projection) else "out_features", len(rows))


def _keep_inputs(projection: nn.Module, columns: Ints) -> None:
    projection.weight = _selected(projection.weight, 0 if is_conv1d(projection) else 1, columns)
    setattr(projection, "nx" if is_conv1d(projection) else "in_features", len(columns))


def _selected(parameter: nn.Parameter, axis: int, entries: Ints) -> nn.Parameter:
    values = parameter.detach().index_select(axis, torch.from_numpy(entries).to(parameter.device))
    return nn.Parameter(values, requires_grad=parameter.requires_grad)


def _set_attributes(layer: PrunableLayer, queries: Sequence[int], keys: int) -> None:
    """Set the attributes by which the module's forward knows its heads."""
    module, family = layer.module, layer.family
    count = len(queries)
    values: dict[str, Any] = dict.fromkeys(_COUNTS, count) | dict.fromkeys(_ROWS, count * layer.heads.size)
    values |= {"num_key_value_heads": keys, "num_key_value_groups": count // keys}
    for name, value in values.items():
        if hasattr(module, name) and name != family.bias_heads:
            setattr(module, name, value)
    module.kept_heads = tuple(layer.labels[head].head for head in queries)
    own = dict.fromkeys(family.own_config, count)
    if family.bias_heads is not None:
        use_pruned_attention(module, own, module.kept_heads)
    elif own:
        module.config = OwnConfig(module.config, own)
