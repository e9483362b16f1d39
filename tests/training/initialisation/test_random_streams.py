"""Every initialisation draws from a random stream of its own, which no other weight of the model comes from."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from attngeo.training.initialisation.authors import authors_init_
from attngeo.training.initialisation.by_name import INITIALISATIONS, initialise_
from attngeo.training.initialisation.result import Initialisation
from attngeo.training.initialisation.rotations import generator
from attngeo.training.pretraining.architectures import Bert, Shape

_BOUND = 0.14  # independent draws stay below 0.11 over all lags; a shared stream gives 0.36
_DRAWING = ("authors", "mimetic", "rotated", "skewed")


def initial_model(seed: int) -> Bert:
    model = Bert(Shape(layers=2, hidden=64, heads=2, intermediate=96, vocabulary=256, length=32, causal=False))
    model.initialise(seed)
    return model


def largest_correlation(one: Tensor, other: Tensor) -> float:
    """Return the largest |correlation| of two matrices, read row by row, over all lags between them."""
    a, b = (w.detach().double().flatten() for w in (one, other))
    a, b = (a - a.mean()) / a.std(), (b - b.mean()) / b.std()
    n = len(a) + len(b)
    products = torch.fft.irfft(torch.fft.rfft(a, n).conj() * torch.fft.rfft(b, n), n)  # [n], one sum per lag
    return float(products.abs().max()) / min(len(a), len(b))


def written_and_other_correlation(model: Bert, initialisation: Initialisation | None) -> float:
    """Return the largest correlation of a matrix that the initialisation wrote with one that it did not."""
    assert initialisation is not None
    written = {name for layer in initialisation.layers for name in layer.tensors}
    matrices = {name: weight for name, weight in model.named_parameters() if weight.dim() == 2 and len(weight) > 1}
    return max(
        largest_correlation(matrices[name], weight)
        for name in written & matrices.keys()
        for other, weight in matrices.items()
        if other not in written
    )


@pytest.mark.parametrize("name", [name for name in INITIALISATIONS if name != "baseline"])
@pytest.mark.parametrize("seed", [0, 3])
def test_what_is_written_correlates_with_no_other_weight(name: str, seed: int) -> None:
    model = initial_model(seed)
    assert written_and_other_correlation(model, initialise_(model, name, seed=seed)) < _BOUND


def test_a_stream_shared_with_the_embeddings_would_be_seen() -> None:
    model = initial_model(0)
    shared = torch.Generator().manual_seed(0)  # the seed of the first matrix
    assert written_and_other_correlation(model, authors_init_(model, seed=shared)) > 2 * _BOUND


def test_no_two_recipes_and_no_weight_share_a_stream() -> None:
    """Rotations and singular vectors hide what they were made from, so the seeds themselves are compared."""
    seeds = range(20)
    recipes = {generator(seed, name).initial_seed() for seed in seeds for name in _DRAWING}
    weights = {seed * 100_003 + number for seed in seeds for number in range(1000)}  # as `Bert.initialise` draws them
    assert len(recipes) == len(seeds) * len(_DRAWING)
    assert not recipes & weights
