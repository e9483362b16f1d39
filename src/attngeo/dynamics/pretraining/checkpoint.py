"""What a run leaves on disk beside its records: a checkpoint written whole, the model for transformers."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attngeo.dynamics.pretraining.bert import Bert
from attngeo.dynamics.pretraining.config import INCIDENTAL, PretrainConfig
from attngeo.errors import AttngeoError, SourceError, reason
from attngeo.io.atomic import write_file


def save_checkpoint(path: Path, config: PretrainConfig, state: dict[str, Any]) -> None:
    """Replace the checkpoint at once: killed halfway, the one before is still there."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open(temporary, "wb") as file:
            torch.save({"fingerprint": config.fingerprint, "config": _text(config), **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        temporary.unlink(missing_ok=True)
        kept = "; the checkpoint before it is kept" if path.exists() else ""
        raise AttngeoError(f"{path}: cannot be written ({reason(error)}){kept}") from error


def load_checkpoint(path: Path, config: PretrainConfig) -> dict[str, Any] | None:
    """The state saved at `path`, None where there is none; one of another config is refused."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        found, was = state["fingerprint"], json.loads(state["config"])
    except Exception as error:
        raise SourceError(f"{path}: not a checkpoint of this harness ({reason(error)})") from error
    if found != config.fingerprint:
        now = json.loads(_text(config))
        names = [key for key in now if key not in INCIDENTAL and key in was and was[key] != now[key]]
        changed = [f"{key} was {was[key]}, is {now[key]}" for key in names]
        raise SourceError(f"{path}: a checkpoint of another config "
                          f"({'; '.join(changed) or 'other settings'}); name another out, or delete it")  # fmt: skip
    return state


def save_model(model: Bert, folder: Path, tokens: Path, config: PretrainConfig) -> None:
    """A folder that `from_pretrained` loads: weights, config, tokenizer; with the settings that made it."""
    from safetensors.torch import save

    try:
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().float().cpu().contiguous() for name, value in model.state_dict().items()}
        write_file(folder / "model.safetensors", save(weights, {"format": "pt"}))
        write_file(folder / "tokenizer.json", (tokens / "tokenizer.json").read_bytes())
        # Token files serve rows of every length; the model has places for its own only, and texts are cut to them.
        names = {**json.loads((tokens / "tokenizer_config.json").read_text()), "model_max_length": config.length}
        write_file(folder / "tokenizer_config.json", json.dumps(names, indent=2).encode())
        write_file(folder / "pretrain.json", json.dumps(asdict(config), indent=2).encode())
        write_file(folder / "config.json", json.dumps(model.config.to_dict(), indent=2).encode())
    except OSError as error:
        raise AttngeoError(f"{folder}: the model cannot be written ({reason(error)})") from error


def _text(config: PretrainConfig) -> str:
    return json.dumps(asdict(config))
