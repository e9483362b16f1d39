"""Run a live model on example inputs and return the products of queries and keys that it computes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attngeo.weights.layout.layer import Layer
from tools.proof.agreement import TOLERANCE, agreement
from tools.proof.example_inputs import attention_inputs, example_inputs, with_positions
from tools.proof.product_recorder import Product, recorded_products


def record_model(
    model: nn.Module, config: Any, *, rotating: bool = False, spread: bool = False
) -> tuple[list[Product], list[str]]:
    """Run the model, then each model inside it, on example inputs; return the products, and the errors of the runs.

    rotating: positions keep their values, instead of being zero
    spread:   tokens stand at the positions of `spread_positions` where the model accepts positions
    """
    products: list[Product] = []
    errors: list[str] = []
    inner = [(name, module) for name, module in model.named_modules() if isinstance(module, PreTrainedModel)]
    for name, module in inner or [("", model)]:
        for inputs in example_inputs(module, getattr(module, "config", config)):
            attempts = [with_positions(module, inputs), inputs] if spread else [inputs]
            for given in attempts:
                recorded, problem = _record(model, module, given, rotating)
                if problem is None:
                    break
                errors.append(f"{name or type(module).__name__}({', '.join(given)}): {problem}")
            products += recorded  # those recorded before an error count
            if problem is None:
                break
    return products, errors


def _record(
    model: nn.Module, module: nn.Module, inputs: dict[str, Any], rotating: bool
) -> tuple[list[Product], str | None]:
    """Return the products of one call of a part of the model, and the error that ended it; None: no error."""
    problem = None
    with recorded_products(model, rotating=rotating) as recorder, torch.no_grad():
        try:
            module(**inputs)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:120]}"
    return [positioned(product, inputs.get("position_ids")) for product in recorder.products], problem


def record_attention(
    model: nn.Module, weights: Layer, tensor: Tensor, *, rotating: bool = False
) -> tuple[list[Product], nn.Module | None]:
    """Call the attention module that owns `tensor` by itself; return its products, and it where one of them agrees."""
    owners = (n for n, p in model.named_parameters() if p.shape == tensor.shape and torch.equal(p, tensor))
    words = next(owners, "").split(".")
    products: list[Product] = []
    for depth in range(len(words) - 1, max(len(words) - 4, 0), -1):
        module = model.get_submodule(".".join(words[:depth]))
        if isinstance(module, (nn.Linear, nn.ModuleList, nn.Embedding)) or type(module).forward is nn.Module.forward:
            continue
        for inputs in attention_inputs(module, weights.query.shape[1], weights.key.shape[1]):
            with (
                recorded_products(rotating=rotating) as recorder,
                torch.no_grad(),
                contextlib.suppress(Exception),
            ):
                module(**inputs)
            products += recorder.products
            if any(agreement(weights, product) < TOLERANCE for product in recorder.products):
                return recorder.products, module
    return products, None


def positioned(product: Product, positions: Tensor | None) -> Product:
    """Return `product` with the positions [1, N] of its tokens: those given where they fit, else 0, 1, 2, …"""
    count = product.query.shape[1]
    if positions is None or positions.shape[-1] != count:
        return replace(product, positions=torch.arange(count).unsqueeze(0))
    return replace(product, positions=positions.reshape(-1, count)[:1])
