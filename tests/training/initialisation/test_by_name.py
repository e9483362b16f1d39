"""Initialisations by name: the same seed gives the same weights, and only the promised weights change."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from attngeo.errors import InputError
from attngeo.training.initialisation.by_name import INITIALISATIONS, initialise_
from attngeo.training.initialisation.mimetic import mimetic_init_
from tests.weights import tiny_models

pytestmark = pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning")


@pytest.mark.parametrize("name", [name for name in INITIALISATIONS if name != "baseline"])
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    scale = None if "mimetic" in name or name == "authors" else "unit"
    once, twice, other = (tiny_models.bert() for _ in range(3))
    for model, seed in ((once, 5), (twice, 5), (other, 6)):
        initialise_(model, name, scale=scale, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(once.parameters(), twice.parameters(), strict=True))
    random = name in ("rotated", "skewed", "small-skewed", "authors") or "mimetic" in name
    assert random != all(torch.equal(a, b) for a, b in zip(once.parameters(), other.parameters(), strict=True))
    changed = {
        name
        for name, value in tiny_models.bert().named_parameters()
        if not torch.equal(value, once.get_parameter(name))
    }
    allowed = ("query.weight", "key.weight")
    if name == "authors":
        allowed += ("query.bias", "key.bias", "value.weight", "value.bias")
    elif "value" in name:
        allowed += ("value.weight", "attention.output.dense.weight")
    assert all(one.endswith(allowed) for one in changed)
    assert all(any(one.endswith(ending) for one in changed) for ending in allowed)


@pytest.mark.parametrize("name", [name for name in INITIALISATIONS if "mimetic" in name])
def test_the_names_of_mimetic_initialisations_say_their_strength_and_whether_values_are_set(name: str) -> None:
    model, direct = tiny_models.bert(), tiny_models.bert()
    initialise_(model, name, seed=4)
    mimetic_init_(direct, strength=float(name.split("-")[1]), value=name.endswith("-value"), seed=4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), direct.parameters(), strict=True))


def test_the_baseline_changes_nothing() -> None:
    model = tiny_models.bert()
    assert initialise_(model, "baseline") is None
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), tiny_models.bert().parameters(), strict=True))


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    model = tiny_models.bert()
    with pytest.raises(InputError, match="start 'symetric' does not exist, did you mean 'symmetric'"):
        initialise_(model, "symetric")
    with pytest.raises(InputError, match="start 'x' does not exist; there are baseline, symmetric, "):
        initialise_(model, "x")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), tiny_models.bert().parameters(), strict=True))
