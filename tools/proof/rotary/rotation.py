"""Find out how the heads of a live model rotate: compare its products at non-zero positions with x_i M_Δ x_jᵀ.

A rule of `attngeo.weights.layout.rope` is a hypothesis: which dimensions form a pair, how many rotate and where.
The one whose products agree with those of the live model, for offsets Δ from −300 to 300, is the fact that the package
ships. Where none agrees, or several do that differ, the rotation is not proved.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from attngeo.errors import AttngeoError
from attngeo.weights.layout.facts import Scope
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.rope import NOPE, is_usual_kind, layer_kind, make_pairs, rope_settings
from attngeo.weights.layout.rotary import RotaryPairs
from tools.proof.agreement import TOLERANCE, Match, compare, product_error
from tools.proof.config_defaults import SIZES
from tools.proof.product_recorder import Product
from tools.proof.recorded_runs import record_attention
from tools.proof.rotary.patch_positions import patch_positions

Rule = dict[str, Any]
_DIFFERENT = 1e-2  # relative error above which a product depends on the positions
_POSITIONAL = re.compile(r"pos|rot|rope|cos|sin|freq|grid|emb")  # in the names of parameters
_ANGLES = re.compile(r"rot|rope|cos|sin\b|sincos|freq")  # in the code of a module that rotates
_AXES = ("blocks", "split", "interleaved", "separate")  # ways in which pairs follow two axes
_WRONG_BASE = 1.02  # frequencies raised to this power must be noticed


@dataclass(frozen=True)
class LocatedLayer:
    """A layer cut from a checkpoint and the products of the live model that it reproduces at position zero."""

    weights: Layer
    places: tuple[tuple[int, Match], ...]  # (index among all products of the model, match)
    stored: Tensor  # the tensor that holds its queries

    @property
    def scope(self) -> Scope:
        assert self.weights.scope is not None
        return self.weights.scope

    @property
    def kind(self) -> str | None:
        return layer_kind(self.scope, self.weights.indices[-1]) if self.weights.indices else None


@dataclass
class RotaryVerdict:
    """Rules by (template, kind of layer), and the reasons where there is none."""

    rules: dict[tuple[str, str | None], Rule] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # template → why its rotation is not proved
    worst: float = 0.0  # largest relative error of a rule that agrees
    unusual: set[str | None] = field(default_factory=set)  # kinds that the default config of the type does not have

    def add(self, layer: LocatedLayer, outcome: Rule | str) -> None:
        """Keep the outcome of `examine` for one layer."""
        key = layer.weights.template, layer.kind
        if not is_usual_kind(layer.scope, layer.kind):
            self.unusual.add(layer.kind)
        if isinstance(outcome, str):
            self.reasons[layer.weights.template] = outcome
        elif self.rules.setdefault(key, outcome) != outcome:
            self.reasons[layer.weights.template] = "layers of one kind rotate differently"

    def stored(self) -> list[Rule]:
        """Return the rules to ship; where all usual kinds of layers at a template rotate alike, one for all of them."""
        rules: list[Rule] = []
        for template in dict.fromkeys(template for template, _ in self.rules):
            if template in self.reasons:
                continue
            found = {kind: rule for (where, kind), rule in self.rules.items() if where == template}
            if NOPE in found:  # first, since the one for all would fit it too
                rules.append({"site": template, "kind": NOPE, **found.pop(NOPE)})
            alike = all(rule == next(iter(found.values())) for rule in found.values()) and not self.unusual & set(found)
            for kind, rule in list(found.items())[:1] if alike else found.items():
                rules.append({"site": template, **({} if alike or kind is None else {"kind": kind}), **rule})
        return rules


Runs = list[list[Product]]


def search(layer: LocatedLayer, run: list[Product]) -> LocatedLayer:
    """Return `layer` with the products of a rotating run that some hypothesis reproduces.

    For models whose positions cannot be made zero, so that nothing is known of the products at position zero.
    """
    hypotheses: list[RotaryPairs | None] = [None]
    for rule, rotary in _hypotheses(layer.scope, layer.kind, layer.weights.query.shape[-1]):
        if "back" not in rule and rotary.axes is None and rotary not in hypotheses:
            hypotheses.append(rotary)
    places = []
    for index, product in enumerate(run):
        for hypothesis in hypotheses:
            match = compare(layer.weights, product, hypothesis)
            if match is None:
                break
            if match.error < TOLERANCE:
                places.append((index, match))
                break
    return replace(layer, places=tuple(places))


def is_free_of_positions(layer: LocatedLayer, model: nn.Module) -> bool:
    """Return whether the layer's attention, called by itself, gives plain products and takes no angles.

    It takes none if no parameter stands for positions, or if its code only adds them to the tokens.
    """
    module = record_attention(model, layer.weights, layer.stored, rotating=True)[1]
    if module is None:
        return False
    positions = any(_POSITIONAL.search(name) for name in inspect.signature(module.forward).parameters)
    return not positions or not _ANGLES.search(inspect.getsource(type(module)))


def examine(layer: LocatedLayer, runs: Runs) -> tuple[Rule | str, float]:
    """Return the one rule that agrees with all runs, or why there is none; and its largest error.

    runs: the products of the rotating model, in the order of `LocatedLayer.places`, once per set of positions
    """
    evidence = [[(run[index], match) for index, match in layer.places if _several(run[index])] for run in runs]
    if not all(evidence):
        return "no product of several tokens", 0.0
    plain = [[product_error(layer.weights, product, match) for product, match in run] for run in evidence]
    if all(error < TOLERANCE for run in plain for error in run):
        return {"pairs": "none"}, max(error for run in plain for error in run)
    turning = [
        [item for item, error in zip(run, errors, strict=True) if error > _DIFFERENT]
        for run, errors in zip(evidence, plain, strict=True)
    ]
    if not all(turning):
        return "the products hardly depend on the positions", 0.0
    hypotheses = list(_hypotheses(layer.scope, layer.kind, layer.weights.query.shape[-1]))
    nearest = float("inf")
    for unusual in ((), ("back",), ("axes",)):  # two axes explain one axis too, where positions are the same on both
        agreeing: list[tuple[Rule, RotaryPairs, float]] = []
        for rule, rotary in hypotheses:
            if tuple(key for key in ("back", "axes") if key in rule) != unusual:
                continue
            if any(rotary == other for _, other, _ in agreeing):
                continue  # the same pairs in other words
            error = max(min(_error(layer.weights, item, rotary) for item in run) for run in turning)
            nearest = min(nearest, error)
            if error < TOLERANCE:
                agreeing.append((rule, rotary, error))
        if agreeing:
            break
    if len(agreeing) != 1:
        what = "no hypothesis" if not agreeing else "several hypotheses"
        return f"products at non-zero positions agree with {what} (nearest {nearest:.0e})", nearest
    rule, rotary, error = agreeing[0]
    wrong = _with_wrong_base(rotary)
    if max(min(_error(layer.weights, item, wrong) for item in run) for run in turning) < 10 * TOLERANCE:
        return "a wrong base goes unnoticed", error
    return rule, error


def agrees(layer: LocatedLayer, rule: Rule, runs: Runs, scope: Scope) -> bool:
    """Return whether a rule agrees with runs of the model under another config, whose part for the layer is `scope`."""
    try:
        rotary = make_pairs(rule, rope_settings(scope, layer.kind), scope, layer.weights.query.shape[-1])
    except AttngeoError:
        return False
    evidence = [[(run[index], match) for index, match in layer.places if _several(run[index])] for run in runs]
    return all(run and min(_error(layer.weights, item, rotary) for item in run) < TOLERANCE for run in evidence)


def _several(product: Product) -> bool:
    return max(product.query.shape[1], product.key.shape[1]) > 1


def _hypotheses(scope: Scope, kind: str | None, size: int) -> Iterator[tuple[Rule, RotaryPairs]]:
    """Yield the rules to try on heads of this size, with the pairs they give under the layer's own config."""
    try:
        settings = rope_settings(scope, kind)
    except AttngeoError:
        return
    variants: list[dict[str, Any]] = [
        {},
        {"back": True},
        *({"axes": layout} for layout in _AXES),
    ]
    for counted in (*(key for key in SIZES if isinstance(scope.get(key), int)), "share", "head"):
        for at in ("start", "end"):
            for pairs in ("halves", "neighbours"):
                for more in variants:
                    rule = {"pairs": pairs, "size": counted, "at": at, **more}
                    try:
                        yield rule, make_pairs(rule, settings, scope, size)
                    except AttngeoError:
                        continue


