"""Load `.bin`, `.pt`, `.pth` and `.ckpt` files, torch's pickles, in a way that cannot run code from the file."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.errors import SourceError, first_line
from attngeo.weights.sources.checkpoint import without_wrappers
from attngeo.weights.sources.memory import MemoryCheckpoint
from attngeo.weights.sources.numbers import refuse_adapter, refuse_packed

if TYPE_CHECKING:
    import torch

_STATE_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "ema")  # under which trainers save weights


def pickle_checkpoint(
    ref: str, config: Mapping[str, Any] | None, tensors: Mapping[str, torch.Tensor], files: Mapping[str, str]
) -> MemoryCheckpoint:
    """Return tensors of pickled state dicts as a checkpoint.

    files: tensor → name of its file, for messages
    """
    refuse_adapter(ref, tensors)
    origin = {name: files[name] for name in tensors}
    return MemoryCheckpoint(ref, config, without_wrappers(tensors), without_wrappers(origin))


def check_torch(name: str) -> None:
    """Raise SourceError, with the command that installs it, if torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise SourceError(f"{name}: reading a pickled state dict needs torch: pip install 'attngeo[torch]'") from error


def load_state_dict(path: Path, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one pickle by name, read by torch's restricted unpickler; zip archives are memory-mapped.

    A pickle that needs code to be rebuilt is refused.

    name: of the file, for messages
    """
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of an odd pickle before it refuses it: one line is enough
            content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise SourceError(f"{name}: {_refusal(str(error))}") from error
    except Exception as error:  # the unpickler raises errors of every kind for damaged files
        why = first_line(error).partition(". ")[0]
        raise SourceError(f"{name}: not a pickled state dict, or an incomplete or damaged one ({why})") from error
    tensors = _find_tensors(content, name)
    if not tensors:
        raise SourceError(f"{name}: {_without_tensors(content)}")
    return tensors


def _refusal(message: str) -> str:
    """Return one line from torch's long message: what the pickle asked for, and that it was refused."""
    named = re.search(r"GLOBAL ([\w.]+)|(?:class|function|global):? ([\w.]+\.[\w.]+)", message)
    if named:
        what = (named[1] or named[2]).rstrip(".")
        return (
            f"its pickle calls {what!r} and was refused (nothing was run); expected tensors alone: "
            "torch.save(model.state_dict(), FILE)"
        )
    return (
        "its pickle does more than list tensors, or is incomplete or damaged, and was refused (nothing was run); "
        "a plain state dict expected"
    )


def _without_tensors(content: object) -> str:
    """Return what a pickle without a state dict holds, and where the weights may be if it is a training checkpoint."""
    if isinstance(content, Mapping) and any(isinstance(value, Mapping) for value in content.values()):
        keys = ", ".join(repr(key) for key in list(content)[:6]) + (", …" if len(content) > 6 else "")
        return (
            f"holds no state dict but the keys {keys}, as a checkpoint to continue training from does; "
            "expected a state dict of tensors: name the folder with the exported model"
        )
    return f"holds a {type(content).__name__} without tensors, expected a state dict of tensors"


def _find_tensors(content: object, name: str, depth: int = 0) -> dict[str, torch.Tensor]:
    """Return the tensors of a mapping, or those under one of the usual keys if there are more of them.

    name: of the file, for messages
    """
    import torch

    if not isinstance(content, Mapping) or depth > 2:
        return {}
    refuse_packed(name, map(str, content))  # here, because torch.ao.quantization packs weights in tuples
    own = {str(key): value for key, value in content.items() if isinstance(value, torch.Tensor)}
    return max([own, *(_find_tensors(content.get(key), name, depth + 1) for key in _STATE_KEYS)], key=len)
