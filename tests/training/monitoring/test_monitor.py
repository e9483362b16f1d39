"""Monitor in a plain loop: its records, that training is not affected, and models that it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.errors import InputError, LayoutError  # noqa: E402
from attngeo.training.monitoring.monitor import Monitor  # noqa: E402
from attngeo.training.monitoring.records import read_records  # noqa: E402
from tests.training.monitoring.record_checks import random_tokens  # noqa: E402
from tests.weights.tiny_models import bert, gpt2  # noqa: E402


def train_for_some_steps(model: Any, monitor: Monitor | None, steps: int = 6) -> Any:
    """Train with dropout and return a copy of the weights."""
    torch.manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for step in range(steps):
        ids = torch.randint(3, 60, (4, 12))
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor(step, model, {"input_ids": ids, "labels": ids})
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_monitored_training_gives_the_same_weights(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "run.jsonl", every=2)
    monitored = train_for_some_steps(bert(), monitor)
    plain = train_for_some_steps(bert(), None)  # dropout is 0.1, so the random state matters
    assert all(torch.equal(monitored[name], plain[name]) for name in plain)
    assert [row["step"] for row in monitor.records] == [0, 2, 4]
    assert monitor.records[0]["symmetry"] != monitor.records[-1]["symmetry"]
    assert [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()] == monitor.records


def test_a_continued_run_drops_the_records_of_later_steps(tmp_path: Path) -> None:
    path, model = tmp_path / "run.jsonl", bert()
    first = Monitor(path, every=10)
    for step in range(41):
        first(step, model)
    with open(path, "a") as file:
        file.write('{"step": 50, "symm')  # killed while writing
    again = Monitor(path, every=10)
    again(25, model)
    assert [row["step"] for row in again.records] == [0, 10, 20]
    again(30, model)
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [0, 10, 20, 30] and not (tmp_path / "run.jsonl.old").exists()
    fresh = Monitor(path, every=10)  # another run of the same name
    fresh(0, model)
    assert len(path.read_text().splitlines()) == 1
    assert len((tmp_path / "run.jsonl.old").read_text().splitlines()) == 4
    Monitor(path, every=10)(0, model)  # and a third: both older files are kept
    assert len((tmp_path / "run.jsonl.old").read_text().splitlines()) == 4
    assert len((tmp_path / "run.jsonl.old2").read_text().splitlines()) == 1


@pytest.mark.parametrize("name", [None, "run.jsonl"])
def test_a_loop_that_goes_back_drops_the_records_of_later_steps(tmp_path: Path, name: str | None) -> None:
    monitor, model = Monitor(None if name is None else tmp_path / name, every=10), bert()
    for step in (*range(41), *range(25, 31)):  # back to a checkpoint of step 25
        monitor(step, model)
    assert [row["step"] for row in monitor.records] == [0, 10, 20, 30]
    for step in range(11):  # another run
        monitor(step, model)
    assert [row["step"] for row in monitor.records] == [0, 10]
    if name is not None:
        assert [row["step"] for row in read_records(tmp_path / name)] == [0, 10]
        assert [row["step"] for row in read_records(tmp_path / f"{name}.old")] == [0, 10, 20, 30]


def test_modules_that_are_replaced_during_the_run_are_measured() -> None:
    """Adapters are put into a model, or merged into new layers, while it is trained."""
    monitor, model = Monitor(every=1), bert()
    before = monitor(0, model)
    attention = model.bert.encoder.layer[0].attention.self
    attention.query = torch.nn.Linear(*attention.query.weight.shape)
    found, expected = monitor(1, model), Monitor(every=1)(1, model)
    assert found == expected and before is not None and found is not None
    assert found["symmetry"][0] != before["symmetry"][0] and found["symmetry"][1:] == before["symmetry"][1:]


def test_steps_may_be_numpy_or_torch_numbers(tmp_path: Path) -> None:
    path, model = tmp_path / "run.jsonl", bert()
    monitor = Monitor(path, every=2)
    for step in np.arange(3):
        monitor(step, model)
    monitor.measure(torch.tensor(5), model)
    assert [row["step"] for row in read_records(path)] == [0, 2, 5]
    with pytest.raises(InputError, match=r"step is 6\.0, expected a whole number"):
        monitor(6.0, model)  # type: ignore[arg-type]


@pytest.mark.parametrize("every", [0, 1.5, "5", True])
def test_every_must_be_a_positive_whole_number(every: Any) -> None:
    with pytest.raises(InputError, match=f"every is {every!r} and rows is 8, expected positive whole numbers"):
        Monitor(every=every)


def test_a_compiled_model_is_scored_without_compiling_again() -> None:
    from torch._dynamo.utils import counters

    plain = bert()
    expected = Monitor()(0, plain, {"input_ids": random_tokens()})
    compiled = torch.compile(plain, backend="eager")
    compiled(input_ids=random_tokens(8))
    counters.clear()
    assert Monitor()(0, compiled, {"input_ids": random_tokens()}) == expected
    assert not counters["frames"]
    plain.bert.encoder.layer[0] = torch.compile(plain.bert.encoder.layer[0], backend="eager")  # one region only
    assert Monitor()(0, plain, {"input_ids": random_tokens()}) == expected


def test_the_model_of_attngeo_pretrain_is_monitored_too() -> None:
    from attngeo.training.pretraining.architectures import Bert, Shape
    from attngeo.training.pretraining.measure import form_scores, largest_logits

    model = Bert(Shape(3, 32, 4, 64, 60, 12, causal=True))
    model.initialise(0)
    row = Monitor()(0, model, random_tokens())
    assert row is not None
    expected = form_scores(model)
    np.testing.assert_allclose(row["head_symmetry"], expected["head_symmetry"], rtol=1e-4)
    np.testing.assert_allclose(row["max_logit"], largest_logits(model, random_tokens()), rtol=1e-4)


def test_models_that_cannot_be_monitored_are_refused() -> None:
    from transformers import BertConfig, BertForMaskedLM

    with torch.device("meta"):
        empty = BertForMaskedLM(BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=4))
    with pytest.raises(LayoutError, match=r"query.weight: has no values yet"):
        Monitor()(0, empty)
    with pytest.raises(LayoutError, match="no self-attention"):
        Monitor()(0, torch.nn.Linear(3, 3))
    with pytest.raises(InputError, match="every is 0"):
        Monitor(every=0)


def test_a_file_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    path, model = tmp_path / "run.jsonl", gpt2()
    monitor = Monitor(path, every=1)
    monitor(0, model)
    os.remove(path)
    path.mkdir()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert monitor(1, model) is not None
    assert [row["step"] for row in monitor.records] == [0, 1]


def test_the_command_line_and_track_import_neither_torch_nor_transformers() -> None:
    from transformers import TrainerCallback

    assert isinstance(Monitor(), TrainerCallback)
    code = (
        "import sys, attngeo.cli, attngeo.training.monitoring.track\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
