"""`.bin`, `.pt`, `.pth`: state dicts in torch's pickle, loaded so that no code in them can run."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attngeo.errors import SourceError, first_line
from attngeo.weights.sources.memory import MemoryCheckpoint
from attngeo.weights.sources.quantized import refuse_packed

_NESTS = ("state_dict", "model_state_dict", "model", "module", "net", "ema")  # where trainers keep the weights


def pickle_checkpoint(
    ref: str,
    config: Mapping[str, Any] | None,
    files: Sequence[tuple[str, Path]],  # (name for messages, path)
    weight_map: Mapping[str, str] | None = None,  # tensor → file name, where an index gives it
) -> MemoryCheckpoint:
    """All tensors of one or several pickled state dicts; zip archives are mapped, not read."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, path in files:
        for tensor, value in load(path, name).items():
            if tensor in values:
                raise SourceError(f"{name}: tensor {tensor!r} is also in {origin[tensor]}; name the one file to read")
            values[tensor], origin[tensor] = value, name
    for tensor, shard in (weight_map or {}).items():
        if tensor not in values:
            raise SourceError(f"{ref}: the index lists tensor {tensor!r} in {shard!r}, which does not have it")
    refuse_packed(ref, values)
    return MemoryCheckpoint(ref, config, values, origin)


def check_torch(name: str) -> None:
    """An error that says what to install, where torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise SourceError(f"{name}: reading a pickled state dict needs torch: pip install attngeo[torch]") from error


def load(path: Path, name: str) -> dict[str, Any]:
    """Tensors by name from one pickle; anything that would need code to be rebuilt is refused."""
    check_torch(name)
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of an odd pickle before it refuses it: one line is enough
            content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise SourceError(f"{name}: {_unsafe(str(error))}") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        reason = first_line(error).partition(". ")[0]
        raise SourceError(f"{name}: not a whole pickled state dict ({reason})") from error
    tensors = _tensors(content)
    if not tensors and isinstance(content, dict) and "fingerprint" in content:
        raise SourceError(
            f"{name}: a training state of attngeo pretrain; the trained model is the folder `model` beside it"
        )
    if not tensors:
        raise SourceError(f"{name}: holds a {type(content).__name__} without tensors; a state dict of tensors expected")
    return tensors


def _unsafe(message: str) -> str:
    """One line out of torch's page: what the pickle asked for, and that it was not given."""
    found = re.search(r"GLOBAL ([\w.]+)|(?:class|function|global):? ([\w.]+\.[\w.]+)", message)
    if found:
        what = (found[1] or found[2]).rstrip(".")
        return f"its pickle calls {what!r} and was refused (nothing was run); a plain state dict of tensors expected"
    if "Unsupported operand" in message or "persistent" in message or "must be" in message:
        return "its pickle does more than list tensors and was refused (nothing was run); a plain state dict expected"
    return "not a pickled state dict, or one cut short; a state dict of tensors expected"


def _tensors(content: Any, depth: int = 0) -> dict[str, Any]:
    """The state dict inside a checkpoint: the mapping itself, or the one under a customary key if that has more."""
    import torch

    if not isinstance(content, Mapping) or depth > 2:
        return {}
    own = {str(key): value for key, value in content.items() if isinstance(value, torch.Tensor)}
    return max([own, *(_tensors(content.get(key), depth + 1) for key in _NESTS)], key=len)
