"""Freeze a live model for a measurement and restore all of its state afterwards."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@contextmanager
def frozen_model(
    model: nn.Module, *, attention: str | None = None, parameter_gradients: bool = False
) -> Iterator[ExitStack]:
    """Freeze `model` inside the context and restore it at the end, also after an exception.

    attention            the attention implementation that every config of the model names inside the context;
                         None leaves the configs as they are
    parameter_gradients  False: the context runs under `torch.no_grad()`. True: autograd is on, also inside
                         `torch.no_grad()` and `torch.inference_mode()`, but no parameter requires a gradient, so the
                         graph holds only what depends on tensors that the caller marks.

    Inside the context all modules are in evaluation mode (dropout is off) and compiled modules run uncompiled.
    Train mode, `requires_grad`, the attention implementation of each config, and the random states of Python, NumPy
    and torch are restored at the end. The context yields an `ExitStack`; hooks registered on it are removed too:

    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout())
    >>> with frozen_model(model) as cleanup:
    ...     hook = model[0].register_forward_hook(lambda module, inputs, output: print(tuple(output.shape)))
    ...     cleanup.callback(hook.remove) and None
    ...     model(torch.ones(4, 3)).requires_grad, model.training
    (4, 2)
    (False, False)
    >>> model.training
    True
    """
    first = next(model.parameters(), None)
    device = "cpu" if first is None or first.is_meta else first.device.type  # meta: accelerate loads it for each use
    with ExitStack() as cleanup:
        if "torch._dynamo" in sys.modules:  # a few rows now and then do not justify a compilation for their shape
            cleanup.enter_context(torch.compiler.set_stance("force_eager"))
        if torch.is_autocast_enabled(device):  # casts cached without gradients would be reused in training
            dtype = torch.get_autocast_dtype(device)
            cleanup.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
        cleanup.enter_context(preserved_random_state(_cuda_devices(model)))
        if parameter_gradients:
            cleanup.enter_context(torch.inference_mode(False))
            cleanup.enter_context(torch.enable_grad())
            _freeze_parameters(model, cleanup)
        else:
            # Not inference_mode: tables that a model computes here and keeps must remain usable in training.
            cleanup.enter_context(torch.no_grad())
        modules = list(model.modules())  # a walk over all modules takes time; training waits for it
        _set_evaluation_mode(modules, cleanup)
        if attention is not None:
            _set_attention(modules, attention, cleanup)
        yield cleanup


@contextmanager
def preserved_random_state(cuda_devices: Collection[int] = ()) -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch (CPU and the given CUDA devices) at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(list(cuda_devices)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def configs_of(modules: Iterable[nn.Module]) -> list[PreTrainedConfig]:
    """Return each transformers config that one of `modules` may consult, sub-configs included, once."""
    configs: dict[int, PreTrainedConfig] = {}
    # vars() instead of getattr: nn.Module looks up a missing attribute slowly, and most modules have no config.
    waiting = [config for module in modules if (config := vars(module).get("config")) is not None]
    while waiting:
        config = waiting.pop()
        if id(config) in configs or not hasattr(config, "_attn_implementation_internal"):
            continue
        configs[id(config)] = config
        waiting += [getattr(config, name, None) for name in config.sub_configs]
    return list(configs.values())


def _cuda_devices(model: nn.Module) -> list[int]:
    """Return the indices of the CUDA devices that hold parameters."""
    first = next(model.parameters(), None)
    if first is None or first.device.type != "cuda":  # saves a walk over all parameters
        return []
    devices = {parameter.device for parameter in model.parameters()}
    return sorted({device.index or 0 for device in devices if device.type == "cuda"})


def _freeze_parameters(model: nn.Module, cleanup: ExitStack) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            cleanup.callback(parameter.requires_grad_, True)
            parameter.requires_grad_(False)


def _set_evaluation_mode(modules: Iterable[nn.Module], cleanup: ExitStack) -> None:
    # Through vars(): nn.Module sets attributes slowly, and a model has thousands of modules.
    training = [vars(module) for module in modules if module.training]

    def restore() -> None:
        for attributes in training:
            attributes["training"] = True

    cleanup.callback(restore)
    for attributes in training:
        attributes["training"] = False


def _set_attention(modules: Iterable[nn.Module], attention: str, cleanup: ExitStack) -> None:
    configs = configs_of(modules)
    before = [config._attn_implementation_internal for config in configs]

    def restore() -> None:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation

    cleanup.callback(restore)
    for config in configs:
        config._attn_implementation_internal = attention
