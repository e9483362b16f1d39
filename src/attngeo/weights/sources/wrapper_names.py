"""Tensor names as the unwrapped model has them: without the words that compiling and distributing a model add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Tensor = TypeVar("Tensor")

# Modules that hold one other module and add nothing to it: torch.compile, FSDP 1, activation checkpointing.
WRAPPER_WORDS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PREFIX = "module"  # of DataParallel and DistributedDataParallel; further inside, models use the word themselves


def without_wrappers(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return `tensors` under the names of the unwrapped model; unchanged where two names would become one.

    The attribute under which a larger module keeps a model (`model.` in Lightning modules) stays: layouts are found by
    the ends of names.

    >>> dict(without_wrappers({"module._orig_mod.model.layers.0._orig_mod.q_proj.weight": 1}))
    {'model.layers.0.q_proj.weight': 1}
    """
    if not any(_PREFIX in name or "_wrapped_" in name or "_orig_mod" in name for name in tensors):
        return tensors
    renamed = {unwrapped_name(name): value for name, value in tensors.items()}
    return renamed if len(renamed) == len(tensors) else tensors


def unwrapped_name(name: str) -> str:
    """Return one tensor name without the words of wrappers.

    >>> unwrapped_name("_orig_mod.module.encoder.weight"), unwrapped_name("encoder.module.weight"), unwrapped_name("w")
    ('encoder.weight', 'encoder.module.weight', 'w')
    """
    *path, leaf = name.split(".")
    words = [word for word in path if word not in WRAPPER_WORDS]
    while words and words[0] == _PREFIX:
        del words[0]
    return ".".join([*words, leaf])
