"""Checks of arguments: booleans are no numbers, integers of NumPy and torch are."""

from __future__ import annotations

import numpy as np
import pytest

import attngeo
from attngeo import Tree
from attngeo.arguments import finite_number, whole_number, whole_numbers
from attngeo.errors import InputError
from attngeo.training.monitoring import find_checkpoints, read_records
from attngeo.training.pretraining.config import load_config


def test_integers_of_every_library_are_whole_numbers():
    torch = pytest.importorskip("torch")
    for value in (3, np.int64(3), torch.tensor(3)):
        found = whole_number(value, "draws", 3, 3)
        assert found == 3 and type(found) is int
    assert whole_numbers(np.array([0, 2]), "heads", 3) == [0, 2]


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, 9])
def test_what_is_no_whole_number_in_the_range_is_named(value):
    with pytest.raises(InputError, match=r"draws is .*, expected a whole number from 1 to 8"):
        whole_number(value, "draws", 1, 8)


@pytest.mark.parametrize("value", [float("nan"), "1", None])
def test_what_is_no_finite_number_is_named(value):
    assert finite_number(np.float32(0.5), "gamma") == 0.5
    with pytest.raises(InputError, match=r"gamma is .*, expected a finite number"):
        finite_number(value, "gamma")


def test_results_are_written_to_and_read_from_the_home_folder(tmp_path, monkeypatch):
    """A path that no shell has read may begin with ~; it is not a folder of that name."""
    torch = pytest.importorskip("torch")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    tree, table = Tree.dyadic(4), attngeo.score(attngeo.bundled("encoder"), heads=False)
    assert Tree.load(tree.save("~/tree.npz")) == Tree.load("~/tree.npz") == tree
    assert attngeo.ScoreTable.load(table.save("~/scores.parquet")) == attngeo.ScoreTable.load("~/scores.parquet")
    models = attngeo.compare_all([attngeo.bundled("encoder")] * 2, draws=99)
    assert attngeo.ModelMap.load(models.save("~/map.json")) == models
    layer = torch.nn.ModuleDict({f"{name}_proj": torch.nn.Linear(8, 8) for name in "qk"})
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([layer])})
    attngeo.Monitor("~/run/records.jsonl", num_heads=2, unproven=True).measure(0, model)
    assert [row["step"] for row in read_records("~/run/records.jsonl")] == [0]
    with pytest.raises(attngeo.AttngeoError, match=f"{tmp_path}/home/run: no checkpoints"):
        find_checkpoints("~/run")
    assert load_config({"out": "~/run", "train": "~/a.txt", "tokens": "~/tokens"}).train == (f"{tmp_path}/home/a.txt",)
    assert load_config({"out": "~/run"}).out == f"{tmp_path}/home/run"
    (tmp_path / "home/run.toml").write_text('out = "a"')
    assert load_config("~/run.toml").out == "a"
    with pytest.raises(attngeo.AttngeoError, match=f"{tmp_path}/home/run: no config.json"):
        attngeo.load_pruned("~/run")
    assert {"map.json", "run", "scores.parquet", "tree.npz"} <= {path.name for path in (tmp_path / "home").iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
