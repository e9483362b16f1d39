"""`attngeo prune`: the folder it writes, what it prints, and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import wave
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from safetensors.numpy import save_file

import attngeo
from attngeo.applications.prune.curve import LossCurve
from tests.cli.commands import call, error_line

pytest.importorskip("transformers")

DECODER = str(attngeo.bundled("decoder"))
DATA = Path(__file__).parents[1] / "data"
AUSTEN, MELVILLE = DATA / "austen.txt", DATA / "melville.txt"
SMALL_SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}  # of an encoder or a decoder


def run(*arguments: object) -> CompletedProcess[str]:
    return call("prune", *arguments)


def test_a_smaller_model_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["--text-file", str(AUSTEN), "--eval-file", str(MELVILLE)]
    words = ["prune", DECODER, *texts, "--out", str(tmp_path / "small")]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/attngeo", *words])
    done = call(*words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "5 of 16 heads (31.2%) of bert, chosen by refit"
    assert lines[2].split() == ["layer", "removed", "cost"]
    assert "next token loss" in done.stdout
    assert lines[-1].startswith("loss ") and "parameters (92.4%)" in lines[-1]
    plan = attngeo.PrunePlan.load(tmp_path / "small" / "plan.json")
    small = attngeo.load_pruned(tmp_path / "small")
    assert small.config.attngeo_pruned["method"] == "refit"
    assert len(plan.removed) == 5
    assert attngeo.score(tmp_path / "small").frame["head"].drop_nulls().len() == 11
    names = {path.name for path in (tmp_path / "small").iterdir()}
    card = (tmp_path / "small" / "README.md").read_text("utf-8")
    assert card.startswith(f'---\nbase_model: "{DECODER}"\n') and f"\n    attngeo {' '.join(words)}\n" in card
    losses = LossCurve.load(tmp_path / "small" / "losses.json")
    assert f"| {losses.full:.4f} | {losses.points[-1].loss:.4f} |" in card and "| query heads | 16 | 11 |" in card
    assert json.loads((tmp_path / "small" / "plan.json").read_text("utf-8"))["made_with"]["command"] in card
    assert names >= {"losses.json", "losses.png", "plan.npz", "tokenizer.json", "model.safetensors"}


@pytest.mark.slow
def test_all_methods_are_compared(tmp_path: Path) -> None:
    done = run(DECODER, "--text-file", AUSTEN, "--out", tmp_path / "small", "--heads", 2, "--compare", "--curve")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0] for line in done.stdout.splitlines() if " / " in line}
    assert rows >= {"refit", "error", "sensitivity", "folders", "entropy", "random"}
    assert "12%" in done.stdout and "69%" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "calibration inputs: expected one of --text-file, --image, --audio, got none of them"),
        (("--text-file", AUSTEN, "--image", "a.png"), "got --text-file and --image"),
        (("--text-file", DATA / "none.txt"), "none.txt: cannot be read"),
        (("--audio", DATA / "none.wav"), "none.wav: no such file"),
        (("--text-file", AUSTEN, "--method", "luck"), "method 'luck': expected one of"),
        (("--text-file", AUSTEN, "--target", "a"), "target: is read by a decoder beside sounds, but the inputs"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[object, ...], message: str, tmp_path: Path) -> None:
    assert message in error_line(run(DECODER, *arguments, "--out", tmp_path / "small"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("lines", "is_told"), [(8, True), (80, False)])
def test_a_text_that_is_too_short_to_choose_heads_well_is_told(lines: int, is_told: bool, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("It is a truth universally acknowledged, that a single man must be in want of a wife.\n" * lines)
    done = run(DECODER, "--text-file", text, "--method", "error", "--out", tmp_path / "small")
    assert done.returncode == 0, done.stderr
    assert ("are too few to choose heads well; use about 16,000" in done.stderr) == is_told


def test_images_calibrate_a_vision_model(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    processors = pytest.importorskip("transformers.models.vit.image_processing_pil_vit")
    from tests.applications.prune.prunable_models import tiny_model

    tiny_model("vit").save_pretrained(tmp_path / "vit")
    processors.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "vit")
    options: list[object] = []
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        image.fromarray(pixels).save(tmp_path / f"{number}.png")
        options += ["--image", tmp_path / f"{number}.png"]
    done = run(tmp_path / "vit", *options, "--heads", 2, "--method", "error", "--out", tmp_path / "small")
    assert done.returncode == 0, done.stderr
    assert "squared error relative to the output" in done.stdout
    assert attngeo.load_pruned(tmp_path / "small").config.attngeo_pruned["refit"]["applied"]


def test_sounds_calibrate_whisper(tmp_path: Path) -> None:
    """Two frames of a sound become one position of the encoder, so the mask of the padding has twice its length."""
    transformers = pytest.importorskip("transformers")
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SMALL_SIDE.items()}
    config = transformers.WhisperConfig(
        d_model=16, vocab_size=2048, num_mel_bins=8, max_target_positions=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None, **sizes,
    )  # fmt: skip
    transformers.WhisperForConditionalGeneration(config).save_pretrained(tmp_path / "whisper")
    transformers.WhisperFeatureExtractor(feature_size=8).save_pretrained(tmp_path / "whisper")
    transformers.AutoTokenizer.from_pretrained(DECODER).save_pretrained(tmp_path / "whisper")
    options: list[object] = ["--target", "the words that are spoken in this sound"]
    for number in range(2):
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(np.random.default_rng(number).integers(-3000, 3000, 8000, dtype=np.int16).tobytes())
        options += ["--audio", tmp_path / f"{number}.wav"]
    done = run(
        tmp_path / "whisper", *options, "--heads", 2, "--method", "error", "--no-refit", "--out", tmp_path / "small"
    )
    assert done.returncode == 0, done.stderr
    plan = attngeo.PrunePlan.load(tmp_path / "small" / "plan.json")
    assert set(plan.stacks) == {"encoder", "decoder", "cross"} and len(plan.removed) == 2
    assert plan.statistics.layers["encoder", 0].tokens == 25  # half a second: 50 frames, the rest is padding


@pytest.mark.parametrize("name", ["bloom", "gemma3"])
def test_a_type_that_cannot_be_pruned_is_refused_before_its_weights_are_loaded(name: str, tmp_path: Path) -> None:
    """These files have one tensor each: whoever loads them fails in another way."""
    weight = np.zeros((8, 1024), np.float32)
    if name == "bloom":
        (tmp_path / "config.json").write_text('{"model_type": "bloom", "architectures": ["BloomForCausalLM"]}')
        save_file({"h.0.weight": weight}, tmp_path / "model.safetensors")
    else:
        writer = pytest.importorskip("gguf").GGUFWriter(tmp_path / "model.gguf", name)
        writer.add_tensor("blk.0.attn_q.weight", weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    done = run(tmp_path, "--text-file", AUSTEN, "--out", tmp_path / "small")
    expected = f"attngeo: error: model type {name}: removing heads is supported for "
    assert done.returncode == 2 and done.stderr.startswith(expected), done.stderr


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    done = run(DECODER, "--text-file", AUSTEN, "--out", tmp_path)
    assert done.returncode == 2 and "exists already, expected a new or an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_weights_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk; the calibration itself writes none."""
    options = ["--text-file", AUSTEN, "--method", "error", "--tokens", "1024"]
    command = [sys.executable, "-m", "attngeo", "prune", DECODER, *options]
    limited = ["bash", "-c", 'ulimit -f 1000; exec "$@"', "bash", *map(str, command), "--out", str(tmp_path / "small")]
    done = subprocess.run(limited, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 2
    expected = f"attngeo: error: {tmp_path}/small: the weights cannot be written (Error while serializing: I/O error: "
    assert done.stderr.splitlines()[-1].startswith(expected), done.stderr
    assert list(tmp_path.iterdir()) == []
