"""Name the towers of a model and number their layers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attngeo.weights.layout.families import family
from attngeo.weights.layout.sites import Site

_MODALITIES = (
    ("vision", re.compile(r"vision|visual|image|\bvit\b|\bimg", re.IGNORECASE)),
    ("audio", re.compile(r"audio|speech", re.IGNORECASE)),
    ("text", re.compile(r"text|language|\bllm?\b", re.IGNORECASE)),
)
_CAUSAL = re.compile(r"CausalLM|LMHead|ForConditionalGeneration")


def name_stacks(sites: Sequence[Site], config: Mapping[str, Any] | None) -> list[tuple[str, int, Site]]:
    """(stack, layer, site) for every site: stacks in order of appearance, layers from 0 within each."""
    towers = list(dict.fromkeys(site.template for site in sites if not site.cross))
    crossed = {_block(site.template) for site in sites if site.cross}
    named = _tower_names(towers, {site.template: site for site in sites}, crossed, config)
    stacks: dict[str, list[Site]] = {}
    for site in sites:
        stacks.setdefault("cross" if site.cross else named[site.template], []).append(site)
    return [
        (stack, layer, site)
        for stack, members in stacks.items()
        for layer, site in zip(_numbers(members), members, strict=True)
    ]


def _numbers(sites: Sequence[Site]) -> list[int]:
    """The model's own layer number where one number tells the layers apart, a running count where several do."""
    own = [site.indices[-1] if site.indices else 0 for site in sites]
    plain = len({site.template for site in sites}) == 1 and len({site.indices[:-1] for site in sites}) == 1
    return own if plain and len(set(own)) == len(own) else list(range(len(sites)))


def _block(template: str) -> str:
    return template.rpartition(".")[0]


def _tower_names(
    towers: Sequence[str], example: Mapping[str, Site], crossed: Collection[str], config: Mapping[str, Any] | None
) -> dict[str, str]:
    modality = {tower: _modality(example[tower]) for tower in towers}
    names: dict[str, str] = {}
    for tower in towers:
        alone = [t for t in towers if modality[t] == modality[tower]]
        if len(set(modality.values())) == 1:
            # a tower may be all that is left of two (LongT5's encoder attends in pieces): its path still tells
            pair = len(alone) > 1 or (config or {}).get("is_encoder_decoder") is True
            names[tower] = _side(tower) if pair and _side(tower) else _direction(tower, crossed, config)
        elif not modality[tower]:
            # beside a tower that is named, the unnamed one: the language model's layers, or a decoder over a backbone
            text = {"vision", "audio"} & set(modality.values()) and _side(tower) != "decoder"
            names[tower] = "text" if text else _side(tower) or _direction(tower, crossed, config)
        else:
            sides = {_side(t) for t in alone}
            names[tower] = f"{modality[tower]}-{_side(tower)}" if len(sides) > 1 and _side(tower) else modality[tower]
    return _tell_apart(names)


def _modality(site: Site) -> str:
    scope = site.scope.name if site.scope is not None else None
    for name, words in _MODALITIES:
        if words.search(scope or site.path):
            return name
    return scope or ""


def _side(tower: str) -> str:
    """ "encoder" or "decoder", whichever word stands last in the path; "" where neither does."""
    sides = re.findall(r"(?:enc|dec)oder(?!_)|\b(?:enc|dec)\b", tower.lower())  # GGUF shortens the words
    return sides[-1][:3] + "oder" if sides else ""


def _direction(tower: str, crossed: Collection[str], config: Mapping[str, Any] | None) -> str:
    """ "decoder" for causal attention, "encoder" for bidirectional."""
    config = config or {}
    kind = str(config.get("model_type", ""))
    causal = family(kind).causal
    if config.get("is_decoder") is True:
        causal = True
    if kind.startswith("gguf:") and (causal is None or "is_causal" in config):
        causal = config.get("is_causal", True)  # GGUF says so only where attention is not causal
    if causal is None and config.get("architectures"):
        causal = any(_CAUSAL.search(name) for name in config["architectures"])
    if causal is None:  # cross-attention stands beside a decoder's own
        causal = _side(tower) == "decoder" or _block(tower) in crossed
    return "decoder" if causal else "encoder"


def _tell_apart(names: dict[str, str]) -> dict[str, str]:
    """Towers that ended up with one name get the first word of their path that no other of them has."""
    for name in set(names.values()):
        same = [tower for tower, own in names.items() if own == name]
        if len(same) < 2:
            continue
        for tower in same[1:]:
            others = {word for other in same if other != tower for word in other.split(".")}
            own = [word for word in tower.split(".") if word not in others and word != "*"]
            names[tower] = f"{name}-{own[0]}" if own else f"{name}-{same.index(tower)}"
    return names
