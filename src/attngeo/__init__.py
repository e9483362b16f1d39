"""Measure the geometry of self-attention: of a model's weights, of its attention on an input, and during training.

Score a checkpoint
    score               symmetry and directionality of each layer and head, compared with chance → ScoreTable
    ScoreTable          a tidy table of scores that summarises, draws, saves and loads
    published           the scores published with arXiv 2502.10927, layer by layer

Organise a network
    capture             run a model on an input → NetworkTensor: queries × keys × heads
    organize            find the hierarchy of a network tensor → Organization: a tree and an affinity for each axis
    softmax_invariance  compare the geometry before and after the softmax → InvarianceReport
    paraproduct         expand a function of a matrix along two trees → Paraproduct
    NetworkTensor, Organization, Expansion, SparsityControls, InvarianceReport, Paraproduct, Tree

Compare models
    compare             what changed from one model to another, are they related, how far apart → ModelComparison
    compare_all         the distances of several models → ModelMap
    ModelComparison, ModelMap

Remove heads
    prune_plan          choose the heads whose removal costs least on calibration inputs → PrunePlan
    prune               take the heads of a plan out of a model, and refit those that stay → a smaller model
    load_pruned         load a pruned model from its folder
    PrunePlan           which heads are removed, in which order, at what cost

Score many models
    Atlas               a folder with the scores of many models: add, frame, sql, status

See it
    report              everything that is known about models and their attention → one HTML file that opens offline

Train a model
    symmetric_init_     initialise a model with a symmetric form: W_q = W_k in each self-attention head
    pretrain            pre-train a small encoder or decoder from a config and record its form
    watch               score a model while a transformers Trainer trains it, and report to its trackers
    LightningMonitor    the same for Lightning
    Monitor             the same as a callback, or from one's own training loop
    track               write the same records from a folder of checkpoints
    gradient_terms      write a backward pass as the rank-1 terms that it adds to each form → GradientTerms
    expected_terms      average these terms over many batches → ExpectedTerms

Building blocks
    bundled             the folder of a small model that ships with attngeo, an encoder or a decoder
    attention_layers    the queries and keys of a model, one `Layer` at a time
    Layer               one attention layer, with its queries and keys
    Form                one bilinear form W_q W_kᵀ, kept as its factors
    RotaryPairs         the rotary position embedding of a form

    AttngeoError        the base class of all errors that attngeo raises on purpose

Names are imported on first use, so `import attngeo` loads neither NumPy nor torch. The packages `attngeo.weights`,
`attngeo.live`, `attngeo.organization`, `attngeo.training`, `attngeo.applications`, `attngeo.atlas`, `attngeo.show` and
`attngeo.reporting` offer the functions and classes from which these are built.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from attngeo.version import __version__

if TYPE_CHECKING:
    from attngeo import applications, atlas, live, organization, reporting, show, training, weights  # noqa: F401
    from attngeo.applications.compare.compare import compare, compare_all
    from attngeo.applications.compare.comparison import ModelComparison, ModelMap
    from attngeo.applications.prune.plan import PrunePlan, prune_plan
    from attngeo.applications.prune.prune import load_pruned, prune
    from attngeo.atlas.atlas import Atlas
    from attngeo.data import bundled
    from attngeo.errors import AttngeoError
    from attngeo.organization.capture import capture
    from attngeo.organization.expansion import Expansion, SparsityControls
    from attngeo.organization.invariance import InvarianceReport, softmax_invariance
    from attngeo.organization.organize import Organization, organize
    from attngeo.organization.paraproduct import Paraproduct, paraproduct
    from attngeo.organization.tensor import NetworkTensor
    from attngeo.organization.tree import Tree
    from attngeo.reporting.report import report
    from attngeo.training.gradients.expected_terms import ExpectedTerms, expected_terms
    from attngeo.training.gradients.gradient_terms import gradient_terms
    from attngeo.training.gradients.terms import GradientTerms
    from attngeo.training.initialise import symmetric_init_
    from attngeo.training.monitoring.lightning_monitor import LightningMonitor
    from attngeo.training.monitoring.monitor import Monitor, watch
    from attngeo.training.monitoring.track import track
    from attngeo.training.pretraining.pretrain import pretrain
    from attngeo.weights.layout.layer import Layer
    from attngeo.weights.layout.layers import attention_layers
    from attngeo.weights.layout.rotary import RotaryPairs
    from attngeo.weights.scoring.form import Form
    from attngeo.weights.scoring.published import published
    from attngeo.weights.scoring.score import score
    from attngeo.weights.scoring.score_table import ScoreTable

__all__ = [
    "Atlas",
    "AttngeoError",
    "Expansion",
    "ExpectedTerms",
    "Form",
    "GradientTerms",
    "InvarianceReport",
    "Layer",
    "LightningMonitor",
    "ModelComparison",
    "ModelMap",
    "Monitor",
    "NetworkTensor",
    "Organization",
    "Paraproduct",
    "PrunePlan",
    "RotaryPairs",
    "ScoreTable",
    "SparsityControls",
    "Tree",
    "__version__",
    "attention_layers",
    "bundled",
    "capture",
    "compare",
    "compare_all",
    "expected_terms",
    "gradient_terms",
    "load_pruned",
    "organize",
    "paraproduct",
    "pretrain",
    "prune",
    "prune_plan",
    "published",
    "report",
    "score",
    "softmax_invariance",
    "symmetric_init_",
    "track",
    "watch",
]

# The module that defines each name, imported on first use.
_HOME = {
    "Atlas": "attngeo.atlas.atlas",
    "AttngeoError": "attngeo.errors",
    "SparsityControls": "attngeo.organization.expansion",
    "Expansion": "attngeo.organization.expansion",
    "ExpectedTerms": "attngeo.training.gradients.expected_terms",
    "Form": "attngeo.weights.scoring.form",
    "GradientTerms": "attngeo.training.gradients.terms",
    "InvarianceReport": "attngeo.organization.invariance",
    "Layer": "attngeo.weights.layout.layer",
    "LightningMonitor": "attngeo.training.monitoring.lightning_monitor",
    "ModelComparison": "attngeo.applications.compare.comparison",
    "ModelMap": "attngeo.applications.compare.comparison",
    "Monitor": "attngeo.training.monitoring.monitor",
    "NetworkTensor": "attngeo.organization.tensor",
    "Organization": "attngeo.organization.organize",
    "Paraproduct": "attngeo.organization.paraproduct",
    "PrunePlan": "attngeo.applications.prune.plan",
    "RotaryPairs": "attngeo.weights.layout.rotary",
    "ScoreTable": "attngeo.weights.scoring.score_table",
    "Tree": "attngeo.organization.tree",
    "attention_layers": "attngeo.weights.layout.layers",
    "bundled": "attngeo.data",
    "capture": "attngeo.organization.capture",
    "compare": "attngeo.applications.compare.compare",
    "compare_all": "attngeo.applications.compare.compare",
    "expected_terms": "attngeo.training.gradients.expected_terms",
    "gradient_terms": "attngeo.training.gradients.gradient_terms",
    "load_pruned": "attngeo.applications.prune.prune",
    "organize": "attngeo.organization.organize",
    "paraproduct": "attngeo.organization.paraproduct",
    "pretrain": "attngeo.training.pretraining.pretrain",
    "prune": "attngeo.applications.prune.prune",
    "prune_plan": "attngeo.applications.prune.plan",
    "published": "attngeo.weights.scoring.published",
    "report": "attngeo.reporting.report",
    "score": "attngeo.weights.scoring.score",
    "softmax_invariance": "attngeo.organization.invariance",
    "symmetric_init_": "attngeo.training.initialise",
    "track": "attngeo.training.monitoring.track",
    "watch": "attngeo.training.monitoring.monitor",
}


# Rooms that are reachable as attributes without an import of their own.
_ROOMS = ("applications", "atlas", "live", "organization", "reporting", "show", "training", "weights")


if not TYPE_CHECKING:  # a type checker takes the names from above, and reports those that do not exist

    def __getattr__(name: str) -> object:
        if name in _ROOMS:
            return import_module(f"attngeo.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'attngeo' has no attribute {name!r}")
        try:
            value = getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in ("accelerate", "tokenizers", "torch", "transformers"):
                raise
            from attngeo.errors import AttngeoError

            raise AttngeoError(f"attngeo.{name} needs torch and transformers: pip install 'attngeo[torch]'") from error
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