def _error(weights: Layer, item: tuple[Product, Match], rotary: RotaryPairs) -> float:
    """Return the error under the positions that the product has; on two axes, those that the model's angles give."""
    product, match = item
    if rotary.axes is None:
        return product_error(weights, product, match, rotary, product.positions)
    candidates = patch_positions(product, rotary)
    return min((product_error(weights, product, match, rotary, p) for p in candidates), default=float("inf"))


def _with_wrong_base(rotary: RotaryPairs) -> RotaryPairs:
    wrong = rotary.frequencies.clip(0) ** _WRONG_BASE
    return RotaryPairs(rotary.pairs, wrong, rotary.factor, rotary.window, rotary.axes)


# Switches that turn rotation on or off, or change the pairs: model type → values beside the default one.
SWITCHED: dict[str, tuple[dict[str, Any], ...]] = {
    "esm": ({"position_embedding_type": "rotary"},),
    "falcon": ({"alibi": True},),
    "wav2vec2-conformer": ({"position_embeddings_type": "rotary"},),
    "wav2vec2-bert": ({"position_embeddings_type": "rotary"},),
    "granitemoehybrid": ({"position_embedding_type": "rope"}, {"position_embedding_type": "nope"}),
    **{kind: ({"rope_interleave": False},) for kind in ("deepseek_v3", "glm4_moe_lite", "youtu", "longcat_flash")},
}


