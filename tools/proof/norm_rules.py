"""Find the norm whose output an attention layer of a live model reads, and state where it is as a rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attngeo.weights.layout.find import norm_path
from attngeo.weights.layout.table import NOT_ATTENTION
from tools.proof.comparable_model import GainOnly, is_qk_norm
from tools.proof.product_recorder import Product


def norm_before(model: nn.Module, product: Product, tokens: Tensor) -> nn.Module | None:
    """Return the norm whose output is `tokens`, the latest if there are several; None if there is none."""
    for name, output in reversed(product.norms):
        if output.shape == tokens.shape and torch.equal(output, tokens):
            return model.get_submodule(name)
    return None


def measure_norm(norm: nn.Module, width: int) -> tuple[bool, Tensor]:
    """Return (centred, gain [d]), measured on the norm itself."""
    signs = torch.ones(1, 4, width)
    signs[..., 1::2] = -1  # mean 0, mean square 1: any norm returns gain · signs
    with torch.no_grad():
        gain = (norm(signs) * signs)[0, 0]
        tokens = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0))
        output, of_shifted = norm(tokens), norm(tokens + 3.0)
    return torch.allclose(output, of_shifted, atol=1e-3), gain


def qk_norms_centre(model: nn.Module) -> bool:
    """Return whether a norm on the queries or keys of an attention, reduced or not, subtracts the mean."""
    for path, module in model.named_modules():
        name = re.sub(r"\.norms\.\d+$", "", path).rpartition(".")[2]  # StableLM has one norm per head
        norm = module.norm if isinstance(module, GainOnly) else module if is_qk_norm(name, module) else None
        weight = getattr(norm, "weight", None)
        shape = getattr(norm, "normalized_shape", None) if weight is None else weight.shape
        if norm is None or shape is None or NOT_ATTENTION.search(path):
            continue
        tokens = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))  # [4, r], or [4, heads, r]
        with torch.no_grad():
            if torch.allclose(norm(tokens), norm(tokens + 3.0), atol=1e-3):
                return True
    return False


def norm_rule(site: str, stored: Mapping[str, Tensor], norm: nn.Module, width: int) -> dict[str, Any] | None:
    """Return the rule of `weights.layout.find` that leads from the attention's path to this norm's tensor.

    site:   path of the attention
    stored: tensors of the checkpoint by name
    Returns None where no rule does.
    """
    weight = getattr(norm, "weight", None)
    if weight is None or weight.shape != (width,):
        return None
    centred, gain = measure_norm(norm, width)
    names = [name for name, tensor in stored.items() if tensor.shape == weight.shape and torch.equal(tensor, weight)]
    if torch.allclose(gain, weight, atol=1e-4):
        offset = False
    elif torch.allclose(gain, 1 + weight, atol=1e-4):
        offset = True
    else:
        return None
    if offset and not names:  # GGUF stores the gain itself
        offset = False
        names = [
            name
            for name, tensor in stored.items()
            if tensor.shape == gain.shape and torch.allclose(tensor, gain, atol=1e-4)
        ]
    words = site.split(".")
    if not any(word.isdigit() for word in words) or len(names) != 1 or not names[0].endswith(".weight"):
        return None
    target = names[0].removesuffix(".weight")
    template = ".".join("*" if word.isdigit() else word for word in words)
    last = max(i for i, word in enumerate(words) if word.isdigit())
    block, number = words[: last + 1], int(words[last])
    previous = ".".join([*block[:-1], str(number - 1)]) + "."
    if target.startswith(".".join(block) + "."):
        at, path = "block", target.removeprefix(".".join(block) + ".")
    elif target.startswith(previous):
        at, path = "previous", target.removeprefix(previous)
    elif number == 0:
        at, path = "first", ".".join(target.split(".")[-2:])
    else:
        return None
    rule = {"site": template, "at": at, "norm": path, "centred": centred, "offset": offset}
    return rule if (found := norm_path(site, rule)) is not None and target.endswith(found) else None
