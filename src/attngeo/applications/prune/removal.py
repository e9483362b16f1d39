"""Attention layers of a live model whose heads can be removed, and the removal: `prunable_layers`, `keep_heads_`.

The rows of queries, keys, values and their biases that belong to a removed head go, and the rows of the output
projection that read it. A key head goes when no query head reads it any more.

`tools.prove_prune` finds the model types for which this is right, and these facts about them (`Family.prune`):

    output         the projection of the concatenated head outputs
    stream         the module whose first input is the residual stream: a norm, or "", the attention module (post-norm)
    own_config     config values that the module's forward reads as its own number of query heads
    position_bias  true: attention receives a bias for all heads of the full model
    uniform        true: the config can state the head size, so transformers loads it with fewer heads in each layer

Paths are relative to the attention module; "../" leads to the module around it, {name} is that of the module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from attngeo.applications.prune.plan import Head
from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError
from attngeo.io.names import first_names
from attngeo.live.attention_modules import (
    AttentionModule,
    attention_stacks,
    eager_function,
    tensor_shapes,
    type_label,
)
from attngeo.weights.layout.facts import families, family
from attngeo.weights.layout.find import SWITCHES
from attngeo.weights.layout.heads import CONFIG_KEY, count_heads
from attngeo.weights.layout.storage import VALUE_NAMES, Heads, Shapes, ValueRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_SHOWN = 20  # model types in the message about one that is not supported
# Attributes of attention modules that count heads or rows; a module that has one reads it in its forward or shows it.
_COUNTS = ("num_attention_heads", "num_heads", "n_heads")
_ROWS = ("all_head_size", "inner_dim", "split_size")


@dataclass(frozen=True, eq=False)
class PrunableLayer(AttentionModule):
    """An attention module whose heads can be removed; those of its `location` are counted."""

    inputs: dict[str, nn.Module]  # path → projection of the token vectors: queries, keys, values or all of them
    value: str  # path of the projection that holds the values; a key of `inputs`
    output_path: str
    output: nn.Module  # the projection of the concatenated head outputs, [H·r] → [d]

    @property
    def stack(self) -> str:
        """Return the name of its stack."""
        return self.location.stack

    @property
    def heads(self) -> Heads:
        """Return its H query heads and G key heads of size r."""
        assert self.location.heads is not None
        return self.location.heads

    @property
    def known(self) -> Mapping[str, Any]:
        """Return the facts about its model type that this module's docstring lists."""
        assert self.location.facts.prune is not None
        return self.location.facts.prune

    @property
    def labels(self) -> tuple[Head, ...]:
        """The query heads of the layer, by the names they have in the full model."""
        return tuple(Head(self.stack, self.layer, number) for number in range(self.heads.queries))

    @property
    def output_weight(self) -> Tensor:
        """W_o [H·r, d], rows in blocks per head, for row vectors z: output = z W_o; a view of the parameter."""
        weight: Tensor = self.output.weight
        return weight if _is_conv1d(self.output) else weight.T

    @property
    def weight(self) -> Floats:
        """W_o [H·r, d] in float64."""
        weight: Floats = self.output_weight.detach().double().cpu().numpy()
        return weight

    def stream_module(self, model: nn.Module) -> nn.Module:
        """The module whose first input is the residual stream that the attention's output is added to."""
        pattern = self.known["stream"]
        if getattr(getattr(model, "config", None), "do_layer_norm_before", True) is False:  # OPT-350M is post-norm
            pattern = ""
        return model.get_submodule(_resolve(self.path, pattern.format(name=self.path.rpartition(".")[2])))

    def tensors(self) -> dict[str, Tensor]:
        """The weights and biases of all projections of the layer, and its QK-norm gains, by name."""
        found = {
            f"{path}.{leaf}": getattr(module, leaf)
            for path, module in {**self.inputs, self.output_path: self.output}.items()
            for leaf in ("weight", "bias")
            if getattr(module, leaf, None) is not None
        }
        gains = [name for name in self.location.qk_norms.gains if name is not None]
        return found | {name: self.module.get_parameter(name.removeprefix(f"{self.path}.")) for name in gains}


