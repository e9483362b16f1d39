"""`gradient_terms`: one backward pass of a model, written as the rank-1 terms it adds to the form of every head."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from attngeo.dynamics.gradients.backward import layer_terms
from attngeo.dynamics.gradients.projections import places
from attngeo.dynamics.gradients.recorder import FullSoftmax, Listener
from attngeo.dynamics.gradients.result import GradientTerms
from attngeo.errors import InputError
from attngeo.live.attention_hook import recording
from attngeo.live.attention_modules import kind_of, parameters, stacks_of
from attngeo.live.load import live_model, run
from attngeo.weights.layout.layers import chosen_layers


def gradient_terms(
    model: Any,
    batch: Mapping[str, Any],
    *,
    layers: int | Collection[int] | None = None,
    loss: Callable[[Any], Any] | None = None,
) -> GradientTerms:
    """What the loss on `batch` asks of every self-attention head's form: −∂L/∂M = c Σ_ij β_ij x_i x_jᵀ.

    model   a live transformers model that `capture` can probe, left as it was: weights, `.grad`, mode, hooks
    batch   tensors as the model's forward takes them, with labels; padding behind a text, being masked, adds nothing
    layers  only these layers of each stack; what is kept grows with them (β: sequences × heads × tokens²)
    loss    the loss as a function of the model's output, where it is not the model's own

    Dropout is off. Sums run over the sequences of the batch and, for shared layers, over every use. With a soft-cap
    β belongs to the products before it, with rotary embedding or QK-norm to the products of the turned or normalised
    queries and keys; c includes a factor the model puts on its queries before.

    >>> terms = gradient_terms(model, {"input_ids": ids, "labels": labels})
    >>> terms["L0H3"].beta.shape, terms["L0H3"].update.symmetry()
    """
    wanted = chosen_layers(layers)
    if not isinstance(batch, Mapping) or not batch:
        raise InputError(f"batch: a mapping of names to tensors expected, as {type(model).__name__} takes them")
    live = live_model(model)
    model, kind = live.model, kind_of(live.model)
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise InputError(f"{type(model).__name__}: its weights were made in inference mode and can have no gradients")
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise InputError(
            f"{type(model).__name__}: its weights are sharded, a model that is whole in one process expected"
        )
    stacks = stacks_of(model)
    heard, by_module = places(model, stacks.values(), wanted)
    listener = Listener(kind, heard, by_module)
    # Fused attention takes its softmax in the logits' own precision, plain attention of many models in float32.
    full = nullcontext() if model.config._attn_implementation == "eager" else FullSoftmax()
    own = dict(model.named_parameters(remove_duplicate=False))
    with (
        torch.inference_mode(False),
        recording(model, stacks, listener),
        listener.hooks(),
        _frozen(model),
        torch.enable_grad(),
        full,
    ):
        output = run(model, kind, _tensors(model, batch))
        if not listener.uses:
            raise InputError(f"{kind}: this batch reaches none of the layers asked for")
        for name in sorted({use.place.stack for use in listener.uses}):
            stacks[name].check_heard(kind, wanted)
        value = _loss(model, output, batch, loss)
        found = layer_terms(value, listener.uses, own, kind)
    return GradientTerms(float(value.detach()), tuple(found), live.name)


def _tensors(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            value = value.clone() if value.is_inference() else value
            value = value.to(model.device)
        tensors[name] = value
    return tensors | ({"use_cache": False} if "use_cache" in parameters(model) else {})


def _loss(model: Any, output: Any, batch: Mapping[str, Any], loss: Callable[[Any], Any] | None) -> Any:
    """The scalar to go back from."""
    value = getattr(output, "loss", None) if loss is None else loss(output)
    if value is None:
        asked = "no labels" if "labels" not in batch else f"{type(model).__name__} makes no loss of its labels"
        raise InputError(f"batch: {asked}, so there is no loss; give labels, or a function of the output as loss=")
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
        shape = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise InputError(f"loss: {shape}, one number that depends on the model's attention expected")
    if not math.isfinite(float(value.detach())):
        raise InputError(f"loss: {float(value.detach())} on this batch, no gradient to speak of")
    return value.reshape(())


@contextmanager
def _frozen(model: Any) -> Iterator[None]:
    """No weight asks for a gradient: the graph then holds only what leads to the attention."""
    moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in moving:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in moving:
            parameter.requires_grad_(True)
