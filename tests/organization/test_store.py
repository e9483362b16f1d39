"""Results as values: saved to one file, read back the same, never half written, never guessed at."""

from __future__ import annotations

import os

import numpy as np
import pytest

from attngeo.errors import AttngeoError, InputError
from attngeo.organization import Expansion, NetworkTensor, Organization, organize, planted

torch = pytest.importorskip("torch")


def tensor(mask: bool = True) -> NetworkTensor:
    array, _ = planted((8, 7, 5), 0)
    allowed = np.ones((8, 7), bool)
    allowed[0, 1:] = False
    labels = tuple(f"q{i} “é”" for i in range(8)), tuple("abcdefg"), tuple(f"L{h // 2}H{h % 2}" for h in range(5))
    return NetworkTensor(array, allowed if mask else None, *labels, "logits", "a model")


def test_network_tensor_round_trip(tmp_path):
    for made in (tensor(), tensor(mask=False)):
        assert made.values.dtype == np.float32 and made.shape == (8, 7, 5)
        assert NetworkTensor.load(made.save(tmp_path / "t.npz")) == made
    assert tensor() != tensor(mask=False) and tensor() != 3
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


@pytest.mark.parametrize("source", ["network", "array", "matrix"])
def test_organization_round_trip(tmp_path, source):
    given = {"network": tensor(), "array": tensor().values, "matrix": tensor().values[:, :, 0].astype(float)}[source]
    made = organize(given)
    again = Organization.load(made.save(tmp_path / "o.npz"))
    assert again == made
    assert again.reordered() == made.reordered() if source == "network" else np.array_equal(again.values, given)
    np.testing.assert_array_equal(again.expand().coefficients, made.expand().coefficients)
    assert made != organize(given, iterations=1, refine=False) or len(made.history) == 1


def test_saving_leaves_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "t.npz"
    tensor().save(path)
    before = path.read_bytes()

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(AttngeoError, match="No space left"):
        tensor(mask=False).save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["t.npz"]
    with pytest.raises(AttngeoError, match="does not exist"):
        tensor().save(tmp_path / "no" / "t.npz")
    with pytest.raises(AttngeoError, match="is a folder"):
        tensor().save(tmp_path)


def test_files_that_are_not_whole_or_not_ours(tmp_path):
    path = tensor().save(tmp_path / "t.npz")
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match="cut short or not a file of attngeo"):
            NetworkTensor.load(path)
    spoilt = bytearray(whole)
    spoilt[len(whole) // 3] ^= 255
    path.write_bytes(bytes(spoilt))
    with pytest.raises(InputError, match="cut short"):
        NetworkTensor.load(path)
    np.save(tmp_path / "plain.npy", np.ones(3))
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    for name in ("plain.npy", "other.npz"):
        with pytest.raises(InputError, match="not a file of attngeo"):
            Organization.load(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        Expansion.load(tmp_path / "none.npz")
    path.write_bytes(whole)
    with pytest.raises(InputError, match="holds a saved network tensor, expected a saved organization"):
        Organization.load(path)


VALUES = np.zeros((3, 4, 2), np.float32)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((np.zeros((3, 4)),), "expected 3-D"),
        ((np.full((1, 1, 1), np.inf),), "NaN or Inf"),
        ((np.full((1, 1, 1), 1e300),), "too large for float32"),
        ((VALUES, None, ("a",)), "1 labels of queries, 3 in the values"),
        ((VALUES, None, (), (), (), "weights"), "stage 'weights'"),
        ((VALUES, np.ones((3, 3), bool)), "mask: expected true and false of shape"),
        ((VALUES, np.ones((3, 4))), "mask: expected true and false"),
        ((VALUES, np.array([[True] * 4, [False] * 4, [True] * 4])), "query 1 may attend to nothing"),
        ((VALUES, np.stack([np.eye(3, 4, dtype=bool), np.zeros((3, 4), bool)], 2)), "query 0 may attend to nothing"),
    ],
)
def test_network_tensors_are_checked(arguments, says):
    with pytest.raises(InputError, match=says):
        NetworkTensor(*arguments)


def test_probabilities_of_what_has_none():
    with pytest.raises(InputError, match="holds probabilities already"):
        NetworkTensor(VALUES, stage="probabilities").probabilities()
    with pytest.raises(InputError, match="no mask"):
        NetworkTensor(VALUES).probabilities(masked=True)
