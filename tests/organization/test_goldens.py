"""Every correct step of the research code, reproduced from stored inputs and outputs (tests/goldens)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attngeo.organization import (
    Tree,
    affinity_from_distance,
    cosine_affinity,
    diffusion_map,
    expand,
    flexible_tree,
    kernels,
    organize,
    tree_distance,
)
from attngeo.organization.affinity import diffusion, normalised

GOLDENS = Path(__file__).parents[1] / "goldens"
FILES = ("matrix_a0_b1", "matrix_a1_b0", "tensor_small", "tensor_structured")
AXES = ("row", "col", "chan")


@pytest.fixture(params=FILES)
def golden(request):
    with np.load(GOLDENS / f"{request.param}.npz") as stored:
        return dict(stored) | {"name": request.param}


@pytest.fixture(params=["numba", "numpy"], autouse=True)
def implementation(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "cpu", lambda: None)
    elif kernels.cpu() is None:
        pytest.skip("needs numba")


def assert_close(result, expected):
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


def golden_tree(golden, stage, axis):
    return Tree(golden[f"{stage}_{axis}_tree_levels"], golden[f"{stage}_{axis}_tree_leaforder"])


def axes(golden):
    return list(enumerate(AXES[: golden["input"].ndim]))


def test_cosine_affinities_equal_the_golden_ones(golden):
    for axis, name in axes(golden):
        if f"init_{name}_aff" in golden:
            assert_close(cosine_affinity(golden["input"], axis), golden[f"init_{name}_aff"])


def test_diffusion_equals_the_golden_one(golden):
    kernels = [key.removesuffix("_markov_sym") for key in golden if key.endswith("_markov_sym")]
    assert kernels
    for key in kernels:
        affinity = golden[f"{key}_aff"]
        assert_close(normalised(affinity), golden[f"{key}_markov_sym"])
        walk = diffusion(affinity)
        assert_close(walk.values[0], golden[f"{key}_eigvals"])
        signs = np.where(walk.vectors[:1] < 0, -1, 1)
        assert_close(walk.vectors * signs, golden[f"{key}_eigvecs"])


def test_trees_from_affinities_equal_the_golden_ones(golden):
    keys = [key for key in golden if key.endswith("_tree_levels") and not key.startswith("final")]
    assert len(keys) > 6
    for key in keys:
        found = flexible_tree(golden[key.replace("tree_levels", "aff")])
        np.testing.assert_array_equal(found.levels, golden[key], err_msg=key)


def test_tree_distances_and_affinities_equal_the_golden_ones(golden):
    array, name = golden["input"], golden["name"]
    alpha, beta = (1.0, 0.0) if name.endswith("a1_b0") else (0.0, 1.0)
    iterations = sum(key.endswith("row_emd") for key in golden)

    def tree_at(iteration, axis):
        return golden_tree(golden, "init" if iteration < 0 else f"it{iteration}", axis)

    assert iterations >= 3
    for it in range(iterations):
        if array.ndim == 3:
            cases = {  # the trees that the research code used, including its mistake (goldens/README)
                "chan": {0: tree_at(-1, "row"), 1: tree_at(-1, "col")},
                "row": {1: tree_at(it - 1, "col"), 2: tree_at(it, "chan")},
                "col": {0: tree_at(it, "row"), 2: tree_at(it, "chan")},
            }
        else:
            newest = it if beta == 1.0 else it - 1
            cases = {"col": {0: tree_at(it - 1, "row")}, "row": {1: tree_at(newest, "col")}}
        for axis, others in cases.items():
            found = tree_distance(array, AXES.index(axis), others, alpha, beta)
            assert_close(found, golden[f"it{it}_{axis}_emd"])
            assert_close(affinity_from_distance(golden[f"it{it}_{axis}_emd"]), golden[f"it{it}_{axis}_aff"])


def test_haar_bases_and_coefficients_equal_the_golden_ones(golden):
    array = golden["input"]
    trees = [golden_tree(golden, "final", name) for _, name in axes(golden)]
    for (_, name), found in zip(axes(golden), trees, strict=True):
        assert_close(found.haar(), golden[f"haar_{name}"])
    expansion = expand(array, trees)
    if array.ndim == 2:
        assert_close(expansion.coefficients, golden["bihaar"])
        assert expansion.entropy() == pytest.approx(float(golden["l1"]), rel=1e-8)
        return
    assert_close(expansion.coefficients, golden["trihaar"])
    assert expansion.entropy("network") == pytest.approx(float(golden["trihaar_l1"]), rel=1e-8)
    assert_close(expansion.entropy("head"), golden["head_l1"])
    for head in range(array.shape[2]):
        assert_close(expand(array[:, :, head], trees[:2]).coefficients, golden["bihaar"][:, :, head])


@pytest.mark.parametrize("golden", FILES[2:], indirect=True)
def test_diffusion_maps_equal_the_golden_ones(golden):
    coordinates, expected = diffusion_map(golden["final_chan_aff"]), golden["diff_coords_scaled"]
    assert_close(coordinates * np.sign((coordinates * expected).sum(0)), expected)


def test_the_whole_questionnaire_gives_the_golden_trees():
    with np.load(GOLDENS / "matrix_a0_b1.npz") as golden:
        found = organize(golden["input"], iterations=3, alpha=0.0, beta=1.0)
        for axis, name in enumerate(("row", "col")):
            np.testing.assert_array_equal(found.trees[axis].levels, golden[f"final_{name}_tree_levels"])
        for step, it in zip(found.history, range(3), strict=False):
            np.testing.assert_array_equal(step.trees[1].levels, golden[f"it{it}_col_tree_levels"])


def test_the_planted_trees_of_the_structured_tensor_are_recovered():
    with np.load(GOLDENS / "tensor_structured.npz") as golden:
        found = organize(golden["input"])
        truth = [Tree(golden[f"truth_levels{axis}"]) for axis in range(3)]
        ours = expand(golden["input"], found.trees).entropy()
        assert ours <= 1.10 * expand(golden["input"], truth).entropy()
