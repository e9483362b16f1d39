"""Find out whether a live model is causal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tools.proof.example_inputs import example_inputs
from tools.proof.product_recorder import recorded_products

_INPUT_NAMES = (
    "input_ids",
    "pixel_values",
    "input_values",
    "input_features",
    "inputs_embeds",
    "decoder_input_ids",
)


def is_causal(model: nn.Module, config: Any) -> bool | None:
    """Return whether the first output stays the same when the end of the input changes; None: cannot be decided."""
    for inputs in example_inputs(model, config):
        changed = dict(inputs) | {name: _with_changed_end(inputs[name]) for name in _INPUT_NAMES if name in inputs}
        try:
            with recorded_products(), torch.no_grad():
                output, other = _output(model(**inputs)), _output(model(**changed))
        except Exception:
            continue
        if output is None or other is None or output.shape != other.shape or torch.equal(output, other):
            return None
        return bool(torch.allclose(output[:, 0], other[:, 0], rtol=1e-4, atol=1e-5))
    return None


def _output(result: Any) -> Tensor | None:
    """Return the hidden states [B, N, d] in a model's result, None where there are none."""
    state = getattr(result, "last_hidden_state", None)
    if state is None:
        state = next((v for v in result.values() if isinstance(v, Tensor) and v.is_floating_point()), None)
    return state if state is None or state.dim() == 3 else None


def _with_changed_end(value: Tensor) -> Tensor:
    """Return a copy with another last token, last patch of the image, or end of the sound.

    Numbers change their sign: a norm would remove a constant that is added to all of them.
    """
    changed = value.clone()
    if not value.is_floating_point():  # [B, N], or [B, N, codes]
        changed[:, -1] = torch.where(changed[:, -1] > 6, changed[:, -1] - 1, changed[:, -1] + 1)
    elif value.dim() >= 4:
        changed[..., -8:, -8:] *= -1
    elif value.dim() == 2:
        changed[..., -400:] *= -1
    else:
        changed[:, -1] *= -1
    return changed
