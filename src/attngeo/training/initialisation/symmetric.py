"""The symmetric initialisation: W_q = W_k in every head, so that the form M = W_q W_kᵀ is symmetric.

It changes the query and key weights of every self-attention layer in place and nothing else: biases, values, all other
weights and cross-attention stay as they are. Row vectors as everywhere: M_h = W_q^h (W_k^{g(h)})ᵀ, where g(h) is the
key head that query head h reads.
"""

from __future__ import annotations

import warnings
from typing import Unpack

from torch import nn

from attngeo.live.parameters import LayerOptions, LayerParameters, attention_parameters
from attngeo.training.initialisation.result import Initialisation
from attngeo.training.initialisation.scale import Scale
from attngeo.training.initialisation.writer import keys_for_queries, write_layers


def symmetric_init_(model: nn.Module, *, scale: Scale = None, **options: Unpack[LayerOptions]) -> Initialisation:
    """Set W_q^h ← W_k^{g(h)}: the form of every head becomes symmetric (s = 1) and positive semi-definite.

    With scale="unit" it helps masked pre-training of models with learned positions that are slow to leave the first
    plateau of their loss: a post-norm BERT of 4 layers saved 33% of the steps at learning rate 5e-4 and 8% at the best
    rate, 2e-3, a pre-norm BERT 14% at 1e-3, most of it through the larger scale alone. It may need a lower rate in deep
    models: a BERT of 24 layers did not train at 2e-4, where the usual initialisation did (two seeds, 600 steps). A
    model with rotary embedding and pre-norm ended worse with it: a ModernBERT by 0.1 nats, each at its best rate, a
    LLaMA by 0.03 at 1e-3. A causal BERT lost 0.02 at 5e-4 and nothing beyond chance at 1e-3 (docs/initialisation.md).
    It warns on models with rotary embedding and pre-norm.

    scale:   None keeps the scale of W_k. "unit" is std 1/√d: initial logits between different tokens are of order one,
             those of a token with itself about √r. A number is a std: in masked training of a BERT of width 256 at
             5e-4, 0.045 did as well as "unit" (0.0625), and 0.125 worse than the usual 0.02. The existing W_k of a
             layer is multiplied to that std (root mean square), then copied; nothing is drawn at random.
    options: num_heads, stack, layers, unproven, as in `attngeo.score`

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> model = BertForMaskedLM(BertConfig(num_hidden_layers=1))
    >>> initialisation = attngeo.symmetric_init_(model, scale="unit")
    >>> attngeo.score(model, heads=False).frame["symmetry"].round(6).to_list()
    [1.0]
    """

    def copy(layer: LayerParameters) -> None:
        layer.query.copy_(keys_for_queries(layer))  # [*g, m, r, d] ← [*g, 1, r, d]

    parameters = attention_parameters(model, **options)
    if any(layer.pre_norm and layer.rotary for layer in parameters.layers):
        warnings.warn(
            f"{type(model).__name__}: a model with rotary embedding and a norm before its attention; a ModernBERT "
            "and a LLaMA, which have both, ended with a higher loss from a symmetric initialisation "
            "(docs/initialisation.md)",
            UserWarning,
            stacklevel=2,
        )
    return write_layers("symmetric", scale, parameters, copy)