def stacks_of(layers: Iterable[PrunableLayer]) -> tuple[str, ...]:
    """Return the names of the stacks, in order."""
    return tuple(dict.fromkeys(layer.stack for layer in layers))


def check_prunable(model_type: str) -> None:
    """Raise InputError where the heads of a model type cannot be removed, as far as the type alone tells."""
    if family(model_type).prune is None:
        supported = first_names(prunable_types(), _SHOWN)
        raise InputError(f"model type {model_type or '(none)'}: removing heads is supported for {supported}")


def prunable_types(*, uniform: bool = False) -> list[str]:
    """Return the model types whose heads can be removed; uniform: those that transformers itself loads afterwards."""
    facts = {kind: about["prune"] for kind, about in families().items() if about.get("prune")}
    return [kind for kind, about in facts.items() if about.get("uniform") or not uniform]


def prunable_layers(model: PreTrainedModel) -> tuple[PrunableLayer, ...]:
    """Return the attention layers of `model`, self- and cross-attention, in the order of their stacks.

    InputError where the model type is not supported, or where a projection is quantised, adapted or not finite.
    """
    if not hasattr(model, "config"):
        raise InputError(f"{type(model).__name__}: expected a transformers model with the head it was trained with")
    check_prunable(str(getattr(model.config, "model_type", "")))
    if getattr(model.config, CONFIG_KEY, None) is not None:
        raise InputError(f"{type_label(model)}: has lost heads already; prune the full model with one larger plan")
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name}: is no tensor, so the module is quantised; dequantise the model first")
        if ".base_layer." in name:
            raise InputError(f"{name.split('.base_layer.')[0]}: has an adapter; merge it before heads are removed")
    shapes = tensor_shapes(model)
    layers = []
    for stack in attention_stacks(model).values():
        stack.check_supported(type_label(model), None)
        layers += [_layer(model, attention, shapes) for attention in stack.attentions]
    return tuple(layers)


def _layer(model: PreTrainedModel, attention: AttentionModule, shapes: Shapes) -> PrunableLayer:
    site = attention.location
    if not site.known or site.facts.prune is None or (site := count_heads(site, shapes)).heads is None:
        raise InputError(f"{type_label(model)}: the heads of {attention.path} are not known, so none can be removed")
    assert site.scope is not None  # which the facts are of
    for switch, chosen in site.scope.switched(SWITCHES).items():
        if switch != "do_layer_norm_before":  # which `stream_module` follows
            raise InputError(
                f"{type_label(model)}: {switch} is {chosen!r}, with which removing heads was never checked"
            )
    names = [name.removesuffix(".weight") for name in site.tensors]
    value = names[-1]
    if site.storage.value_rows is ValueRows.OWN_TENSOR:
        around, _, leaf = value.rpartition(".")
        value = f"{around}.{VALUE_NAMES.get(leaf, '?')}"
    output = _resolve(attention.path, site.facts.prune["output"])
    modules = {path: _projection(model, path) for path in (*names, value)}
    layer = PrunableLayer(
        attention.path, attention.module, attention.eager, site, modules, value, output, _projection(model, output)
    )
    for name, tensor in layer.tensors().items():
        if not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{name}: contains NaN or infinity; expected finite weights")
        if name in site.qk_norms.gains and tensor.numel() != layer.heads.size:
            found = f"{tensor.numel()} gains, normalised over all heads together"
            raise InputError(f"{name}: {found}; expected {layer.heads.size} gains that the heads share")
    return layer


