"""Results as values: they compare, save to one file and read back the same, draw themselves; nothing is guessed at."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attngeo
from attngeo.errors import InputError
from attngeo.organization import (
    Expansion,
    InvarianceReport,
    NetworkTensor,
    Organization,
    Tree,
    organize,
    paraproduct,
    planted,
    softmax_invariance,
)

torch = pytest.importorskip("torch")


def tensor(mask: bool = True) -> NetworkTensor:
    array, _ = planted((8, 7, 5), 0)
    allowed = np.ones((8, 7), bool)
    allowed[0, 1:] = False
    labels = tuple(f"q{i} “é”" for i in range(8)), tuple("abcdefg"), tuple(f"L{h // 2}H{h % 2}" for h in range(5))
    return NetworkTensor(array, allowed if mask else None, *labels, "logits", "a model")


def test_tensors_with_a_mask_are_other_tensors():
    assert tensor() != tensor(mask=False)
    assert repr(tensor()) == "NetworkTensor(logits, 8 queries × 7 keys × 5 heads, masked)"


def test_per_head_masks_are_kept_and_taken(tmp_path):
    mask = np.ones((8, 7, 5), bool)
    mask[:, 2, 4] = False
    made = NetworkTensor(tensor().values, mask)
    assert NetworkTensor.load(made.save(tmp_path / "t.npz")) == made
    part = made.take([1, 0], [2, 3], [4, 0])
    np.testing.assert_array_equal(part.values, made.values[np.ix_([1, 0], [2, 3], [4, 0])])
    np.testing.assert_array_equal(part.mask[:, :, 0], [[False, True]] * 2)
    assert part.queries == ("1", "0") and part.heads == ("4", "0")
    from_torch = NetworkTensor(torch.tensor(made.values), torch.tensor(mask))
    assert from_torch == made


def results():
    """One of each, made anew."""
    found = organize(tensor())
    rows, columns = found.trees[:2]
    return {
        "tensor": tensor(),
        "tree": Tree(found.trees[0].levels, found.trees[0].order),
        "organization": found,
        "matrix": organize(tensor().values[:, :, 0]),
        "expansion": found.expand(),
        "comparison": found.expand().compare(),
        "report": softmax_invariance(tensor(), bootstrap=40),
        "small report": softmax_invariance(np.ones((2, 2, 1)), bootstrap=40),  # nearly all of it is NaN
        "paraproduct": paraproduct(tensor().values[:, :, 0], rows, columns, "softmax"),
    }


@pytest.fixture(scope="module")
def twice():
    return results(), results()


NAMES = ("tensor", "tree", "organization", "matrix", "expansion", "comparison", "report", "small report", "paraproduct")


@pytest.mark.parametrize("name", NAMES)
def test_results_are_values(twice, name, tmp_path):
    first, second = (made[name] for made in twice)
    assert first == second and first is not second and first != 3
    assert type(first).load(first.save(tmp_path / "file")) == first
    picture = first._repr_png_()  # what a notebook shows
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000
    assert "object at 0x" not in repr(first) and "array(" not in repr(first)


def test_results_that_differ_are_not_equal(twice):
    first, _ = twice
    assert first["report"] != softmax_invariance(tensor(), bootstrap=40, seed=1)
    product = first["paraproduct"]
    assert product != paraproduct(product.matrix + 1, product.row_tree, product.column_tree)


def test_reports_can_be_read_by_other_programs(twice, tmp_path):
    report = twice[0]["small report"]
    written = json.loads(report.save(tmp_path / "r.json").read_text())
    assert written["kind"] == "invariance report" and written["contrasts"][0]["figure"].startswith("heads")
    assert written["heads"][0]["keys"]["procrustes"] is None  # JSON has no NaN
    again = InvarianceReport.load(tmp_path / "r.json")
    assert np.isnan(again.heads[0].keys.procrustes) and again.rows()[0].keys() == report.rows()[0].keys()


def test_saved_results_state_the_versions_and_the_options_of_their_call(tmp_path):
    report = softmax_invariance(tensor(), heads=[0, 3], bootstrap=40, seed=2)
    made_with = json.loads(report.save(tmp_path / "r.json").read_text())["made_with"]
    assert made_with["attngeo"] == attngeo.__version__ and made_with["numpy"] == np.__version__
    assert made_with["torch"] == torch.__version__ and "command" not in made_with
    options = made_with["options"]
    assert (options["function"], options["seed"], options["heads"], options["masked"]) == (
        "softmax_invariance", 2, [0, 3], False
    )  # fmt: skip
    (tmp_path / "r.json").write_text(json.dumps(json.loads((tmp_path / "r.json").read_text()) | {"made_with": 0}))
    assert InvarianceReport.load(tmp_path / "r.json") == report  # loading ignores it


def test_a_function_of_ones_own_cannot_be_saved(tmp_path):
    tree = Tree.dyadic(4)
    product = paraproduct(np.eye(4), tree, tree, (np.sin, np.cos, lambda x: -np.sin(x)))
    with pytest.raises(InputError, match="a function of your own cannot be saved"):
        product.save(tmp_path / "p.npz")
    assert not list(tmp_path.iterdir())


def test_organizations_draw_what_they_are_asked(twice):
    found = twice[0]["organization"]
    assert len({len(found.plot(of).axes) for of in ("slices", "heads", "trees")}) > 1
    with pytest.raises(InputError, match="cannot plot 'forest'"):
        found.plot("forest")


def spoil(path, **changes):
    """The same file with some of its arrays changed."""
    with np.load(path) as stored:
        np.savez(path, **dict(stored) | changes)


def test_content_that_cannot_be_is_said_with_the_name_of_the_file(tmp_path):
    path = tmp_path / "o.npz"
    found = organize(tensor())
    for result, changes in (
        (found, {"tree1.levels": Tree.dyadic(6).levels, "tree1.order": np.arange(6)}),
        (found.expand(), {"coefficients": np.ones((8, 7, 4))}),
        (tensor(), {"values": np.ones((8, 7))}),
    ):
        result.save(path)
        spoil(path, **changes)
        with pytest.raises(InputError, match=f"^{path}: "):
            type(result).load(path)
    twice = found.expand().compare().save(tmp_path / "c.json")
    twice.write_text(twice.read_text().replace('"l1"', '"l"'))
    with pytest.raises(InputError, match=r"c\.json: has unexpected content"):
        type(found.expand().compare()).load(twice)


def test_files_that_are_not_whole_or_not_ours(tmp_path):
    path = tensor().save(tmp_path / "t.npz")
    whole = path.read_bytes()
    spoilt = bytearray(whole)
    spoilt[len(whole) // 3] ^= 255  # which the checksum of the archive shows
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    for content in (*(whole[:cut] for cut in (0, 10, len(whole) - 30)), spoilt, (tmp_path / "other.npz").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is incomplete, damaged or not a file of attngeo"):
            NetworkTensor.load(path)
    path.write_bytes(whole)
    report = softmax_invariance(np.ones((2, 2, 1)), bootstrap=40).save(tmp_path / "r.json")
    report.write_text('{"kind": "tree"}')
    for load, file, says in (
        (Expansion.load, tmp_path / "none.npz", "no such file"),
        (Organization.load, path, "holds a saved network tensor, expected a saved organization"),
        (InvarianceReport.load, report, "holds a saved tree, expected a saved invariance report"),
        (NetworkTensor.load, tmp_path, "is a folder, expected a file"),
    ):
        with pytest.raises(InputError, match=says):
            load(file)


VALUES = np.zeros((3, 4, 2), np.float32)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((np.zeros((3, 4)),), "expected 3-D"),
        ((np.full((1, 1, 1), np.inf),), "NaN or Inf"),
        ((VALUES, None, ("a",)), "1 labels of queries, but the values have 3"),
        ((VALUES, None, (), (), (), "weights"), "stage 'weights'"),
        ((VALUES, np.ones((3, 3), bool)), "mask: expected booleans of shape"),
        ((VALUES, np.array([[True] * 4, [False] * 4, [True] * 4])), "query 1 may attend to no key"),
    ],
)
def test_network_tensors_are_checked(arguments, says):
    with pytest.raises(InputError, match=says):
        NetworkTensor(*arguments)


def test_probabilities_of_what_has_none():
    with pytest.raises(InputError, match="contains probabilities, expected logits"):
        NetworkTensor(VALUES, stage="probabilities").probabilities()
    with pytest.raises(InputError, match="no mask"):
        NetworkTensor(VALUES).probabilities(masked=True)
