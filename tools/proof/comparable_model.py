"""Make a model comparable with its forms: random weights without biases, QK-norms reduced to their gains."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

_QK_NORM = re.compile(
    r"(^|_)(q|k|query|key|qk|kv)(_a)?_?(layer)?_?(rms_)?(norm|ln)|norm_?(added_)?(q|k)$|(q|k)_a_layernorm|layernorm_(q|k)$"
)


def randomise(model: nn.Module) -> None:
    """Draw weights that keep signals of order one, gains far from one and no biases, so that no two heads are alike."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or parameter.numel() == 0:
                continue
            if parameter.dim() >= 2 and "bias" not in name.split(".")[-1]:
                fan_in = parameter.shape[0] if _is_conv1d(model, name) else max(1, parameter[0].numel())
                if name.endswith(("embeddings.weight", "embed_tokens.weight", "wte.weight", "shared.weight")):
                    fan_in = 1
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
            elif "bias" in name or re.search(r"(_u|_v)$", name):
                parameter.zero_()
            elif parameter.dim() == 1 and parameter.abs().sum() == 0:  # a gain stored as gain − 1
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.6 - 0.3)
            elif parameter.dim() == 1:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.8 + 0.6)
        for name, parameter in model.named_parameters():
            if re.search(r"bias|pos_bias", name.split(".")[-1]):
                parameter.zero_()


def _is_conv1d(model: nn.Module, name: str) -> bool:
    return type(model.get_submodule(name.rpartition(".")[0])).__name__ == "Conv1D"


class GainOnly(nn.Module):
    """A norm on queries, keys or latents reduced to its linear part, which is measured on the norm itself.

    The linear part is the gain, after subtracting the mean where the norm does so.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the norm, for models that read the norm's weight or epsilon."""
        if name == "norm":
            return super().__getattr__(name)
        return getattr(super().__getattr__("norm"), name)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        signs = torch.ones_like(x)
        signs[..., 1::2] = -1  # mean 0, mean square 1: any norm returns gain · signs
        output, of_shifted = (self.norm(signs + shift, *args, **kwargs) for shift in (0.0, 3.0))
        centred = torch.allclose(output, of_shifted, atol=1e-3)
        return (x - x.mean(-1, keepdim=True) if centred else x) * (output * signs)


def is_qk_norm(name: str, module: nn.Module) -> bool:
    """Return whether a module of this name is a norm on queries, keys or latents."""
    return bool(_QK_NORM.search(name)) and not any(module.children())


def reduce_norms(model: nn.Module) -> int:
    """Replace every norm on queries, keys or latents by its gain; return how many there are."""
    norms = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if is_qk_norm(name, child)
    ]
    for parent, name, child in norms:
        setattr(parent, name, GainOnly(child))
    return len(norms)


def restore_norms(model: nn.Module) -> None:
    """Undo `reduce_norms`, so that the model is saved under its own tensor names."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, GainOnly):
                setattr(parent, name, child.norm)