def _projection(model: nn.Module, path: str) -> nn.Module:
    """Return the plain projection at `path`; InputError where it is missing, quantised or adapted."""
    try:
        module = model.get_submodule(path)
    except AttributeError:
        raise InputError(f"{type_label(model)}: no projection {path}, so the heads cannot be removed") from None
    if not (type(module) is nn.Linear or _is_conv1d(module)) or not module.weight.is_floating_point():
        dtype = getattr(getattr(module, "weight", None), "dtype", None)
        raise InputError(
            f"{path}: is a {type(module).__name__} of {dtype}, expected a plain linear layer; dequantise the model, or "
            "merge its adapters, before heads are removed"
        )
    return module


def _resolve(path: str, relative: str) -> str:
    """Return the path that `relative` names as seen from `path`.

    >>> _resolve("layers.0.self_attn", "../input_layernorm"), _resolve("layers.0.self_attn", "")
    ('layers.0.input_layernorm', 'layers.0.self_attn')
    """
    while relative.startswith("../"):
        path, relative = path.rpartition(".")[0], relative[3:]
    return f"{path}.{relative}".strip(".")


def _is_conv1d(module: nn.Module) -> bool:
    """Return whether a projection stores its weight as [in, out] (GPT-2)."""
    return type(module).__name__ == "Conv1D"


def fingerprint(model: nn.Module, layers: Iterable[PrunableLayer]) -> str:
    """Return the SHA-256 of names, shapes and float32 values of all attention tensors, as hexadecimal digits.

    Names are those inside the base model, so that a model with and without its language-model head are the same.
    """
    tensors = {name: tensor for layer in layers for name, tensor in layer.tensors().items()}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    digest = hashlib.sha256()
    for name in sorted(tensors):
        values = tensors[name].detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name.removeprefix(prefix)} {list(values.shape)}\n".encode())
        digest.update(values.numpy().data)
    return digest.hexdigest()


