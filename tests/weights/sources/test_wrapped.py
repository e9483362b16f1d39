"""Wrapped models, in memory and in files, have exactly the scores of the model inside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import save_file  # noqa: E402

import attngeo  # noqa: E402
from attngeo.errors import LayoutError, SourceError  # noqa: E402
from attngeo.weights.sources.open import open_checkpoint  # noqa: E402
from tests.weights.tiny_models import FAMILIES, bert, gpt2, llama  # noqa: E402

PREFIXES = ["module.", "model.", "_orig_mod.module.model."]


def scores(ref: Any, config: Any = None, **options: Any) -> Any:
    """Return the score table without the name of the model."""
    opened = open_checkpoint(ref, config=config)
    return attngeo.score(opened, nulls=False, folded=True, **options).frame.drop("model")


def compiled(module: Any) -> Any:
    """Return the module as `torch.compile` wraps it; the backend matters only when it runs."""
    return torch.compile(module, backend="eager")


def state_of(model: Any) -> dict[str, Any]:
    return {name: value.contiguous() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_state_dicts_of_wrapped_modules(family: str) -> None:
    model = FAMILIES[family]()
    expected, config = scores(model), model.config.to_dict()
    assert expected["symmetry_folded"].null_count() < len(expected)
    for prefix in PREFIXES:
        wrapped = {f"{prefix}{name}": value for name, value in state_of(model).items()}
        assert scores(wrapped, config).equals(expected), prefix


@pytest.mark.parametrize("prefix", ["model.", "_orig_mod.module.model."])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "last.ckpt"])
def test_files_of_wrapped_modules(tmp_path: Path, file: str, prefix: str) -> None:
    model = llama()
    wrapped = {f"{prefix}{name}": value.clone() for name, value in state_of(model).items()}
    if file.endswith(".safetensors"):
        save_file(wrapped, tmp_path / file)
    else:
        torch.save({"state_dict": wrapped, "epoch": 3} if file.endswith(".ckpt") else wrapped, tmp_path / file)
    model.config.to_json_file(tmp_path / "config.json")
    assert scores(tmp_path).equals(scores(model))
    assert scores(tmp_path / file).equals(scores(model))


def test_compiled_modules() -> None:
    expected = scores(bert())
    assert scores(compiled(bert())).equals(expected)
    whole = bert()
    whole.bert = compiled(whole.bert)
    layers = bert()
    for number, layer in enumerate(layers.bert.encoder.layer):
        layers.bert.encoder.layer[number] = compiled(layer)
    for model in (whole, layers):
        assert any("_orig_mod" in name for name in model.state_dict())
        assert scores(model).equals(expected)
        assert scores(model.state_dict(), model.config.to_dict()).equals(expected)


@pytest.fixture
def process_group() -> Iterator[None]:
    """A group of this process alone."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("needs torch.distributed with gloo")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_modules_under_ddp(tmp_path: Path) -> None:
    model = torch.nn.parallel.DistributedDataParallel(llama())
    assert scores(model).equals(scores(llama()))
    assert scores(compiled(model)).equals(scores(llama()))
    assert scores(torch.nn.parallel.DistributedDataParallel(compiled(llama()))).equals(scores(llama()))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    llama().config.to_json_file(tmp_path / "config.json")
    assert scores(tmp_path).equals(scores(llama()))


# ---- Lightning


def lightning_module(model: Any, **hyper_parameters: Any) -> Any:
    """Return a LightningModule that trains `model`."""
    lightning = pytest.importorskip("lightning")

    class Training(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters(hyper_parameters)
            self.model = model

    return Training()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Any:
    """Return a function that saves a module as Lightning's trainer does, without training it."""
    lightning = pytest.importorskip("lightning")
    import logging
    import warnings

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def save(module: Any) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the checkpoint's hyper-parameters, and of Lightning about torch
            trainer = lightning.Trainer(
                accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
                default_root_dir=tmp_path, enable_checkpointing=False, barebones=False,
            )  # fmt: skip
            trainer.strategy.connect(module)
            path = tmp_path / "epoch=0-step=10.ckpt"
            trainer.save_checkpoint(path)
        return path

    return save


def test_lightning_checkpoints(tmp_path: Path, checkpoint: Any) -> None:
    model = bert()
    path = checkpoint(lightning_module(model, rate=1e-3))
    alone = scores(path)  # without a config the number of heads is unknown
    layers = scores(model, heads=False)
    assert alone["head"].null_count() == len(alone) == 2
    assert alone.select("symmetry", "directionality").equals(layers.select("symmetry", "directionality"))
    assert scores(path, num_heads=4).height == 2 + 8
    model.config.to_json_file(tmp_path / "config.json")
    assert scores(path).equals(scores(model))
    assert scores(tmp_path).equals(scores(model))


def test_a_lightning_checkpoint_of_an_ambiguous_layout_needs_a_config(tmp_path: Path, checkpoint: Any) -> None:
    path = checkpoint(lightning_module(gpt2()))
    with pytest.raises(LayoutError, match="unknown layout; none of its tensors are known"):
        scores(path)
    gpt2().config.to_json_file(tmp_path / "config.json")
    assert scores(path).equals(scores(gpt2()))


def test_several_lightning_checkpoints_in_a_folder(tmp_path: Path) -> None:
    state = {"state_dict": state_of(bert())}
    for name in ("epoch=0.ckpt", "last.ckpt"):
        torch.save(state, tmp_path / name)
    with pytest.raises(SourceError, match=r"2 CKPT files \(epoch=0.ckpt, last.ckpt\); name the one to read"):
        open_checkpoint(tmp_path)
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")  # exported weights are preferred
    assert list(open_checkpoint(tmp_path).tensors) == ["w"]


def test_lightning_modules_in_memory() -> None:
    expected = scores(bert())
    module = lightning_module(bert())
    assert scores(module).equals(expected)
    assert scores(compiled(module)).equals(expected)
    module.model = compiled(module.model)
    assert scores(module).equals(expected)
    module.loss = torch.nn.Linear(3, 3)
    module.attention = torch.nn.MultiheadAttention(8, 2)  # attention of its own: nothing is left out
    assert len(scores(module)) > 2 and "BertForMaskedLM" not in open_checkpoint(module).ref


# ---- sentence-transformers


def sentence_folder(folder: Path, transformer: str) -> Path:
    """Write a BERT as sentence-transformers does, with its transformer in the folder `transformer`."""
    bert().save_pretrained(folder / transformer)
    paths = (transformer, "1_Pooling", "2_Dense")
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"models.{i}"} for i, path in enumerate(paths)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": torch.ones(2, 2)}, folder / "2_Dense" / "model.safetensors")
    return folder


@pytest.mark.parametrize("transformer", ["", "0_Transformer"])
def test_sentence_transformers_folders(tmp_path: Path, transformer: str) -> None:
    folder = sentence_folder(tmp_path / "model", transformer)
    assert scores(folder).equals(scores(bert()))
    assert open_checkpoint(folder).ref == str(folder)
