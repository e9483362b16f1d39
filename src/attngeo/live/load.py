"""From a reference to a live model, and to what turns texts, images and sounds into its inputs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from attngeo.errors import AttngeoError, InputError, SourceError, first_line
from attngeo.weights.sources.memory import unwrapped

# Parts a checkpoint may leave out without any attention noticing: they come after it, or serve training only.
_IDLE = re.compile(r"pool|classifier|\bhead\b|masked_spec_embed|position_ids", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Live:
    """A model that can run, and where its tokenizer and processors are found; they are loaded when first needed."""

    model: Any
    name: str
    source: dict[str, Any] | None = None  # what from_pretrained is called with; None: nowhere to look
    given: dict[str, Any] = field(default_factory=dict)  # "tokenizer", "processor"

    @cached_property
    def tokenizer(self) -> Any:
        """The text tokenizer, or None where there is none."""
        given = self.given.get("tokenizer") or self.given.get("processor")
        if given is not None:
            return getattr(given, "tokenizer", given)
        found = self._loaded("AutoTokenizer")
        # Without its files transformers may make one up that knows no words, only its own marks.
        return found if found is not None and set(found.get_vocab()) - set(found.all_special_tokens) else None

    @cached_property
    def image_processor(self) -> Any:
        """What makes pixel values of an image, or None."""
        given = self.given.get("processor")
        return getattr(given, "image_processor", given) if given is not None else self._loaded("AutoImageProcessor")

    @cached_property
    def sound_processor(self) -> Any:
        """What makes features of a waveform, or None."""
        given = self.given.get("processor")
        return getattr(given, "feature_extractor", given) if given is not None else self._loaded("AutoFeatureExtractor")

    def _loaded(self, auto: str) -> Any:
        if self.source is None:
            return None
        import transformers

        try:
            with quiet():
                return getattr(transformers, auto).from_pretrained(**self.source)
        except Exception:  # transformers has no one error for "there is none"; the caller says what is missing
            return None


def live_model(ref: Any, *, tokenizer: Any = None, processor: Any = None, device: str | None = None) -> Live:
    """`ref` as a model in float32 that can run: a folder, a GGUF file, a hub id `org/name[@revision]`, or a model."""
    try:
        import torch
        import transformers
    except ImportError:
        raise AttngeoError("running a model needs torch and transformers: pip install 'attngeo[torch]'") from None
    given = {"tokenizer": tokenizer, "processor": processor}
    if isinstance(ref, torch.nn.Module):
        ref = unwrapped(ref)
        if not isinstance(ref, transformers.PreTrainedModel):
            raise InputError(f"{type(ref).__name__}: not a transformers model, its attention cannot be captured")
        place = ref.name_or_path
        source = {"pretrained_model_name_or_path": place} if place and os.path.isdir(place) else None
        return Live(ref, _short(place) if place else type(ref).__name__, source, given)
    if not isinstance(ref, str | os.PathLike):
        raise InputError(f"{type(ref).__name__}: a folder, a GGUF file, a hub id or a transformers model expected")
    name = os.fspath(ref)
    source = _source(name)
    model = _load(name, source).eval()
    try:
        model = model.to(device) if device is not None else model
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used: {first_line(error)}") from None
    return Live(model, _short(name), source, given)


def _source(ref: str) -> dict[str, Any]:
    path = Path(os.path.expanduser(ref))
    if path.is_dir():
        packed = sorted(path.glob("*.gguf"))
        if not (path / "config.json").exists() and len(packed) == 1:
            path = packed[0]
        else:
            return {"pretrained_model_name_or_path": str(path)}
    if path.is_file():
        folder = {"pretrained_model_name_or_path": str(path.parent)}
        return folder | {"gguf_file": path.name} if path.suffix == ".gguf" else folder
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@.+)?", ref) or path.suffix in (".gguf", ".safetensors", ".bin"):
        raise SourceError(f"{ref}: no such folder, and not a hub id; a folder, a GGUF file or `org/name` expected")
    repository, _, revision = ref.partition("@")
    return {"pretrained_model_name_or_path": repository} | ({"revision": revision} if revision else {})


def _load(name: str, source: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoModel

    try:
        with quiet():
            model, info = AutoModel.from_pretrained(**source, dtype=torch.float32, output_loading_info=True)
    except Exception as error:
        raise SourceError(f"{name}: transformers cannot load it ({first_line(error)})") from error
    missing = sorted(key for key in info["missing_keys"] if not _IDLE.search(key))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SourceError(f"{name}: the tensor {missing[0]}{more} of {type(model).__name__} is not in the checkpoint")
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """transformers without its bars and reports; what matters is raised."""
    import warnings

    from transformers import modeling_gguf_pytorch_utils as packed
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    own = vars(packed).get("tqdm")
    packed.tqdm = logging.tqdm  # the one bar there that does not ask whether bars are wanted
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        packed.tqdm = own
        logging.set_verbosity(level)
        restore: Callable[[], None] = logging.enable_progress_bar if bars else logging.disable_progress_bar
        restore()


def run(model: Any, kind: str, tensors: Mapping[str, Any]) -> Any:
    """The output of a model of this kind; what it cannot run on is an InputError that names the tensors."""
    try:
        return model(**tensors)
    except AttngeoError:
        raise
    except Exception as error:
        given = ", ".join(name for name in tensors if name != "use_cache")
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{kind}: {type(model).__name__} cannot run on {given} ({problem})") from error


def _short(ref: str) -> str:
    """A name for titles: a hub id as it is, of a path its last two parts."""
    return "/".join(Path(ref).parts[-2:])
