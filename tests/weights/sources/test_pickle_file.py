"""Pickled state dicts: zip and old format, shards, nested dicts; a pickle that would run code is refused."""

from __future__ import annotations

import io
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngeo.errors import SourceError
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint
from tests.weights.made_checkpoints import LLAMA_CONFIG, write_files

torch = pytest.importorskip("torch")


def state_dict_of(seed: int = 0, dtype: Any = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {f"layer.{seed}.{n}.weight": torch.randn(6, 4, generator=generator).to(dtype) for n in ("query", "key")}


def pickle_bytes(content: object, *, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def assert_same_tensors(ref: object, tensors: dict[str, Any]) -> None:
    with open_checkpoint(ref) as checkpoint:
        assert set(checkpoint.tensors) == set(tensors)
        for name, tensor in tensors.items():
            assert checkpoint.tensors[name].shape == tuple(tensor.shape)
            values = checkpoint.read(ReadRequest(name))
            assert values.flags["OWNDATA"] and values.dtype == np.float32
            np.testing.assert_array_equal(values, tensor.float().numpy())
            np.testing.assert_array_equal(checkpoint.read(ReadRequest(name, ((4, 6), (0, 1)))), values[[4, 5, 0]])


@pytest.mark.parametrize(
    ("file", "dtype", "zipped"),
    [
        ("pytorch_model.bin", torch.float32, False),
        ("state_dict.pt", torch.float16, True),
        ("weights.pth", torch.bfloat16, True),
    ],
)
def test_a_state_dict_is_read(tmp_path: Path, file: str, dtype: Any, zipped: bool) -> None:
    state = pickle_bytes(state_dict_of(dtype=dtype), zipped=zipped)
    write_files(tmp_path, {file: state, "training_args.bin": b"", "optimizer.pt": b""})
    for ref in (tmp_path, tmp_path / file):
        assert_same_tensors(ref, state_dict_of(dtype=dtype))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model": s, "optimizer": {"step": torch.zeros(1)}},
    ],
)
def test_a_nested_state_dict_is_found(tmp_path: Path, wrap: Any) -> None:
    assert_same_tensors(write_files(tmp_path, {"a.pt": pickle_bytes(wrap(state_dict_of()))}), state_dict_of())


INDEX = "pytorch_model.bin.index.json"


def test_shards_are_read_and_checked(tmp_path: Path) -> None:
    weight_map = {name: f"part{seed}.bin" for seed in (0, 1) for name in state_dict_of(seed)}
    write_files(
        tmp_path,
        {
            "part0.bin": pickle_bytes(state_dict_of(0)),
            "part1.bin": pickle_bytes(state_dict_of(1), zipped=False),
            "config.json": LLAMA_CONFIG,
        },
    )
    write_files(tmp_path, {INDEX: {"weight_map": weight_map}})
    assert_same_tensors(tmp_path, {**state_dict_of(0), **state_dict_of(1)})
    assert open_checkpoint(tmp_path).config == LLAMA_CONFIG
    (tmp_path / "part1.bin").unlink()
    with pytest.raises(SourceError, match=r"part1\.bin: is missing, but '.*' lists it"):
        open_checkpoint(tmp_path)
    write_files(tmp_path, {INDEX: {"weight_map": {"other": "part0.bin"}}})
    with pytest.raises(SourceError, match=r"part0\.bin: has no tensor 'other', but the index lists it there"):
        open_checkpoint(tmp_path)


class RunsCode:
    """An object whose unpickling calls os.system."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("form", ["zip", "old", "raw 4"])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, form: str) -> None:
    mark = tmp_path / "it ran".replace(" ", "-")
    content = {"w": torch.ones(2), "x": RunsCode(mark)}
    if form.startswith("raw"):
        data = pickle.dumps(RunsCode(mark), protocol=int(form[-1]))
    else:
        data = pickle_bytes(content, zipped=form == "zip")
    folder = write_files(tmp_path / "model", {"pytorch_model.bin": data})
    with pytest.raises(SourceError, match=r"pytorch_model\.bin: its pickle .*refused \(nothing was run\)") as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert form == "raw 4" or "posix.system" in str(caught.value)
    assert not mark.exists()
    pickle.loads(pickle.dumps(RunsCode(mark)))  # without protection the code runs
    assert mark.exists()


def test_a_lightning_checkpoint_with_objects_is_refused_by_their_names(tmp_path: Path) -> None:
    state = {"state_dict": state_dict_of(), "hyper_parameters": {"x": Path("a")}}
    file = write_files(tmp_path, {"a.ckpt": pickle_bytes(state)}) / "a.ckpt"
    with pytest.raises(SourceError, match=r"a\.ckpt: its pickle calls 'pathlib.*' and was refused") as caught:
        open_checkpoint(file)
    assert str(caught.value).endswith("expected tensors alone: torch.save(model.state_dict(), FILE)")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old format"])
def test_an_incomplete_pickle_is_refused(tmp_path: Path, zipped: bool) -> None:
    data = pickle_bytes({"w": torch.randn(50, 50)}, zipped=zipped)
    for keep in (0, 100, len(data) // 2, len(data) - 1):
        write_files(tmp_path, {"pytorch_model.bin": data[:keep]})
        with pytest.raises(SourceError, match=r"pytorch_model\.bin: ") as caught:
            open_checkpoint(tmp_path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


TRAINING = {"step": 3, "weights": {"q.weight": torch.ones(2, 2)}, "moments": {}, "config": "{}"}
KEYS = "holds no state dict but the keys "


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"a": 3}, "without tensors, expected a state dict of tensors"),
        (TRAINING, f"{KEYS}'step', 'weights', 'moments', 'config'.* the exported model"),
        ({"h.0.attn.qweight": torch.zeros(2, 2, dtype=torch.int32), "w": torch.ones(2)}, "packed by GPTQ / AWQ"),
        ({"q.weight": torch.full((5, 3), torch.nan)}, r"tensor 'q\.weight' holds nan at \[3, 0\]"),
    ],
)
def test_a_pickle_without_weights_to_read_is_refused(tmp_path: Path, content: object, says: str) -> None:
    folder = write_files(tmp_path, {"x.pt": pickle_bytes(content)})
    with pytest.raises(SourceError, match=rf"x\.pt: .*{says}"), open_checkpoint(folder) as checkpoint:
        checkpoint.read(ReadRequest("q.weight", ((3, 5),)))


def test_without_torch_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"pytorch_model.bin": pickle_bytes(state_dict_of())})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SourceError, match=r"needs torch: pip install 'attngeo\[torch\]'"):
        open_checkpoint(tmp_path)


def test_published_pickles_are_read(rxnfp: Path, sceptr: Path) -> None:
    """Old-format `.bin` files with a config, and `.pt` state dicts with the config of another program."""
    for folder in ("bert_pretrained", "bert_ft", "bert_ft_10k_25s"):
        file = rxnfp / folder / "pytorch_model.bin"
        expected = torch.load(file, map_location="cpu", weights_only=True)
        with open_checkpoint(rxnfp / folder) as checkpoint:
            name = next(name for name in checkpoint.tensors if name.endswith("layer.7.attention.self.key.weight"))
            np.testing.assert_array_equal(checkpoint.read(ReadRequest(name)), expected[name].numpy())
            assert checkpoint.config is not None and checkpoint.config["num_attention_heads"] == 4
    with open_checkpoint(sceptr / "SCEPTR") as checkpoint:
        assert checkpoint.config is None
        assert sum(name.endswith("in_proj_weight") for name in checkpoint.tensors) == 3
