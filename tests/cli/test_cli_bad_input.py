"""`attngeo score` on bad input: one line that names the file and what was expected, exit code 2, nothing written.

`tests/weights/sources` damages files of every format; here is one of each kind of error that a command prints.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.commands import call, error_line, run
from tests.weights.made_checkpoints import safetensors_bytes, write_files

D, HEADS, LAYERS = 16, 4, 2
QUERY = "encoder.layer.1.attention.self.query.weight"
KEY = QUERY.replace("query", "key")
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": D,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": 32,
}
TENSORS = {
    f"encoder.layer.{layer}.attention.self.{kind}.weight": np.random.default_rng(layer).normal(size=(D, D))
    for layer in range(LAYERS)
    for kind in ("query", "key", "value")
}
BLEND = {f"mixer.{layer}.attn.blend": np.ones((D, D)) for layer in range(3)}


def bert(config: dict[str, Any] = CONFIG, tensors: dict[str, np.ndarray] = TENSORS, cut: int | None = None) -> Path:
    """Write a small BERT checkpoint into the working folder, its weights cut short by `cut` bytes."""
    stored = safetensors_bytes({name: array.astype(np.float32) for name, array in tensors.items()})
    return write_files(Path("bert"), {"config.json": config, "model.safetensors": stored[:cut]})


def with_entries(name: str, where: Any, value: float) -> dict[str, np.ndarray]:
    changed = TENSORS[name].copy()
    changed[where] = value
    return TENSORS | {name: changed}


@pytest.fixture(autouse=True)
def empty_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"cut": -100}, ("bert/model.safetensors",)),
        ({"tensors": with_entries(QUERY, (3, 5), np.nan)}, ("bert/model.safetensors", QUERY)),
        ({"tensors": {"classifier.weight": np.ones((D, D))}}, ("bert",)),
        (
            {"tensors": {name: array for name, array in TENSORS.items() if name != KEY}},
            (QUERY.rpartition(".query")[0],),
        ),
        ({"tensors": BLEND}, ("mixer.0.attn.blend",)),
        ({"config": CONFIG | {"num_attention_heads": 5}}, ("5",)),
    ],
    ids=["cut short", "NaN", "no attention", "no key", "unknown layout", "heads do not divide"],
)
def test_a_checkpoint_that_cannot_be_scored_is_named(given: dict[str, Any], names: tuple[str, ...]) -> None:
    folder, out = bert(**given), Path("scores.json")
    line = error_line(call("score", folder, "--out", out))
    assert all(name in line for name in names), line
    assert not out.exists()


def test_a_folder_or_a_hub_id_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert error_line(call("score", "./nowhere")).startswith("./nowhere: no such folder")
    assert "somebody/something" in error_line(run("score", "somebody/something", HF_HOME=str(tmp_path / "hf")))


def test_an_all_zero_head_is_named() -> None:
    done = call("score", bert(tensors=with_entries(QUERY, slice(4), 0)), "--heads", "--format", "json")
    assert done.returncode == 0
    assert done.stderr.startswith("attngeo: ") and done.stderr.endswith(" is zero: L1H0\n")
    assert done.stderr.count("\n") == 1
    by_head = {(row["layer"], row["head"]): row["symmetry"] for row in json.loads(done.stdout)}
    assert len(by_head) == LAYERS * (1 + HEADS)
    assert [head for head, value in by_head.items() if value is None] == [(1, 0)]
