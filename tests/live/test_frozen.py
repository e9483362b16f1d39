"""`frozen_model` restores every piece of a model's state, also after an exception."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from attngeo.live.frozen import configs_of, frozen_model
from tests.live.tiny_live_models import model_inputs, tiny_model


def half_trained_model() -> Any:
    """A model with parts in train and in evaluation mode, frozen and trainable parameters, and a gradient."""
    model = tiny_model("llama", "sdpa").train()
    model.layers[1].eval()
    model.embed_tokens.weight.requires_grad_(False)
    weight = model.layers[0].self_attn.q_proj.weight
    weight.grad = torch.ones_like(weight)
    return model


def state_of(model: Any) -> dict[str, Any]:
    """Everything that a measurement might change and `frozen_model` must restore."""
    modules, parameters = list(model.modules()), list(model.parameters())
    return {
        "train mode": [module.training for module in modules],
        "requires_grad": [parameter.requires_grad for parameter in parameters],
        "gradients": [None if parameter.grad is None else parameter.grad.tolist() for parameter in parameters],
        "weights": [parameter.detach().tolist() for parameter in parameters],
        "hooks": [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in modules],
        "attention": [config._attn_implementation_internal for config in configs_of(model.modules())],
        "use_cache": model.config.use_cache,
        "python random state": random.getstate(),
        "numpy random state": [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()],
        "torch random state": torch.random.get_rng_state().tolist(),
        "autograd": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()),
    }


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("parameter_gradients", [False, True])
def test_every_piece_of_state_is_restored(parameter_gradients: bool, fails: bool) -> None:
    model = half_trained_model()
    before = state_of(model)

    def measure() -> None:
        with frozen_model(model, attention="eager", parameter_gradients=parameter_gradients) as cleanup:
            for module in model.modules():
                cleanup.callback(module.register_forward_hook(lambda *_: None).remove)
                cleanup.callback(module.register_forward_pre_hook(lambda *_: None).remove)
            inside = state_of(model)
            model(**model_inputs("llama"))
            random.random(), np.random.random(), torch.rand(1)
            unchanged = {"gradients", "weights", "use_cache", "autocast"}
            unchanged |= {name for name in before if name.endswith("random state")}
            unchanged |= {"autograd"} if parameter_gradients else {"requires_grad"}
            assert {name for name in before if inside[name] == before[name]} == unchanged
            if fails:
                raise KeyboardInterrupt

    if fails:
        with pytest.raises(KeyboardInterrupt):
            measure()
    else:
        measure()
    assert state_of(model) == before


def test_modes_inside_the_context() -> None:
    model = half_trained_model()
    with frozen_model(model, attention="eager"):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        assert {config._attn_implementation_internal for config in configs_of(model.modules())} == {"eager"}
    with torch.inference_mode(), frozen_model(model, parameter_gradients=True):
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        assert not any(parameter.requires_grad for parameter in model.parameters())


def test_weights_cast_by_autocast_keep_their_gradients() -> None:
    """A cast that is cached without gradients would be reused by the training step that follows."""
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with frozen_model(layer):
            layer(torch.ones(1, 4))
        layer(torch.ones(1, 4)).sum().backward()
    assert layer.weight.grad is not None


def test_compiled_modules_run_uncompiled() -> None:
    compiled = []

    def backend(graph: Any, example_inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model = torch.compile(torch.nn.Linear(4, 4), backend=backend)
    with frozen_model(model):
        model(torch.ones(1, 4))
    assert not compiled
    model(torch.ones(1, 4))
    assert len(compiled) == 1
