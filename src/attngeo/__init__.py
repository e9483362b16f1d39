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
    from attngeo.dynamics.gradient import gradient_terms
    from attngeo.dynamics.gradient_result import GradientTerms
    from attngeo.dynamics.init import symmetric_init_
    from attngeo.dynamics.monitor import Monitor
    from attngeo.dynamics.pretrain import pretrain
    from attngeo.dynamics.track import track
    from attngeo.errors import AttngeoError
    from attngeo.organization.capture import capture
    from attngeo.organization.controls import Comparison
    from attngeo.organization.expansion import Expansion
    from attngeo.organization.invariance import softmax_invariance
    from attngeo.organization.invariance_report import InvarianceReport
    from attngeo.organization.organization import Organization
    from attngeo.organization.paraproduct import Paraproduct, paraproduct
    from attngeo.organization.questionnaire import organize
    from attngeo.organization.tensor import NetworkTensor
    from attngeo.organization.tree import Tree
    from attngeo.weights.attention import AttentionWeights
    from attngeo.weights.form import Form
    from attngeo.weights.layers import attention_layers
    from attngeo.weights.published import published
    from attngeo.weights.score import score
    from attngeo.weights.table import ScoreTable

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
    "AttentionWeights": "attngeo.weights.attention",
    "AttngeoError": "attngeo.errors",
    "Comparison": "attngeo.organization.controls",
    "Expansion": "attngeo.organization.expansion",
    "Form": "attngeo.weights.form",
    "GradientTerms": "attngeo.dynamics.gradient_result",
    "InvarianceReport": "attngeo.organization.invariance_report",
    "Monitor": "attngeo.dynamics.monitor",
    "NetworkTensor": "attngeo.organization.tensor",
    "Organization": "attngeo.organization.organization",
    "Paraproduct": "attngeo.organization.paraproduct",
    "ScoreTable": "attngeo.weights.table",
    "Tree": "attngeo.organization.tree",
    "attention_layers": "attngeo.weights.layers",
    "capture": "attngeo.organization.capture",
    "gradient_terms": "attngeo.dynamics.gradient",
    "organize": "attngeo.organization.questionnaire",
    "paraproduct": "attngeo.organization.paraproduct",
    "pretrain": "attngeo.dynamics.pretrain",
    "published": "attngeo.weights.published",
    "score": "attngeo.weights.score",
    "softmax_invariance": "attngeo.organization.invariance",
    "symmetric_init_": "attngeo.dynamics.init",
    "track": "attngeo.dynamics.track",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'attngeo' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
