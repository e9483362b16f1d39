"""`fingerprint`: a hash of the attention weights of a model, by which a plan recognises the model it was made for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import nn

from attngeo.applications.prune.removal.layers import PrunableLayer


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
