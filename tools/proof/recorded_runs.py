"""Run a live model on example inputs and return the products of queries and keys that it computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tools.proof.example_inputs import example_inputs, with_positions
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
            if spread:
                inputs = with_positions(module, inputs)
            with recorded_products(model, rotating=rotating) as recorder, torch.no_grad():
                failed = False
                try:
                    module(**inputs)
                except Exception as error:
                    what = f"{name or type(module).__name__}({', '.join(inputs)})"
                    errors.append(f"{what}: {type(error).__name__}: {str(error)[:120]}")
                    failed = True
            # Those recorded before an error count.
            products += [positioned(product, inputs.get("position_ids")) for product in recorder.products]
            if not failed:
                break
    return products, errors


def positioned(product: Product, positions: Tensor | None) -> Product:
    """Return `product` with the positions [1, N] of its tokens: those given where they fit, else 0, 1, 2, …"""
    count = product.query.shape[1]
    if positions is None or positions.shape[-1] != count:
        return replace(product, positions=torch.arange(count).unsqueeze(0))
    return replace(product, positions=positions.reshape(-1, count)[:1])