# Configs that differ from the one of the type's tiny model, to learn which settings the model reads.

_YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: tuple[dict[str, Any], ...] = (
    {**_YARN, "partial_rotary_factor": 0.5},
    {**_YARN, "partial_rotary_factor": 0.25},
    _YARN,
    {"rope_theta": 500.0, "partial_rotary_factor": 0.5},
    {"rope_theta": 500.0},
)


def vary(config: Any, changes: dict[str, Any]) -> int:
    """Set these rotary settings in `config` and its sub-configs, in place; return how many have such settings."""
    from tools.proof.tiny_config import sub_configs

    count = sum(vary(sub, changes) for sub in sub_configs(config).values())
    parameters = getattr(config, "rope_parameters", None)
    if isinstance(parameters, dict) and parameters:
        nested = [value for value in parameters.values() if isinstance(value, dict)]
        for number, part in enumerate(nested or [parameters]):
            if part.get("rope_type") != "axial":
                part.update(changes)
            part["rope_theta"] = changes["rope_theta"] * (number + 1)  # kinds of layers differ
        count += 1
    elif isinstance(getattr(config, "rope_theta", None), (int, float)) and "rope_type" not in changes:
        config.rope_theta = changes["rope_theta"]
        count += 1
    return count


def add_settings_read(
    verdict: RotaryVerdict,
    layers: list[LocatedLayer],
    variants: Iterator[tuple[Runs, Callable[[LocatedLayer], Scope]]],
) -> None:
    """Add to each rule which settings of the config the live model was shown to read.

    variants: the runs of a model with another config, and the config's part for a layer
    """
    turning = [key for key, rule in verdict.rules.items() if rule["pairs"] != "none"]
    reads: dict[tuple[str, str | None], set[str]] = {key: set() for key in turning}
    for runs, scope_of_layer in variants:
        for key in turning:
            same = [layer for layer in layers if (layer.weights.template, layer.kind) == key]
            if same and all(agrees(layer, verdict.rules[key], runs, scope_of_layer(layer)) for layer in same):
                reads[key] |= _different(same[0], scope_of_layer(same[0]))
        if all(len(found) == 3 for found in reads.values()):
            break
    for key in turning:
        rule = verdict.rules[key]
        full = rule["size"] == "share" and "share" not in reads[key] and _whole(key, layers)
        verdict.rules[key] = rule | {"reads": sorted(reads[key])} | ({"size": "head"} if full else {})


def _different(layer: LocatedLayer, scope: Scope) -> set[str]:
    """Return which settings differ between the layer's own config and another one."""
    before, after = rope_settings(layer.scope, layer.kind), rope_settings(scope, layer.kind)
    named = {"base": before.base != after.base, "scaling": before.kind != after.kind}
    return {name for name, differs in (named | {"share": before.share != after.share}).items() if differs}


def _whole(key: tuple[str, str | None], layers: list[LocatedLayer]) -> bool:
    """Return whether the share of the layers' own config is 1, so that nothing shows that the model reads it."""
    same = [layer for layer in layers if (layer.weights.template, layer.kind) == key]
    return all(rope_settings(layer.scope, layer.kind).share == 1 for layer in same)
