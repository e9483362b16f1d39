"""The checkpoint of a run, from which it continues, and the trained model, which transformers loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attngeo.errors import AttngeoError, InputError, SourceError, reason
from attngeo.io.archive import MADE_WITH, parse_json
from attngeo.io.files import atomic_file, write_file
from attngeo.training.pretraining.architectures import Model
from attngeo.training.pretraining.config import RESULT_NEUTRAL, PretrainConfig
from attngeo.version import versions


def save_checkpoint(path: Path, config: PretrainConfig, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path` atomically: if the process is killed meanwhile, the one before stays.

    state: "step", "tokens" (digest of the token files), "weights" and "moments" as `Engine.state` returns them
    """
    try:
        with atomic_file(path, durable=True) as file:
            torch.save({"fingerprint": config.fingerprint, "config": json.dumps(asdict(config)), **state}, file)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        kept = "; the checkpoint before it is kept" if path.exists() else ""
        raise AttngeoError(f"{path}: cannot be written ({reason(error)}){kept}") from error


def load_checkpoint(path: Path, config: PretrainConfig) -> dict[str, Any] | None:
    """Return the state saved at `path`, or None if there is none; raise if it belongs to another config."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        fingerprint, saved = state["fingerprint"], parse_json(state["config"])
    except Exception as error:  # torch raises errors of many classes for a broken file
        raise SourceError(f"{path}: not a checkpoint of attngeo pretrain ({reason(error)})") from error
    if fingerprint != config.fingerprint:
        now = json.loads(json.dumps(asdict(config)))
        names = [key for key in now if key not in RESULT_NEUTRAL and key in saved and saved[key] != now[key]]
        changes = [f"{key} was {saved[key]}, is {now[key]}" for key in names]
        raise SourceError(f"{path}: a checkpoint of another config "
                          f"({'; '.join(changes) or 'other settings'}); name another out, or delete it")  # fmt: skip
    return state


def tokenizer_files(tokens: Path, length: int) -> dict[str, bytes]:
    """Return the files of the tokenizer in the folder `tokens`, by name, for a model of `length` positions."""
    try:
        # Token files serve rows of every length; texts for this model are truncated to the positions it has.
        settings = {**json.loads((tokens / "tokenizer_config.json").read_text("utf-8")), "model_max_length": length}
        tokenizer = (tokens / "tokenizer.json").read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{tokens}: its tokenizer cannot be read ({reason(error)})") from error
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": json.dumps(settings, indent=2).encode()}


def save_model(model: Model, folder: Path, tokenizer: Mapping[str, bytes], config: PretrainConfig) -> None:
    """Write a folder that `from_pretrained` loads: weights, config and tokenizer, and the settings of the run.

    tokenizer: files of the tokenizer, as `tokenizer_files` returns them
    """
    from safetensors.torch import save

    try:
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().float().cpu().contiguous() for name, value in model.state_dict().items()}
        write_file(folder / "model.safetensors", save(weights, {"format": "pt"}))
        for name, content in tokenizer.items():
            write_file(folder / name, content)
        write_file(folder / "pretrain.json", json.dumps(asdict(config) | {MADE_WITH: versions()}, indent=2).encode())
        write_file(folder / "config.json", json.dumps(model.config.to_dict(), indent=2).encode())
    except OSError as error:
        raise AttngeoError(f"{folder}: the model cannot be written ({reason(error)})") from error
