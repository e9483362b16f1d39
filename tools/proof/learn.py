"""What the live model tells beyond its products: is it causal, and which norm made the attention's input?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attngeo.weights.layout.norms import norm_path
from tools.proof.feeds import feeds
from tools.proof.listen import Product, listening


def norm_of(model: nn.Module, product: Product, tokens: Tensor) -> nn.Module | None:
    """The norm whose output is `tokens`, latest first."""
    for name, output in reversed(product.norms):
        if output.shape == tokens.shape and torch.equal(output, tokens):
            return model.get_submodule(name)
    return None


def norm_facts(norm: nn.Module, width: int) -> tuple[bool, Tensor]:
    """(centred, gain [d]) asked from the norm itself."""
    signs = torch.ones(1, 4, width)
    signs[..., 1::2] = -1
    with torch.no_grad():
        gain = (norm(signs) * signs)[0, 0]
        tokens = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0))
        plain, shifted = norm(tokens), norm(tokens + 3.0)
    return torch.allclose(plain, shifted, atol=1e-3), gain


def norm_rule(site: str, stored: dict[str, Tensor], norm: nn.Module, width: int) -> dict[str, Any] | None:
    """The rule of attngeo.weights.layout.norms that leads from the attention's path to this norm's tensor."""
    weight = getattr(norm, "weight", None)
    if weight is None or weight.shape != (width,):
        return None
    centred, gain = norm_facts(norm, width)
    names = [name for name, tensor in stored.items() if tensor.shape == weight.shape and torch.equal(tensor, weight)]
    if torch.allclose(gain, weight, atol=1e-4):
        offset = False
    elif torch.allclose(gain, 1 + weight, atol=1e-4):
        offset = True
    else:
        return None
    if offset and not names:  # GGUF stores the gain itself
        offset = False
        same = lambda tensor: tensor.shape == gain.shape and torch.allclose(tensor, gain, atol=1e-4)  # noqa: E731
        names = [name for name, tensor in stored.items() if same(tensor)]
    words = site.split(".")
    if not any(word.isdigit() for word in words) or len(names) != 1 or not names[0].endswith(".weight"):
        return None
    target = names[0].removesuffix(".weight")
    suffix = ".".join("*" if word.isdigit() else word for word in words)
    last = max(i for i, word in enumerate(words) if word.isdigit())
    block, number = words[: last + 1], int(words[last])
    before = ".".join([*block[:-1], str(number - 1)]) + "."
    if target.startswith(".".join(block) + "."):
        at, where = "block", target.removeprefix(".".join(block) + ".")
    elif target.startswith(before):
        at, where = "previous", target.removeprefix(before)
    elif number == 0:
        at, where = "first", ".".join(target.split(".")[-2:])
    else:
        return None
    rule = {"site": suffix, "at": at, "norm": where, "centred": centred, "offset": offset}
    return rule if (path := norm_path(site, rule)) is not None and target.endswith(path) else None


def is_causal(model: nn.Module, config: Any) -> bool | None:
    """Does changing the end of the input leave the first token alone, all the way to the output? None: cannot tell."""
    for feed in feeds(model, config):
        first = next(iter(feed))
        changed = dict(feed)
        for name in (
            "input_ids",
            "pixel_values",
            "input_values",
            "input_features",
            "inputs_embeds",
            "decoder_input_ids",
        ):
            if name in feed:
                changed[name] = _change_end(feed[name])
        if first not in changed:
            return None
        try:
            with listening(), torch.no_grad():
                one, other = _output(model(**feed)), _output(model(**changed))
        except Exception:
            continue
        if one is None or other is None or one.shape != other.shape or one.dim() < 2 or torch.equal(one, other):
            return None
        axis = 1
        return bool(torch.allclose(one.select(axis, 0), other.select(axis, 0), rtol=1e-4, atol=1e-5))
    return None


def _output(result: Any) -> Tensor | None:
    state = getattr(result, "last_hidden_state", None)
    if state is None:
        state = next((v for v in result.values() if isinstance(v, Tensor) and v.is_floating_point()), None)
    return state if state is None or state.dim() == 3 else None


def _change_end(value: Tensor) -> Tensor:
    changed = value.clone()
    if not value.is_floating_point():
        changed[..., -1] = torch.where(changed[..., -1] > 6, changed[..., -1] - 1, changed[..., -1] + 1)
    elif value.dim() >= 4:
        changed[..., -8:, -8:] += 1.0
    elif value.dim() == 2:
        changed[..., -400:] += 1.0
    else:
        changed[:, -1] += 1.0
    return changed
