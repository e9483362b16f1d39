"""`check_inputs`: find out whether one of several models will refuse an input, before the first of them is run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from attngeo.live.attention_modules import attention_stacks, type_label
from attngeo.live.load import load_model
from attngeo.organization.inputs import choose_stack, modality, prepare_input, split_inputs
from attngeo.weights.layout.layers import chosen_layers


def check_inputs(
    refs: Iterable[Any],
    inputs: Any,
    *,
    stack: str | None = None,
    layers: int | Collection[int] | None = None,
    target: str | None = None,
    truncate: bool = False,
    sampling_rate: int | None = None,
) -> None:
    """Raise as `capture` would with these arguments, as far as the config and the tokenizer of a model can tell.

    refs: models, as `capture` takes them; one alone need not be checked, because `capture` begins with the same checks

    >>> check_inputs([attngeo.bundled(name) for name in ("decoder", "encoder")], "word " * 300)
    Traceback (most recent call last):
    attngeo.errors.InputError: text: 302 tokens, but ... reads at most 128; ...
    """
    models = list(refs)
    for ref in models if len(models) > 1 else ():
        loaded = load_model(ref, weights=False)
        for one in split_inputs(inputs)[0]:
            reads = modality(one, loaded, stack)
            chosen = choose_stack(loaded, attention_stacks(loaded.model), stack, reads)
            chosen.check_supported(type_label(loaded.model), chosen_layers(layers))
            prepare_input(one, loaded, chosen, reads=reads, target=target, truncate=truncate, rate=sampling_rate)
