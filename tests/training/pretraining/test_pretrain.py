"""Pre-training computes what transformers' BERT computes, pairs runs, and reports every kind of failure in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from attngeo.errors import AttngeoError, InputError, SourceError
from attngeo.io.files import folder_lock
from attngeo.training.data import train_tokenizer
from attngeo.training.monitoring.records import read_records
from attngeo.training.pretraining import PretrainConfig, TrainingError, load_config, pretrain
from attngeo.training.pretraining.architectures import Model
from attngeo.training.pretraining.batches import Batch, Batches, Rows, held_out_batches
from attngeo.training.pretraining.engine import Engine, ProcessGroup, learning_rate
from attngeo.training.pretraining.pretrain import (
    build_model,
    build_objective,
    evaluation_and_checkpoint_steps,
    tokens_for,
)
from tests.training.small_runs import made_up_texts, run_settings, write_corpus

ALONE = ProcessGroup(torch.device("cpu"))
OBJECTIVES = ("masked", "causal")


def parts(config: PretrainConfig) -> tuple[Model, Batches, list[Batch]]:
    """Return the initialised model, the training batches and the held-out batches of a config."""
    tokens = tokens_for(config)
    objective = build_objective(config, tokens)
    train, valid = (Rows(tokens, part, config.length, ALONE.device, config.batch) for part in ("train", "valid"))
    stream = Batches(train, objective, batch=config.batch, seed=config.seed)
    return build_model(config, tokens, ALONE.device), stream, held_out_batches(valid, objective, config.batch)


def losses_of(engine: Engine, stream: Batches, steps: range) -> list[float]:
    """Train on these steps and return their losses."""
    return [float(engine.step(stream.at(step), step)) for step in steps]


def content_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_saved_model_loads_with_from_pretrained_and_has_the_same_loss(tmp_path: Path, objective: str) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    held_out_text = write_corpus(tmp_path, "valid.txt", count=20, seed=1)
    run = pretrain(run_settings(tmp_path, objective=objective, valid=[held_out_text]))
    assert run.finished and [row["step"] for row in run.records] == [0, 4, 8, 12, 16, 20]
    assert [dict(row) for row in run.records] == read_records(run.folder / "metrics.jsonl")
    folder = run.folder / "model"
    kind = AutoModelForMaskedLM if objective == "masked" else AutoModelForCausalLM
    model = kind.from_pretrained(folder).eval()
    assert type(model).__name__ == ("BertForMaskedLM" if objective == "masked" else "BertLMHeadModel")
    held_out = parts(run.config)[2]
    assert len(held_out) > 1  # the loss is their mean
    losses = []
    for batch in held_out:
        if objective == "causal":
            labels = batch.ids  # transformers shifts the labels
        else:
            labels = torch.full_like(batch.ids, -100)
            labels.view(-1)[batch.positions] = batch.targets
        with torch.no_grad():
            losses.append(float(model(input_ids=batch.ids, labels=labels).loss))
    assert sum(losses) / len(losses) == pytest.approx(run.loss, rel=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.mask_token_id == tokens_for(run.config).mask
    # truncated to the positions of the model
    long = tokenizer(" ".join(made_up_texts(3)), truncation=True, return_tensors="pt")
    assert model(**long).logits.shape[:2] == (1, 32)
    assert json.loads((folder / "pretrain.json").read_text())["objective"] == objective


def test_the_padding_token_of_a_saved_model_is_that_of_its_tokenizer(tmp_path: Path) -> None:
    """A given tokenizer has [PAD] where others have a word, as that of ModernBERT."""
    tokenizer = json.loads(train_tokenizer(lambda: iter(made_up_texts()), 300).to_str())
    vocabulary = tokenizer["model"]["vocab"]
    other = next(word for word, number in vocabulary.items() if number == 299)
    vocabulary["[PAD]"], vocabulary[other] = 299, 0
    next(token for token in tokenizer["added_tokens"] if token["content"] == "[PAD]")["id"] = 299
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    given = {"tokenizer": str(tmp_path / "tokenizer.json"), "steps": 1, "warmup": 0}
    for settings in ({}, {"architecture": "modernbert"}, {"architecture": "llama", "objective": "causal"}):
        run = pretrain(run_settings(tmp_path, **given, **settings, out=str(tmp_path / f"run{len(str(settings))}")))
        assert json.loads((run.folder / "model" / "config.json").read_text())["pad_token_id"] == 299
    with pytest.raises(InputError, match=r"\[PAD\] is token 299 of its tokenizer, expected token 0 with norm = 'pre'"):
        pretrain(run_settings(tmp_path, **given, norm="pre"))
    assert pretrain(run_settings(tmp_path, **given, norm="pre", keep_model=False)).finished


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_are_those_of_transformers_bert(tmp_path: Path, objective: str) -> None:
    """Ten steps have the losses of a plain loop over transformers' model with AdamW, clipping and the same schedule."""
    from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

    unusual = {"betas": [0.8, 0.95], "weight_decay": 0.1, "clip": 0.5}  # not AdamW's defaults
    config = load_config(run_settings(tmp_path, objective=objective, lr=3e-3, **unusual))
    model, stream, _ = parts(config)
    made = BertConfig(**model.config.to_dict())
    theirs = (BertForMaskedLM if objective == "masked" else BertLMHeadModel)(made)
    missing, unexpected = theirs.load_state_dict(model.state_dict(), strict=False)
    assert not unexpected and set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    theirs.tie_weights()
    groups = [
        {"params": [w for w in theirs.parameters() if w.dim() == 2], "weight_decay": 0.1},
        {"params": [w for w in theirs.parameters() if w.dim() != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.8, 0.95))
    engine = Engine(model, config, ALONE)
    for step in range(10):
        batch = stream.at(step)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (step + 1) / 4 if step < 4 else 3e-3 * (20 - step) / 16
        logits = theirs(input_ids=batch.ids).logits.flatten(0, 1)[batch.positions]
        loss = torch.nn.functional.cross_entropy(logits, batch.targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()
        assert learning_rate(step, config) == pytest.approx(optimizer.param_groups[0]["lr"])
        assert float(engine.step(batch, step)) == pytest.approx(loss.item(), rel=1e-5)


def test_an_engine_is_restored_in_place(tmp_path: Path) -> None:
    """Weights and moments, in the memory that a recorded step reads: on a GPU a run continues this way."""
    config = load_config(run_settings(tmp_path, lr=3e-3))
    model, stream, _ = parts(config)
    engine = Engine(model, config, ALONE)
    losses_of(engine, stream, range(5))
    saved = engine.state()
    memory = [weight.data_ptr() for weight in model.parameters()]
    expected = losses_of(engine, stream, range(5, 9))
    engine.restore(saved)
    assert losses_of(engine, stream, range(5, 9)) == expected
    assert [weight.data_ptr() for weight in model.parameters()] == memory


def test_paired_runs_share_data_masks_and_every_weight_outside_queries_and_keys(tmp_path: Path) -> None:
    base, stream, held_out = parts(load_config(run_settings(tmp_path)))
    for start, scale in (("symmetric", None), ("rotated", "unit"), ("mimetic-0.7", None)):
        model, other_stream, other_held_out = parts(load_config(run_settings(tmp_path, start=start, scale=scale)))
        weights = dict(model.named_parameters())
        changed = [name for name in weights if not torch.equal(weights[name], base.get_parameter(name))]
        assert changed and all(".self.query.weight" in name or ".self.key.weight" in name for name in changed), start
        for step in (0, 7, 40):
            assert torch.equal(stream.at(step).ids, other_stream.at(step).ids)
            assert torch.equal(stream.at(step).positions, other_stream.at(step).positions)
        assert all(torch.equal(a.ids, b.ids) for a, b in zip(held_out, other_held_out, strict=True))
    other, _, same = parts(load_config(run_settings(tmp_path, seed=1)))
    names = [name for name, weight in base.named_parameters() if weight.dim() == 2]
    assert not any(torch.equal(base.get_parameter(name), other.get_parameter(name)) for name in names)
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(held_out, same, strict=True))  # whatever the seed


def test_the_training_loss_is_the_mean_since_the_last_evaluation(tmp_path: Path) -> None:
    """20 steps in 3 parts: the second has 6 steps, one fewer than the first."""
    run = pretrain(run_settings(tmp_path, evaluations=3, checkpoints=1))
    model, stream, _ = parts(run.config)
    losses = losses_of(Engine(model, run.config, ALONE), stream, range(20))
    assert [row["step"] for row in run.records] == [0, 7, 13, 20] and run.records[0]["train_loss"] is None
    for row, some in zip(run.records[1:], (losses[:7], losses[7:13], losses[13:]), strict=True):
        assert row["train_loss"] == pytest.approx(sum(some) / len(some), rel=1e-6)
    weights = torch.load(run.folder / "checkpoint.pt", weights_only=True)["weights"]
    for side in ("query", "key"):
        stds = [weights[f"bert.encoder.layer.{i}.attention.self.{side}.weight"].square().mean().sqrt() for i in (0, 1)]
        assert run.records[-1][f"std_{side}"] == pytest.approx(list(map(float, stds)), rel=1e-4)


def test_progress_is_reported_and_a_stopped_run_continues(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    run = pretrain(run_settings(tmp_path), progress=lambda *call: seen.append(call), stop=lambda: True)
    assert not run.finished and run.records[-1]["step"] == 0
    assert (256, None) in seen
    # neither the number of checkpoints nor the compilation changes the result
    run = pretrain(
        run_settings(tmp_path, checkpoints=1, compile="no"), progress=lambda done, total: seen.append((done, total))
    )
    assert run.finished and seen[-1] == (20, 20) and [row["step"] for row in run.records] == [0, 4, 8, 12, 16, 20]
    assert pretrain(run_settings(tmp_path)).records == run.records  # finished: nothing more is done


def test_every_checkpoint_follows_an_evaluation() -> None:
    config = load_config({"out": "a", "steps": 100, "evaluations": 20, "checkpoints": 7})
    evaluated, saved = evaluation_and_checkpoint_steps(config)
    assert evaluated == set(range(0, 101, 5)) and saved == {15, 30, 45, 60, 75, 90, 100}


# ---- failures


def test_weights_that_are_not_finite_after_the_last_step_are_not_saved(tmp_path: Path) -> None:
    """Every training loss is finite, the held-out loss is not: the last update made the weights not finite."""
    table = run_settings(tmp_path, steps=4, evaluations=1, checkpoints=1, clip=0.0)
    pretrain(table, stop=lambda: True)
    checkpoint = tmp_path / "run" / "checkpoint.pt"
    model, stream, _ = parts(load_config(table))
    engine = Engine(model, load_config(table), ALONE)
    losses_of(engine, stream, range(3))
    state = {**torch.load(checkpoint, weights_only=True), **engine.state(), "step": 3}
    moments = state["moments"]["bert.embeddings.word_embeddings.weight"]
    moments["exp_avg"].fill_(3e38)  # so large that the fourth update overflows
    moments["exp_avg_sq"].zero_()
    torch.save(state, checkpoint)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step":3}\n')  # a checkpoint is written after its record
    before = checkpoint.read_bytes()
    with pytest.raises(TrainingError, match="held-out loss is nan at step 4; stopped, the last good checkpoint is"):
        pretrain(table)
    assert checkpoint.read_bytes() == before and not (tmp_path / "run" / "model").exists()


def test_a_trained_model_without_a_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    """Nothing tells whether it belongs to this config, and the new run would delete its records."""
    pretrain(run_settings(tmp_path, checkpoints=0))
    before = content_of(tmp_path / "run")
    for change in ({}, {"lr": 2e-3}):
        with pytest.raises(InputError, match="run: holds a trained model and no checkpoint to continue from"):
            pretrain(run_settings(tmp_path, checkpoints=0, **change))
    assert content_of(tmp_path / "run") == before


def test_a_checkpoint_of_other_tokens_and_a_broken_one_are_errors(tmp_path: Path) -> None:
    pretrain(run_settings(tmp_path), stop=lambda: True)
    other = write_corpus(tmp_path, "other.txt", seed=5)
    with pytest.raises(InputError, match=r"checkpoint\.pt: was trained on other tokens"):
        pretrain(run_settings(tmp_path, train=[other], tokens=str(tmp_path / "others")))
    path = tmp_path / "run" / "checkpoint.pt"
    for content in (path.read_bytes()[:-100], b"not a checkpoint"):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"checkpoint\.pt: not a checkpoint of attngeo pretrain"):
            pretrain(run_settings(tmp_path))
        assert path.read_bytes() == content


def test_a_folder_in_use_and_an_out_that_is_a_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with folder_lock(tmp_path / "run"), pytest.raises(AttngeoError, match="another process is using this folder"):
        pretrain(run_settings(tmp_path))
    (tmp_path / "file").write_text("a file")
    with pytest.raises(InputError, match="file: cannot be made a folder"):
        pretrain(run_settings(tmp_path, out=str(tmp_path / "file")))


def test_text_that_does_not_fit_is_an_error_or_a_warning(tmp_path: Path) -> None:
    few = write_corpus(tmp_path, "few.txt", count=60)
    with pytest.raises(InputError, match=r"valid\.bin: 0 tokens, fewer than one row of 32; name more held-out text"):
        pretrain(run_settings(tmp_path, train=[few], tokens=str(tmp_path / "few")))
    with pytest.warns(UserWarning, match="warmup is 4, steps is 1: lr is never reached"):
        pretrain(run_settings(tmp_path, steps=1))
    with pytest.raises(InputError, match="its tokenizer has 300 tokens and does not fit a model with vocab = 200"):
        pretrain(run_settings(tmp_path, steps=4, vocab=200, train=[], out=str(tmp_path / "new")))
    with pytest.raises(InputError, match="neither train"):
        pretrain({"out": str(tmp_path / "none")})


BAD = {
    "unknown": ({"sed": 1}, "no setting 'sed', did you mean 'seed'?"),
    "too small": ({"steps": 0}, "steps is 0, expected at least 1"),
    "wrong type": ({"steps": "many"}, "steps is 'many', expected a whole number"),
    "wrong list": ({"train": 3}, "train is 3, expected a list of texts"),
    "wrong choice": ({"objective": "mask"}, "objective is 'mask', expected 'masked', 'causal'"),
    "initialisation": ({"start": "symetric"}, "start 'symetric' does not exist, did you mean 'symmetric'?"),
    "own scale": ({"start": "authors", "scale": "unit"}, "the authors initialisation has a scale of its own"),
    "scale": (
        {"start": "symmetric", "scale": "big"},
        "scale is 'big', expected 'unit', 'half-unit', 'kept' or a number",
    ),
    "size": ({"size": "4by256"}, "size is '4by256', expected layers x hidden such as 4x256"),
    "heads": ({"size": "2x30", "heads": 4}, "size 2x30: 30 does not divide into 4 heads"),
    "width": ({"size": "2x200"}, "size 2x200: 200 does not divide into 3 heads of 64 or more; set heads"),
    "vocabulary": ({"vocab": 65_537}, "vocab is 65537, expected at most 65536: token files hold 16-bit numbers"),
    "rate": ({"lr": 0.0}, "lr is 0.0, expected above 0 and under 10"),
    "betas": ({"betas": [0.9]}, "betas is [0.9], expected two numbers"),
    "causal": ({"architecture": "llama"}, "objective is 'masked', expected 'causal' with architecture = 'llama'"),
    "norm": ({"architecture": "modernbert", "norm": "pre"}, "modernbert is always pre-norm"),
    "odd": ({"architecture": "modernbert", "size": "2x30", "heads": 2}, "head size 15 is odd"),
    "bias": ({"self_bias": True}, "self_bias = true: transformers has no model with it"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_settings_that_no_run_could_follow_are_an_error(mistake: str) -> None:
    change, expected = BAD[mistake]
    with pytest.raises(InputError, match=f"^config: .*{re.escape(expected)}"):
        load_config({"out": "run", **change})


def test_configs_are_read_from_toml_files(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('out = "run"\ntrain = "one.txt"\nscale = 2\nstart = "symmetric"\n')
    config = load_config(path)
    assert config.train == ("one.txt",) and config.scale == 2.0 and load_config(config) == config
    for content, expected in (("out = ", "not TOML"), ("seed = 1", "out must be set")):
        path.write_text(content)
        with pytest.raises(InputError, match=f"a.toml: {expected}"):
            load_config(path)
    with pytest.raises(InputError, match=r"none\.toml: cannot be read"):
        load_config(tmp_path / "none.toml")


def test_settings_that_are_left_out_follow_from_the_others() -> None:
    """An initialisation that takes a scale has the unit scale; heads have 64 dimensions."""
    for start, scale in (("symmetric", "unit"), ("authors", None), ("baseline", None)):
        assert load_config({"out": "a", "start": start}).scale == scale
    for size, shape in (("24x1024", (24, 1024, 16)), ("2x96", (2, 96, 1))):
        assert load_config({"out": "a", "size": size}).shape == shape
