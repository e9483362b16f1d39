"""`prunable_layers`: the attention layers of a live model with all the projections that heads are cut from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attngeo.applications.prune.labels import Head
from attngeo.applications.prune.removal.families import Family, pruning_family
from attngeo.errors import InputError
from attngeo.live.attention_modules import AttentionModule, attention_stacks, tensor_shapes, type_label
from attngeo.weights.layout.heads import CONFIG_KEY, count_heads
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.storage import VALUE_NAMES, Heads, ValueRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class PrunableLayer:
    """One attention layer of a live model, whose heads can be removed."""

    stack: str
    layer: int
    path: str  # of the attention module
    module: nn.Module
    family: Family
    heads: Heads  # H query heads, G key heads, r
    inputs: dict[str, nn.Module]  # path → projection of the token vectors: queries, keys, values or all of them
    site: Layer
    value: str  # path of the projection that holds the values; a key of `inputs`
    output_path: str
    output: nn.Module  # the projection of the concatenated head outputs, [H·r] → [d]

    @property
    def labels(self) -> tuple[Head, ...]:
        """The query heads of the layer, by the names they have in the full model."""
        numbers = range(self.heads.queries)
        return tuple(Head(self.stack, self.layer, number) for number in numbers)

    @property
    def output_weight(self) -> Tensor:
        """W_o [H·r, d], rows in blocks per head, for row vectors z: output = z W_o; a view of the parameter."""
        weight: Tensor = self.output.weight
        return weight if is_conv1d(self.output) else weight.T

    def stream_module(self, model: nn.Module) -> nn.Module:
        """The module whose first input is the residual stream that the attention's output is added to."""
        pattern = self.family.stream
        if getattr(getattr(model, "config", None), "do_layer_norm_before", True) is False:  # OPT-350M is post-norm
            pattern = ""
        return model.get_submodule(resolve(self.path, pattern.format(name=self.path.rpartition(".")[2])))

    def tensors(self) -> dict[str, Tensor]:
        """The weights and biases of all projections of the layer, and its QK-norm gains, by name."""
        modules = {**self.inputs, self.output_path: self.output}
        found = {
            f"{path}.{leaf}": getattr(module, leaf)
            for path, module in modules.items()
            for leaf in ("weight", "bias")
            if getattr(module, leaf, None) is not None
        }
        gains = [name for name in self.site.qk_norms.gains if name is not None]
        return found | {name: self._parameter(name) for name in gains}

    def _parameter(self, name: str) -> Tensor:
        inside = name.removeprefix(self.path + ".")
        return self.module.get_parameter(inside)


def prunable_layers(model: PreTrainedModel) -> tuple[PrunableLayer, ...]:
    """Return the attention layers of `model`, self- and cross-attention, in the order of their stacks.

    InputError where the model type is not supported, or where a projection is quantised, adapted, not finite or used
    twice.
    """
    if not hasattr(model, "config"):
        raise InputError(f"{type(model).__name__}: expected a transformers model with the head it was trained with")
    family = pruning_family(str(getattr(model.config, "model_type", "")))
    if getattr(model.config, CONFIG_KEY, None) is not None:
        raise InputError(f"{type_label(model)}: has lost heads already; prune the full model with one larger plan")
    _check_plain(model)
    shapes = tensor_shapes(model)
    stacks = attention_stacks(model)
    layers = []
    for stack in stacks.values():
        stack.check_supported(type_label(model), None)
        layers += [_layer(model, family, stack.name, attention, shapes) for attention in stack.attentions]
    _check_own_projections(layers)
    return tuple(layers)


def _check_plain(model: PreTrainedModel) -> None:
    """Raise InputError for a model with adapters, or whose state holds more than tensors, as that of quantised ones."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name}: is no tensor, so the module is quantised; dequantise the model first")
        if ".base_layer." in name:
            raise InputError(f"{name.split('.base_layer.')[0]}: has an adapter; merge it before heads are removed")


def _check_own_projections(layers: Iterable[PrunableLayer]) -> None:
    """Raise InputError for a module that is two projections at once: a cut for one would change the other."""
    paths: dict[nn.Module, str] = {}
    for layer in layers:
        for path, module in {**layer.inputs, layer.output_path: layer.output}.items():
            if (first := paths.setdefault(module, path)) != path:
                raise InputError(f"{path}: is the same module as {first}; expected a module of its own, such as a copy")


def resolve(path: str, relative: str) -> str:
    """Return the path that `relative` names as seen from `path`.

    >>> resolve("layers.0.self_attn", "../input_layernorm"), resolve("layers.0.self_attn", "")
    ('layers.0.input_layernorm', 'layers.0.self_attn')
    """
    while relative.startswith("../"):
        path, relative = path.rpartition(".")[0], relative[3:]
    return f"{path}.{relative}".strip(".")


def is_conv1d(module: nn.Module) -> bool:
    """Return whether a projection stores its weight as [in, out] (GPT-2)."""
    return type(module).__name__ == "Conv1D"


def _layer(
    model: PreTrainedModel, family: Family, stack: str, attention: AttentionModule, shapes: dict[str, tuple[int, ...]]
) -> PrunableLayer:
    label, site = type_label(model), attention.location
    if not site.known:
        raise InputError(f"{label}: the projections of {attention.path} are not known, so its heads cannot be removed")
    site = count_heads(site, shapes)
    if site.heads is None:
        raise InputError(f"{label}: the head count of {attention.path} is not known")
    names = [name.removesuffix(".weight") for name in site.tensors]
    value = names[-1]
    if site.storage.value_rows is ValueRows.OWN_TENSOR:
        around, _, leaf = names[-1].rpartition(".")
        value = f"{around}.{VALUE_NAMES.get(leaf, '?')}"
    inputs = {path: _projection(model, path) for path in dict.fromkeys([*names, value])}
    output_path = resolve(attention.path, family.output)
    layer = PrunableLayer(
        stack, attention.layer, attention.path, attention.module, family, site.heads, inputs, site, value,
        output_path, _projection(model, output_path),
    )  # fmt: skip
    _check(layer)
    return layer


def _projection(model: nn.Module, path: str) -> nn.Module:
    """Return the plain projection at `path`; InputError where it is missing, quantised or adapted."""
    try:
        module = model.get_submodule(path)
    except AttributeError:
        raise InputError(f"{type_label(model)}: no projection {path}, so the heads cannot be removed") from None
    plain = type(module) is nn.Linear or is_conv1d(module)
    if not plain or not module.weight.is_floating_point():
        dtype = getattr(getattr(module, "weight", None), "dtype", None)
        raise InputError(
            f"{path}: is a {type(module).__name__} of {dtype}, expected a plain linear layer; dequantise the model, or "
            "merge its adapters, before heads are removed"
        )
    return module


def _check(layer: PrunableLayer) -> None:
    """Raise InputError for weights that are not finite, gains that belong to single heads, or an unexpected output."""
    for name, tensor in layer.tensors().items():
        if not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{name}: contains NaN or infinity; expected finite weights")
        if name in layer.site.qk_norms.gains and tensor.numel() != layer.heads.size:
            raise InputError(
                f"{name}: {tensor.numel()} gains, normalised over all heads together; expected {layer.heads.size} "
                "gains that the heads share"
            )
    rows, expected = layer.output_weight.shape[0], layer.heads.queries * layer.heads.size
    if rows != expected:
        raise InputError(
            f"{layer.output_path}: reads {rows} values, expected {layer.heads.queries} heads of {layer.heads.size}"
        )
