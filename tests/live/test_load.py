"""Models that run: from the hub by the real client, from a local server; wrong names and files are told apart first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngeo
from attngeo.data import bundled
from attngeo.errors import SourceError
from attngeo.live.load import load_model
from tests.weights.sources.hub_server import HubServer, Repo

TEXT = "A cat sat on the mat."
CAPTURE = f"""
import sys, attngeo
for ref in sys.argv[2:]:
    try:
        attngeo.capture(ref, {TEXT!r}).save(sys.argv[1])
        print("captured")
    except attngeo.AttngeoError as error:
        print(error)
"""


def captured(home: Path, endpoint: str, *refs: str, **settings: str) -> tuple[list[str], str]:
    """Capture the networks of models in another process, into network.npz; return the lines it prints, and its log."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ATTNGEO_"))}
    environment = kept | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_XET": "1"}
    environment |= {"ATTNGEO_CACHE": str(home / "cache"), **settings}
    command = [sys.executable, "-c", CAPTURE, str(home / "network.npz"), *refs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines(), done.stderr


def test_a_model_on_the_hub_runs_and_wrong_names_give_one_line(tmp_path: Path) -> None:
    folder = bundled("decoder")
    files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    with HubServer({"org/decoder": Repo(files)}) as hub:
        lines, log = captured(tmp_path, hub.url, "org/decoder", "org/other", "org/decoder@v9")
    assert log == "" and lines == [
        "captured",
        f"org/other: no such folder here and no such model at {hub.url} (a private one needs HF_TOKEN)",
        "org/decoder@v9: model 'org/decoder' has no revision 'v9'",
    ]
    values = attngeo.NetworkTensor.load(tmp_path / "network.npz").values
    np.testing.assert_array_equal(values, attngeo.capture(folder, TEXT).values)

    assert captured(tmp_path, hub.url, "org/decoder", HF_HUB_OFFLINE="1") == (["captured"], "")
    lines, log = captured(tmp_path, hub.url, "org/other")  # nobody listens there any more
    assert len(lines) == 1 and f"org/other: no such folder here, and {hub.url} cannot be reached" in lines[0]
    assert log == ""  # transformers by itself tries again for half a minute and says so six times


NO_WEIGHTS = "expected *.safetensors, *.bin, *.pt, *.pth, *.ckpt or *.gguf"


@pytest.mark.parametrize(
    "ref, problem",
    [
        ("model/config.json", "not a file that attngeo reads, expected .safetensors, .bin, .pt, .pth, .ckpt, .gguf"),
        ("empty", f"is empty, {NO_WEIGHTS}"),
        ("config", f"has no weights, {NO_WEIGHTS}"),
        ("weights", "no config.json beside the weights, which transformers needs to run the model"),
    ],
)
def test_files_without_a_model_that_can_run_are_refused_in_our_words(tmp_path, monkeypatch, ref, problem):
    model = bundled("encoder")
    files = {"README.md": b"words", "text/a.md": b"words", "config/config.json": (model / "config.json").read_bytes()}
    files |= {f"{name}/model.safetensors": (model / "model.safetensors").read_bytes() for name in ("model", "weights")}
    files |= {"model/config.json": files["config/config.json"]}
    (tmp_path / "empty").mkdir()
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as caught:
        load_model(ref)
    assert str(caught.value) == f"{ref}: {problem}"
    load_model("model/model.safetensors")


def test_a_file_is_refused_where_transformers_would_run_another_of_its_folder(tmp_path):
    folder = shutil.copytree(bundled("encoder"), tmp_path / "model")
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(SourceError, match=r": transformers would run model\.safetensors of this folder instead"):
        load_model(folder / "other.safetensors")
    load_model(folder / "model.safetensors")


def test_a_gguf_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers parses it for the config, for the weights and for the tokenizer: 12 s each for 262,144 tokens."""
    import gguf

    from tools.proof.gguf import archs, prove

    parsed = []

    class Counted(gguf.GGUFReader):  # type: ignore[misc]
        def __init__(self, path: Any, *more: Any) -> None:
            parsed.append(path)
            super().__init__(path, *more)

    (arch,) = archs.ARCHS["qwen2"]
    prove.write_gguf(tmp_path / "m.gguf", "qwen2", arch, prove.build(arch))
    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    loaded = load_model(tmp_path / "m.gguf")
    assert type(loaded.model).__name__ == "Qwen2Model" and len(parsed) == 1
    _ = loaded.tokenizer
    assert len(parsed) == 1 and gguf.GGUFReader is Counted
