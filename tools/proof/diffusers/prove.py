"""The verdict on a class of diffusers: does every layer of its tiny models reproduce the products of the live model?"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from attngeo.errors import LayoutError
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.sources.checkpoint import PREFIX
from tools.proof.agreement import TOLERANCE
from tools.proof.comparable_model import is_qk_norm, randomise, reduce_norms, restore_norms
from tools.proof.diffusers.compare import SiteMatch, match_site
from tools.proof.diffusers.example import Example
from tools.proof.diffusers.head_rules import head_rules
from tools.proof.diffusers.images import IMAGES
from tools.proof.diffusers.unets import UNETS
from tools.proof.diffusers.videos import VIDEOS
from tools.proof.norm_rules import qk_norms_centre
from tools.proof.product_recorder import Product, recorded_products
from tools.proof.verdict import Verdict, assume

EXAMPLES: dict[str, list[Example]] = {**UNETS.by_class, **IMAGES.by_class, **VIDEOS.by_class}
# Classes without a product of queries and keys that a form describes.
REFUSED = {
    name: "its self-attention is linear: it never forms the products of queries and keys"
    for name in ("SanaTransformer2DModel", "SanaControlNetModel", "SanaVideoTransformer3DModel")
} | {"StableAudio3DiTModel": "its attention is the difference of two softmaxes, so a head has two forms"}
_SWITCHES = ("only_cross_attention", "double_self_attention")  # change which layers are cross-attention
_POSITIONS = re.compile("rotary|rope")  # arguments by which a pipeline hands over rotary embedding


@dataclass(frozen=True)
class ProvedLayer:
    """One layer of a tiny model, and how it agrees with the live model."""

    weights: Layer
    match: SiteMatch  # with all positions zero
    unrotated: bool  # also right where positions keep their values
    normalised: bool  # queries and keys are normalised before their product

    @property
    def result(self) -> str:
        """Return "right", or what is wrong."""
        if self.match.error == float("inf"):
            return "not run"
        if self.match.error > TOLERANCE:
            return "mismatch"
        if not self.match.noticed:
            return "swapped heads go unnoticed"
        if self.match.cross != self.weights.cross:
            return "cross-attention" if self.match.cross else "self-attention"
        return "right"


@dataclass(frozen=True)
class ProvedExample:
    """The layers of one tiny model."""

    layers: list[ProvedLayer]
    unplaced: int  # products of the live model that no layer reproduces
    gainless: bool  # QK-norms subtract the mean and have no gain


def prove_class(name: str) -> Verdict:
    """Return the verdict on a class, from all its examples."""
    import diffusers

    kind = PREFIX + name
    if name in REFUSED:
        return Verdict(kind, "refused", REFUSED[name])
    model_class = getattr(diffusers, name)
    verdict = Verdict(kind, "right", cross=[])
    assume(
        kind,
        status="right",
        defaults=class_defaults(model_class),
        heads=head_rules(name),
        cross=None,
        skip=[],
        rotary=[],
    )
    try:
        proved = {index: prove_example(model_class, example) for index, example in enumerate(EXAMPLES[name])}
        for index, example in enumerate(EXAMPLES[name]):
            if not any(example.config.get(switch) for switch in _SWITCHES):
                verdict.cross = sorted(_cross_templates(proved[index].layers).union(verdict.cross or []))
        assume(kind, cross=verdict.cross)
        for index, example in enumerate(EXAMPLES[name]):
            if any(layer.match.cross != layer.weights.cross for layer in proved[index].layers):
                proved[index] = prove_example(model_class, example)  # now that cross-attention is known
    except LayoutError as error:
        return Verdict(kind, "none" if "no self-attention" in str(error) else "refused", _one_line(error))
    except Exception as error:
        return Verdict(kind, "unbuilt", f"{type(error).__name__}: {_one_line(error)}")
    return _judge(verdict, list(proved.values()), rotary_given=_takes_positions(model_class))


def _cross_templates(layers: list[ProvedLayer]) -> set[str]:
    """Return the templates whose layers are all cross-attention in the live model."""
    cross = {layer.weights.template for layer in layers if layer.match.cross}
    return cross - {layer.weights.template for layer in layers if not layer.match.cross}


def _judge(verdict: Verdict, proved: list[ProvedExample], *, rotary_given: bool) -> Verdict:
    """Fill the verdict from the layers of all examples."""
    layers = [layer for example in proved for layer in example.layers]
    unrotated: dict[str, bool] = {}
    for layer in layers:
        template = layer.weights.template
        if verdict.sites.get(template, "right") == "right":
            verdict.sites[template] = layer.result
        if layer.result == "right":
            verdict.worst = max(verdict.worst, layer.match.error)
            unrotated[template] = unrotated.get(template, True) and layer.unrotated
    for layer in proved[0].layers:
        verdict.stacks[layer.weights.stack] = verdict.stacks.get(layer.weights.stack, 0) + 1
    verdict.layers = len(layers)
    verdict.unplaced = sum(example.unplaced for example in proved)
    verdict.qk_norm = all(layer.normalised for layer in layers)
    verdict.gainless = verdict.qk_norm and all(example.gainless for example in proved)
    if any(layer.normalised for layer in layers) and not verdict.qk_norm:
        verdict.note = "qk-norm in some layers"
    wrong = {template: result for template, result in verdict.sites.items() if result != "right"}
    verdict.skip = list(wrong)
    verdict.reason = "; ".join(f"{template}: {result}" for template, result in wrong.items())
    if not any(layer.result == "right" and not layer.weights.cross for layer in layers):
        verdict.status = "refused" if "mismatch" in wrong.values() else "unproven"
    # Where a pipeline hands over the rotary embedding, a run without it shows nothing.
    verdict.rotary = [
        {"site": template, "pairs": "none"}
        for template, still in sorted(unrotated.items())
        if still and template not in wrong and not rotary_given
    ]
    return verdict


def prove_example(model_class: Any, example: Example) -> ProvedExample:
    """Build, save and run one tiny model; return its layers."""
    torch.manual_seed(0)
    with recorded_products():  # positions are zero in tables that the constructor makes, too
        model = model_class(**example.config).eval().float()
    randomise(model)
    gainless = qk_norms_centre(model) and not _qk_gains(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        assume(PREFIX + model_class.__name__, gainless=gainless)
        with open_layers(folder) as opened:
            weights = list(opened)
    products = record(model, example, rotating=False)
    turning = model_class(**example.config).eval().float()
    turning.load_state_dict(state)
    with_positions = record(turning, example, rotating=True)
    layers = [
        ProvedLayer(
            layer,
            match_site(model, layer, products),
            match_site(turning, layer, with_positions).error <= TOLERANCE,
            _normalises(model, layer),
        )
        for layer in weights
    ]
    placed = frozenset[int]().union(*(layer.match.products for layer in layers))
    return ProvedExample(layers, len(products) - len(placed), gainless)


def record(model: nn.Module, example: Example, *, rotating: bool) -> list[Product]:
    """Return the products of queries and keys in one run of the model, QK-norms reduced to their gains."""
    reduce_norms(model)
    torch.manual_seed(1)
    inputs = example.inputs()
    try:
        with _Float32Only(), recorded_products(rotating=rotating) as recorder, torch.no_grad():
            getattr(model, example.method)(**inputs)
    finally:
        restore_norms(model)
    return recorder.products


def _normalises(model: nn.Module, layer: Layer) -> bool:
    """Return whether the attention of `layer` normalises its queries and keys, with or without a gain."""
    attention = model.get_submodule(layer.storage.query.rpartition(".")[0].rpartition(".")[0])
    return any(is_qk_norm(name, child) for name, child in attention.named_children())


def _qk_gains(model: nn.Module) -> bool:
    """Return whether a norm on queries or keys has a gain."""
    norms = (child for parent in model.modules() for name, child in parent.named_children() if is_qk_norm(name, child))
    return any(getattr(norm, "weight", None) is not None for norm in norms)


class _Float32Only(TorchFunctionMode):
    """Leaves out casts to bfloat16, which some classes make before the product; they would hide small errors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "to" and torch.bfloat16 in args:
            return args[0]
        return func(*args, **(kwargs or {}))


def class_defaults(model_class: Any) -> dict[str, Any]:
    """Return the values that a config.json of the class may leave out: head counts, head sizes and switches."""
    parameters = inspect.signature(model_class.__init__).parameters
    defaults: Mapping[str, Any] = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    return {name: value for name, value in defaults.items() if ("head" in name or name == "axes_dims") and value}


def _takes_positions(model_class: Any) -> bool:
    return any(_POSITIONS.search(name) for name in inspect.signature(model_class.forward).parameters)


def _one_line(error: Exception) -> str:
    return re.sub(r"/\S*tmp\S*: ", "", " ".join(str(error).split()))[:300]
