"""Which models have fixed sinusoidal positions in their hidden dimensions.

The sinusoids are the same in every model of that width. They tell the hidden dimensions apart before training begins,
so models trained from different initial values share a basis, and a permuted basis is no null for them. Which model
types have them is a fact about the type, found on small live models (`python -m tools.prove_positions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attngeo.weights.layout.families import family

# Config switches of types that can have either kind.
SWITCHES = {
    "sinusoidal_pos_embds": True,
    "sinusoidal_embeddings": True,
    "use_learned_position_embeddings": False,
    "position_embedding_type": "sine",
    "is_native": True,  # AIMv2
}


def has_fixed_positions(config: Mapping[str, Any] | None) -> bool:
    """Return whether a model with this config, or a part of it, adds fixed sinusoids to its hidden states.

    >>> has_fixed_positions({"model_type": "whisper"}), has_fixed_positions({"model_type": "bert"})
    (True, False)
    """
    return any(
        family(str(part.get("model_type"))).fixed_positions
        or any(part.get(key) == value for key, value in SWITCHES.items())
        for part in _parts(config or {})
    )


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _parts(value)
