"""One pass of a model forwards and backwards, written as the rank-1 terms it adds to the form of each head."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attngeo.errors import InputError
from attngeo.live.attention_hook import recorded_attention
from attngeo.live.attention_modules import attention_stacks, type_label
from attngeo.live.load import load_model, run_model
from attngeo.training.gradients.backward import layer_terms
from attngeo.training.gradients.projections import self_attention_layers
from attngeo.training.gradients.recorder import CallRecorder, Float64Softmax
from attngeo.training.gradients.result import GradientTerms
from attngeo.weights.layout.layers import chosen_layers
from attngeo.weights.sources.quantized import quantised_error, quantised_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput


def single_pass(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    *,
    layers: int | Collection[int] | None = None,
    loss: Callable[[ModelOutput], Tensor] | None = None,
) -> GradientTerms:
    """Return the terms of one backward pass; arguments as in `gradient_terms`."""
    requested = chosen_layers(layers)
    if not isinstance(batch, Mapping) or not batch:
        raise InputError(f"batch: expected a mapping of names to tensors, as {type(model).__name__} takes them")
    loaded = load_model(model)
    model, label = loaded.model, type_label(loaded.model)
    _check_weights(model)
    stacks = attention_stacks(model)
    attentions, layer_of_module = self_attention_layers(model, stacks.values(), requested)
    recorder = CallRecorder(label, attentions, layer_of_module)
    # Fused attention takes its softmax in the precision of the logits, eager attention of many models in float32.
    softmax = nullcontext() if model.config._attn_implementation == "eager" else Float64Softmax()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with recorded_attention(model, stacks, recorder, parameter_gradients=True) as cleanup, softmax:
        recorder.register_hooks(cleanup)
        output = run_model(model, _to_model(batch, model))
        if not recorder.calls:
            raise InputError(f"{label}: this batch reaches none of the requested layers")
        for name in sorted({call.layer.stack for call in recorder.calls}):
            stacks[name].check_supported(label, requested)
        value = _scalar_loss(model, output, batch, loss)
        terms = layer_terms(value, recorder.calls, parameters, label)
    return GradientTerms(float(value.detach()), tuple(terms), loaded.name)


def _check_weights(model: PreTrainedModel) -> None:
    """Raise InputError if the model's weights cannot have gradients in this process."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError(f"{type(model).__name__}: its weights are on the meta device and have no values yet")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise InputError(
            f"{type(model).__name__}: its weights were created in inference mode and cannot have gradients"
        )
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise InputError(f"{type(model).__name__}: its weights are sharded, expected all of them in this process")
    for path in quantised_modules(model):  # also outside of the attention: a module without gradients ends them
        raise quantised_error(model, path)


def _to_model(batch: Mapping[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """Return `batch` with its tensors on the model's device."""
    tensors = {}
    for name, value in batch.items():
        if isinstance(value, Tensor):
            value = value.clone() if value.is_inference() else value  # autograd rejects inference tensors
            value = value.to(model.device)
        tensors[name] = value
    return tensors


def _scalar_loss(
    model: PreTrainedModel, output: ModelOutput, batch: Mapping[str, Any], loss: Callable[[ModelOutput], Tensor] | None
) -> Tensor:
    """Return the loss as a finite scalar tensor with a gradient; raise InputError if there is none."""
    value = getattr(output, "loss", None) if loss is None else loss(output)
    if value is None:
        why = "no labels" if "labels" not in batch else f"{type(model).__name__} computes no loss from its labels"
        raise InputError(f"batch: {why}, so there is no loss; give labels, or a function of the output as loss=")
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"loss: {got}, expected one number that depends on the model's attention")
    if not math.isfinite(float(value.detach())):
        raise InputError(f"loss: {float(value.detach())} on this batch, expected a finite number")
    return value.reshape(())
