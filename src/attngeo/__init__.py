"""The geometry of self-attention, read from the weights.

Score a checkpoint
    score             a model's layers and heads: symmetry, directionality, what chance would give
    ScoreTable        the result: a tidy frame that summarises, draws, saves and loads
    published         the figures the authors of arXiv 2502.10927 stored, layer by layer

Underneath
    attention_layers  a model's queries and keys, one layer at a time
    AttentionWeights  one such layer
    Form              the bilinear form W_q W_kᵀ, kept as its factors

    AttngeoError      what is raised for a checkpoint that cannot be read or placed
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attngeo.errors import AttngeoError
    from attngeo.weights.attention import AttentionWeights
    from attngeo.weights.form import Form
    from attngeo.weights.layers import attention_layers
    from attngeo.weights.published import published
    from attngeo.weights.score import score
    from attngeo.weights.table import ScoreTable

__all__ = [
    "AttentionWeights",
    "AttngeoError",
    "Form",
    "ScoreTable",
    "__version__",
    "attention_layers",
    "published",
    "score",
]

# Found on first use, so that `import attngeo` and `attngeo --help` load nothing they do not need.
_HOME = {
    "AttentionWeights": "attngeo.weights.attention",
    "AttngeoError": "attngeo.errors",
    "Form": "attngeo.weights.form",
    "ScoreTable": "attngeo.weights.table",
    "attention_layers": "attngeo.weights.layers",
    "published": "attngeo.weights.published",
    "score": "attngeo.weights.score",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'attngeo' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
