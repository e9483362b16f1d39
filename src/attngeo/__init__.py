"""The geometry of self-attention: of its weights, and of what its heads make of an input.

Score a checkpoint
    score             a model's layers and heads: symmetry, directionality, what chance would give
    ScoreTable        the result: a tidy frame that summarises, draws, saves and loads
    published         the figures the authors of arXiv 2502.10927 stored, layer by layer

Organise a network
    capture             a model and an input → NetworkTensor: queries × keys × heads
    organize            its hierarchy → Organization: a tree and an affinity for every axis
    softmax_invariance  whether the softmax leaves that geometry alone → InvarianceReport
    paraproduct         a function of a matrix along two trees → Paraproduct
    NetworkTensor, Organization, Expansion, Comparison, InvarianceReport, Paraproduct, Tree

Train
    symmetric_init_     start a model from a symmetric form: W_q = W_k in every self-attention head
    pretrain            a config → a trained encoder or decoder, its records, paired runs
    Monitor             the form of a model in training: a callback, or a call in one's own loop
    track               the same records from a folder of checkpoints
    gradient_terms      a backward pass as the rank-1 terms it adds to every form → GradientTerms

Underneath
    attention_layers  a model's queries and keys, one layer at a time
    AttentionWeights  one such layer
    Form              the bilinear form W_q W_kᵀ, kept as its factors

    AttngeoError      what is raised for whatever cannot be read, placed or organised
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attngeo.dynamics.gradients.gradient_terms import gradient_terms
    from attngeo.dynamics.gradients.result import GradientTerms
    from attngeo.dynamics.initialisation.symmetric import symmetric_init_
    from attngeo.dynamics.monitoring.monitor import Monitor
    from attngeo.dynamics.monitoring.track import track
    from attngeo.dynamics.pretraining.pretrain import pretrain
    from attngeo.errors import AttngeoError
    from attngeo.organization.capture.capture import capture
    from attngeo.organization.capture.network_tensor import NetworkTensor
    from attngeo.organization.expansion.controls import Comparison
    from attngeo.organization.expansion.expansion import Expansion
    from attngeo.organization.organization import Organization
    from attngeo.organization.organize import organize
    from attngeo.organization.softmax.invariance import softmax_invariance
    from attngeo.organization.softmax.invariance_report import InvarianceReport
    from attngeo.organization.softmax.paraproduct import Paraproduct, paraproduct
    from attngeo.organization.trees.tree import Tree
    from attngeo.weights.layout.attention_weights import AttentionWeights
    from attngeo.weights.layout.layers import attention_layers
    from attngeo.weights.scoring.form import Form
    from attngeo.weights.scoring.published import published
    from attngeo.weights.scoring.score import score
    from attngeo.weights.scoring.score_table import ScoreTable

__all__ = [
    "AttentionWeights",
    "AttngeoError",
    "Comparison",
    "Expansion",
    "Form",
    "GradientTerms",
    "InvarianceReport",
    "Monitor",
    "NetworkTensor",
    "Organization",
    "Paraproduct",
    "ScoreTable",
    "Tree",
    "__version__",
    "attention_layers",
    "capture",
    "gradient_terms",
    "organize",
    "paraproduct",
    "pretrain",
    "published",
    "score",
    "softmax_invariance",
    "symmetric_init_",
    "track",
]

# Found on first use, so that `import attngeo` and `attngeo --help` load nothing they do not need.
_HOME = {
    "AttentionWeights": "attngeo.weights.layout.attention_weights",
    "AttngeoError": "attngeo.errors",
    "Comparison": "attngeo.organization.expansion.controls",
    "Expansion": "attngeo.organization.expansion.expansion",
    "Form": "attngeo.weights.scoring.form",
    "GradientTerms": "attngeo.dynamics.gradients.result",
    "InvarianceReport": "attngeo.organization.softmax.invariance_report",
    "Monitor": "attngeo.dynamics.monitoring.monitor",
    "NetworkTensor": "attngeo.organization.capture.network_tensor",
    "Organization": "attngeo.organization.organization",
    "Paraproduct": "attngeo.organization.softmax.paraproduct",
    "ScoreTable": "attngeo.weights.scoring.score_table",
    "Tree": "attngeo.organization.trees.tree",
    "attention_layers": "attngeo.weights.layout.layers",
    "capture": "attngeo.organization.capture.capture",
    "gradient_terms": "attngeo.dynamics.gradients.gradient_terms",
    "organize": "attngeo.organization.organize",
    "paraproduct": "attngeo.organization.softmax.paraproduct",
    "pretrain": "attngeo.dynamics.pretraining.pretrain",
    "published": "attngeo.weights.scoring.published",
    "score": "attngeo.weights.scoring.score",
    "softmax_invariance": "attngeo.organization.softmax.invariance",
    "symmetric_init_": "attngeo.dynamics.initialisation.symmetric",
    "track": "attngeo.dynamics.monitoring.track",
}


# Rooms that are reachable as attributes without an import of their own.
_ROOMS = ("bundled", "dynamics", "live", "organization", "show", "weights")


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"attngeo.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'attngeo' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
