"""`attngeo score` on bad input: one line that names the file and what was expected, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.commands import call, error_line, run

D, HEADS, LAYERS = 16, 4, 2
QUERY = "encoder.layer.1.attention.self.query.weight"
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": D,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": 32,
}


def bert_tensors() -> dict[str, np.ndarray]:
    """Return random queries, keys and values under the names of BERT."""
    rng = np.random.default_rng(0)
    return {
        f"encoder.layer.{layer}.attention.self.{kind}.weight": rng.normal(size=(D, D)).astype(np.float32)
        for layer in range(LAYERS)
        for kind in ("query", "key", "value")
    }


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A small BERT checkpoint that can be scored; each test breaks it in one way."""
    folder = tmp_path / "bert"
    folder.mkdir()
    save_file(bert_tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def assert_refused(ref: object, *names: str, options: tuple[object, ...] = ()) -> None:
    """Check that `ref` is refused in one line that contains all of `names`, and that no file is written."""
    out = Path("scores.json")
    line = error_line(call("score", ref, "--out", out, *options))
    assert all(name in line for name in names), line
    assert not out.exists()


@pytest.fixture(autouse=True)
def empty_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def replace_weights(folder: Path, **replaced: np.ndarray | None) -> None:
    """Rewrite the weights in `folder` with some of them replaced, or left out where the new one is None."""
    weights = load_file(folder / "model.safetensors")
    for name, value in replaced.items():
        del weights[name]
        if value is not None:
            weights[name] = value
    save_file(weights, folder / "model.safetensors")


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    """Write the index of a sharded checkpoint: tensor → file."""
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_the_unbroken_checkpoint_is_scored(bert):
    done = call("score", bert, "--heads", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == LAYERS * (1 + HEADS)


def test_no_such_folder(tmp_path):
    assert_refused("./nowhere", "./nowhere", "no such folder")


def test_offline_and_not_cached(tmp_path):
    line = error_line(run("score", "somebody/something", HF_HOME=str(tmp_path / "hf")))
    assert "somebody/something" in line


def test_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    assert_refused("empty", "empty")


def test_truncated_file(bert):
    whole = (bert / "model.safetensors").read_bytes()
    (bert / "model.safetensors").write_bytes(whole[:-100])
    assert_refused(bert, "model.safetensors")


def test_listed_shard_is_missing(bert):
    (bert / "model.safetensors").rename(bert / "model-00001-of-00002.safetensors")
    write_index(
        bert,
        dict.fromkeys(bert_tensors(), "model-00001-of-00002.safetensors") | {QUERY: "model-00002-of-00002.safetensors"},
    )
    assert_refused(bert, "model-00002-of-00002.safetensors")


@pytest.mark.parametrize("escape", ["../outside.safetensors", "/etc/outside.safetensors"])
def test_index_that_points_outside(bert, escape):
    shutil.move(bert / "model.safetensors", bert.parent / "outside.safetensors")
    write_index(bert, dict.fromkeys(bert_tensors(), escape))
    assert_refused(bert, "model.safetensors.index.json", escape)


def test_header_with_wrong_offsets(bert):
    path = bert / "model.safetensors"
    whole = path.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + size])
    header[QUERY]["data_offsets"] = [0, 8]
    changed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(changed)) + changed + whole[8 + size :])
    assert_refused(bert, "model.safetensors", QUERY)


def test_header_that_claims_a_huge_size(bert):
    path = bert / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + path.read_bytes()[8:])
    assert_refused(bert, "model.safetensors")


def test_pickle_that_would_run_code(bert):
    torch = pytest.importorskip("torch")

    class Touch:
        def __reduce__(self):
            return os.system, ("touch it-ran",)

    (bert / "model.safetensors").unlink()
    torch.save({QUERY: Touch()}, bert / "pytorch_model.bin")
    assert_refused(bert, "pytorch_model.bin")
    assert not Path("it-ran").exists()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weight_that_is_not_finite(bert, bad):
    weight = bert_tensors()[QUERY]
    weight[3, 5] = bad
    replace_weights(bert, **{QUERY: weight})
    assert_refused(bert, "model.safetensors", QUERY)


def test_head_count_that_does_not_divide(bert):
    (bert / "config.json").write_text(json.dumps(CONFIG | {"num_attention_heads": 5}))
    assert_refused(bert, "5")


def test_config_that_is_not_json(bert):
    (bert / "config.json").write_text('{"model_type": "bert"')
    assert_refused(bert, "config.json")


def test_config_that_contradicts_the_tensors(bert):
    (bert / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 24}))
    assert_refused(bert, "24")


def test_missing_key_tensor(bert):
    replace_weights(bert, **{QUERY.replace("query", "key"): None})
    assert_refused(bert, QUERY.rpartition(".query")[0])


def test_unknown_layout_names_a_tensor(bert):
    save_file({f"mixer.{i}.attn.blend": np.ones((D, D), np.float32) for i in range(3)}, bert / "model.safetensors")
    assert_refused(bert, "mixer.0.attn.blend")


def test_checkpoint_without_attention(bert):
    save_file({"classifier.weight": np.ones((D, D), np.float32)}, bert / "model.safetensors")
    assert_refused(bert, str(bert))


def test_truncated_gguf_file(smollm2, tmp_path):
    with open(smollm2, "rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(10_000_000))
    assert_refused("cut.gguf", "cut.gguf")


def test_adapter_only_folder(bert):
    (bert / "model.safetensors").rename(bert / "adapter_model.safetensors")
    (bert / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/base"}')
    assert_refused(bert, "adapter")


def test_quantized_weights_are_refused_by_name(bert):
    packed = {name.replace(".weight", ".qweight"): np.ones((2, D), np.int32) for name in bert_tensors()}
    save_file(packed, bert / "model.safetensors")
    assert_refused(bert, "GPTQ", ".qweight")


@pytest.mark.parametrize("side", ["query", "key"])
def test_an_all_zero_head_is_named(bert, side):
    name = QUERY.replace("query", side)
    weight = bert_tensors()[name]
    weight[:4] = 0  # head 0: rows 0 to 3 of [out, in]
    replace_weights(bert, **{name: weight})
    done = call("score", bert, "--heads", "--format", "json")
    assert done.returncode == 0
    assert done.stderr.startswith("attngeo: ") and done.stderr.endswith(" is zero: L1H0\n")
    assert done.stderr.count("\n") == 1
    by_head = {(row["layer"], row["head"]): row["symmetry"] for row in json.loads(done.stdout)}
    assert [head for head, value in by_head.items() if value is None] == [(1, 0)]


def test_the_model_is_named_where_a_tensor_contains_its_name(bert):
    """`enc` is part of `encoder.layer.0`, which the message is about."""
    bert.rename("enc")
    assert_refused("enc", "enc: num_heads is 3", options=("--num-heads", 3))