def keep_heads_(layers: Sequence[PrunableLayer], kept: Mapping[tuple[str, int], Sequence[int]]) -> None:
    """Keep only the heads `kept`, in ascending order and numbered as in the full model, of each (stack, layer)."""
    for layer in layers:
        queries = list(kept[layer.stack, layer.layer])
        if len(queries) < layer.heads.queries:
            keys = sorted({head // layer.heads.group for head in queries})
            for path, rows in _input_rows(layer, queries, keys).items():
                _select(layer.inputs[path], rows, outputs=True)
            _select(layer.output, blocks(queries, layer.heads.size), outputs=False)
            _set_attributes(layer, queries, len(keys))


def _input_rows(layer: PrunableLayer, queries: list[int], keys: list[int]) -> dict[str, Ints]:
    """Return, for each projection of the token vectors, the rows that stay, in ascending order."""
    # The storage knows which rows belong to which head; it is asked with the numbers of the rows as weights.
    # NumPy, because tensors made while a model is being built are on the meta device and have no values.
    numbers: dict[str, Any] = {}
    for path, module in layer.inputs.items():
        count = np.arange(module.weight.shape[1 if _is_conv1d(module) else 0])
        numbers[f"{path}.weight"] = count[None] if _is_conv1d(module) else count[:, None]
    site = layer.location
    query, key = (found[:, 0] for found in site.storage.factors(numbers, layer.heads))  # [H, r], [G, r]
    value = numbers[f"{layer.value}.weight"].ravel()
    for name, side in ((site.storage.query, query), (site.storage.key, key)):
        if name == f"{layer.value}.weight":  # fused: what is neither query nor key is value
            value = value[~np.isin(value, side)]
    value = value.reshape(key.shape)  # [G, r]
    rows: dict[str, list[Ints]] = {path: [] for path in layer.inputs}
    rows[site.storage.query.removesuffix(".weight")] += [query[queries]]
    rows[site.storage.key.removesuffix(".weight")] += [key[keys]]
    rows[layer.value] += [value[keys]]
    return {path: np.sort(np.concatenate([part.ravel() for part in parts])) for path, parts in rows.items()}


def blocks(heads: Sequence[int], size: int) -> Ints:
    """Return the numbers of the entries of `heads` in a concatenation of heads of one size.

    >>> blocks([0, 2], 3).tolist()
    [0, 1, 2, 6, 7, 8]
    """
    entries: Ints = (np.asarray(heads, np.int64)[:, None] * size + np.arange(size)).ravel()
    return entries


def _select(projection: nn.Module, entries: Ints, *, outputs: bool) -> None:
    """Keep some of the outputs of a projection, with their biases, or some of its inputs."""
    kept = torch.from_numpy(entries)
    for name in ("weight", "bias") if outputs and projection.bias is not None else ("weight",):
        parameter = getattr(projection, name)
        axis = 0 if name == "bias" or outputs != _is_conv1d(projection) else 1
        values = parameter.detach().index_select(axis, kept.to(parameter.device))
        setattr(projection, name, nn.Parameter(values, requires_grad=parameter.requires_grad))
    counts = ("nf", "nx") if _is_conv1d(projection) else ("out_features", "in_features")
    setattr(projection, counts[0 if outputs else 1], len(entries))


def _set_attributes(layer: PrunableLayer, queries: Sequence[int], keys: int) -> None:
    """Set the attributes by which the module's forward knows its heads."""
    module, count = layer.module, len(queries)
    counts = () if layer.known.get("position_bias") else _COUNTS  # the bias keeps all heads
    values: dict[str, Any] = dict.fromkeys(counts, count) | dict.fromkeys(_ROWS, count * layer.heads.size)
    values |= {"num_key_value_heads": keys, "num_key_value_groups": count // keys}
    for name, value in values.items():
        if hasattr(module, name):
            setattr(module, name, value)
    own: dict[str, Any] = dict.fromkeys(layer.known.get("own_config", ()), count)
    if layer.known.get("position_bias"):
        from transformers import AttentionInterface

        AttentionInterface.register(_IMPLEMENTATION, _attend)
        own["_attn_implementation"] = _IMPLEMENTATION
        module.kept_heads = tuple(queries)
    if own:
        module.config = OwnConfig(module.config, own)


class OwnConfig:
    """The config of one attention module: a view of the model's config in which the values in `own` are different.

    The values of the model's config are looked up, never copied: an attention implementation that is set for the model
    later also holds for the module.

    >>> from types import SimpleNamespace
    >>> shared = SimpleNamespace(width=64, heads=8)
    >>> config = OwnConfig(shared, {"heads": 3})
    >>> shared.width = 32
    >>> config.width, config.heads, shared.heads
    (32, 3, 8)
    """

    def __init__(self, shared: Any, own: dict[str, Any]) -> None:
        object.__setattr__(self, "attngeo_shared", shared)
        object.__setattr__(self, "attngeo_own", own)

    def __getattr__(self, name: str) -> Any:  # called only for names that the object itself does not have
        if name in self.attngeo_own:
            return self.attngeo_own[name]
        return getattr(self.attngeo_shared, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.attngeo_shared, name, value)

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles keep sharing the config of their model
        return OwnConfig, (self.attngeo_shared, self.attngeo_own)


_IMPLEMENTATION = "attngeo_pruned"  # the name under which transformers finds `_attend`
# The model's own functions that were compared with the full model. Others are refused.
_SUPPORTED = ("eager", "sdpa", "attngeo_recorded")


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> Any:
    """Compute the attention of a layer that receives a position bias for all heads of the full model (T5).

    query: [B, H, Q, r], key and value: [B, H, K, r], position_bias: [1, H of the full model, Q, K]
    """
    from transformers import AttentionInterface

    name = module.config.attngeo_shared._attn_implementation
    if name not in _SUPPORTED:
        raise InputError(
            f"attention implementation {name}: not supported by a pruned layer with a position bias; use sdpa or eager"
        )
    if options.get("position_bias") is not None:
        options["position_bias"] = options["position_bias"][:, list(module.kept_heads)]  # [1, H, Q, K]
    function = AttentionInterface().get_interface(name, eager_function(module))
    return function(module, query, key, value, attention_mask, **options)
