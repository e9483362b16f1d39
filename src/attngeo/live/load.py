"""Load a transformers model that can run, with the tokenizer and the processors that prepare its inputs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from attngeo.errors import AttngeoError, InputError, SourceError, first_line
from attngeo.io.names import short_name
from attngeo.live.attention_modules import forward_arguments, type_label
from attngeo.weights.layout.heads import CONFIG_KEY
from attngeo.weights.sources.folder import LocalFolder, find_weights, weights_of_file
from attngeo.weights.sources.memory import unwrapped

if TYPE_CHECKING:
    from torch import nn
    from transformers import (
        BaseImageProcessor,
        FeatureExtractionMixin,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        ProcessorMixin,
    )

# Strings, so that the definitions do not import transformers.
ModelRef: TypeAlias = "str | os.PathLike[str] | PreTrainedModel | LoadedModel"
Processor: TypeAlias = "ProcessorMixin | BaseImageProcessor | FeatureExtractionMixin"

# The file of weights that transformers takes from a folder: the first of these that is there.
_TAKEN_FIRST = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# Weights that a checkpoint may lack without an effect on attention: they come after it, or serve training only.
_NOT_USED_BY_ATTENTION = re.compile(r"pool|classifier|\bhead\b|masked_spec_embed|position_ids", re.IGNORECASE)
_NOT_USED_WITH_HEAD = re.compile(r"pool|masked_spec_embed|position_ids", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that can run, and where its tokenizer and processors are; those are loaded on first use."""

    model: PreTrainedModel
    name: str
    source: dict[str, str] | None = None  # arguments of from_pretrained; None: only what was given is available
    given: dict[str, Any] = field(default_factory=dict)  # "tokenizer" and "processor", as given by the caller

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The text tokenizer, or None if there is none."""
        for given in (self.given.get("tokenizer"), self.given.get("processor")):
            found = getattr(given, "tokenizer", given)
            if hasattr(found, "convert_ids_to_tokens"):  # a processor may be one of images alone
                return found
        tokenizer = self._load("AutoTokenizer")
        # Without tokenizer files transformers may invent a tokenizer that knows only its special tokens.
        usable = tokenizer is not None and set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
        return tokenizer if usable else None

    @cached_property
    def image_processor(self) -> BaseImageProcessor | None:
        """The processor that computes pixel values of an image, or None if there is none."""
        return self._processor("image_processor", "AutoImageProcessor")

    @cached_property
    def feature_extractor(self) -> FeatureExtractionMixin | None:
        """The processor that computes features of a waveform, or None if there is none."""
        return self._processor("feature_extractor", "AutoFeatureExtractor")

    def _processor(self, part: str, auto_class: str) -> Any:
        """Return this part of the processor that was given, or load it."""
        given = self.given.get("processor")
        return self._load(auto_class) if given is None else getattr(given, part, given)

    def _load(self, auto_class: str) -> Any:
        if self.source is None:
            return None
        import transformers

        try:
            with quiet_transformers():
                return getattr(transformers, auto_class).from_pretrained(**self.source)
        except Exception:  # transformers has no single error for a missing file; the caller reports what is missing
            return None


def check_torch() -> None:
    """Raise if torch or transformers, which run models, is not installed."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        raise AttngeoError("running a model needs torch and transformers: pip install 'attngeo[torch]'") from None


def load_model(
    ref: ModelRef,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    processor: Processor | None = None,
    device: str | None = None,
    head: bool = False,
    weights: bool = True,
) -> LoadedModel:
    """Return the model behind `ref`: a folder, a GGUF file, a hub id `org/name[@revision]`, or a transformers model.

    A reference is loaded in float32, in evaluation mode, onto `device`. A model that is given is used as it is, where
    it is; wrappers such as DataParallel are removed. A model that this function has loaded is returned.

    head: load the architecture that the config names, with the head it was trained with; by default the bare model
    weights: False: leave the weights of a reference out where its config is enough to make the model, which cannot run
    """
    if isinstance(ref, LoadedModel):
        return ref
    check_torch()
    import torch
    import transformers

    _check_given(tokenizer, processor)
    given = {"tokenizer": tokenizer, "processor": processor}
    if isinstance(ref, torch.nn.Module):
        model = unwrapped(ref)
        if not isinstance(model, transformers.PreTrainedModel):
            if hasattr(model, "merge_and_unload"):  # of peft
                raise InputError(f"{type(model).__name__}: has an adapter; merge it by merge_and_unload()")
            raise InputError(f"{type(model).__name__}: not a transformers model, its attention cannot be captured")
        origin = model.name_or_path
        source = {"pretrained_model_name_or_path": origin} if origin and os.path.isdir(origin) else None
        return LoadedModel(model, short_name(origin) if origin else type(model).__name__, source, given)
    if not isinstance(ref, str | os.PathLike):
        raise InputError(f"{type(ref).__name__}: expected a folder, a GGUF file, a hub id or a transformers model")
    name = os.fspath(ref)
    if not os.path.exists(os.path.expanduser(name)):
        from attngeo.weights.sources.hub import is_address, parse_address  # late: folders do not need the hub

        name = str(parse_address(name)) if is_address(name) else name
    source = _pretrained_arguments(name)
    with _gguf_parsed_once():
        if not weights and (empty := _from_config(source)) is not None:
            return LoadedModel(empty, short_name(name), source, given)
        model = (_pruned(source, head) or _from_pretrained(name, source, head)).eval()
        loaded = LoadedModel(model, short_name(name), source, given)
        if "gguf_file" in source:
            _ = loaded.tokenizer  # now, while the parsed file is at hand
    try:
        if device is not None:
            model.to(torch.device(device))
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"device {device!r} cannot be used: {first_line(error)}") from None
    return loaded


@contextmanager
def _gguf_parsed_once() -> Iterator[None]:
    """Within this context a GGUF file is parsed once, which takes seconds for a large vocabulary.

    transformers parses it for the config, for the weights and for the tokenizer.
    """
    import gguf

    parse = gguf.GGUFReader
    gguf.GGUFReader = cache(parse)  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        gguf.GGUFReader = parse  # type: ignore[misc]


def _check_given(tokenizer: Any, processor: Any) -> None:
    """Raise InputError for a tokenizer or a processor that could not be used, in place of which another would be."""
    if tokenizer is not None and not hasattr(getattr(tokenizer, "tokenizer", tokenizer), "convert_ids_to_tokens"):
        raise InputError(f"tokenizer: a {type(tokenizer).__name__}, expected a tokenizer of transformers")
    if processor is not None and not callable(processor):
        raise InputError(f"processor: a {type(processor).__name__}, expected a processor of transformers")


def _pretrained_arguments(ref: str) -> dict[str, str]:
    """Return the arguments with which from_pretrained finds `ref`; raise if there is no such model."""
    path = Path(os.path.expanduser(ref))
    if path.is_dir() and not (path / "config.json").exists() and len(gguf_files := sorted(path.glob("*.gguf"))) == 1:
        path = gguf_files[0]
    if path.is_dir():
        _check_files(path, None, ref)
        return {"pretrained_model_name_or_path": str(path)}
    if path.is_file():
        _check_files(path.parent, path.name, ref)
        folder = {"pretrained_model_name_or_path": str(path.parent)}
        return folder | {"gguf_file": path.name} if path.suffix == ".gguf" else folder
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@.+)?", ref) or path.suffix in (".gguf", ".safetensors", ".bin"):
        raise SourceError(f"{ref}: no such folder, and not a hub id; expected a folder, a GGUF file or `org/name`")
    return _hub_arguments(*ref.partition("@")[::2])


def _check_files(folder: Path, file: str | None, ref: str) -> None:
    """Raise where transformers finds no weights, no config beside them, or other weights than those asked for.

    Of the first two it says less itself, and the last would be silent.

    file: the name of the file that is asked for, None for any
    """
    names = LocalFolder(ref, folder).names
    if file is None and "adapter_config.json" in names:  # which names the model that it changes
        return
    weights = find_weights(names, ref) if file is None else weights_of_file(file, names, ref)
    if weights.kind != "gguf" and "config.json" not in names:
        raise SourceError(f"{ref}: no config.json beside the weights, which transformers needs to run the model")
    taken = next((name for name in _TAKEN_FIRST if name in names), file)
    if weights.kind != "gguf" and file not in (None, taken):
        raise SourceError(f"{ref}: transformers would run {taken} of this folder instead; move the file "
                          "and a copy of config.json to a folder of their own")  # fmt: skip


def _hub_arguments(repository: str, revision: str) -> dict[str, str]:
    """Return the arguments for a model on the hub, after asking the hub for it.

    Otherwise transformers tries for half a minute and says less about what is wrong.
    """
    from attngeo.weights.sources.hub import HubModel, HubRef  # late: folders do not need the hub

    HubModel(HubRef(repository, revision=revision or "main"))
    return {"pretrained_model_name_or_path": repository} | ({"revision": revision} if revision else {})


def _from_pretrained(name: str, source: dict[str, str], head: bool) -> PreTrainedModel:
    import torch
    from transformers import AutoModel

    try:
        with quiet_transformers():
            loader = _architecture(source) if head else AutoModel
            model, info = loader.from_pretrained(**source, dtype=torch.float32, output_loading_info=True)
    except Exception as error:
        raise SourceError(f"{name}: transformers cannot load it ({first_line(error)})") from error
    unused = _NOT_USED_WITH_HEAD if head else _NOT_USED_BY_ATTENTION
    missing = sorted(key for key in info["missing_keys"] if not unused.search(key))
    if missing:
        more = len(missing) - 1
        which = f"tensors {missing[0]} and {more} more" if more else f"tensor {missing[0]}"
        verb = "are" if more else "is"
        raise SourceError(f"{name}: the {which} of {type(model).__name__} {verb} not in the checkpoint")
    return model


def _from_config(source: dict[str, str]) -> PreTrainedModel | None:
    """Return the bare model that a config describes, with no memory behind its weights; None if that is not enough."""
    import torch
    from transformers import AutoConfig, AutoModel

    try:
        with quiet_transformers(), torch.device("meta"):
            model: PreTrainedModel = AutoModel.from_config(AutoConfig.from_pretrained(**source))
    except Exception:  # whatever is wrong, loading the model will say
        return None
    return model


def _pruned(source: dict[str, str], head: bool) -> PreTrainedModel | None:
    """Return the model of a folder that `attngeo.prune` made, which transformers alone cannot load; None for others."""
    import torch

    folder = Path(source["pretrained_model_name_or_path"])
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not (isinstance(config, dict) and CONFIG_KEY in config):
        return None
    # By its public name: pruning lies in a room above this one.
    model: PreTrainedModel = import_module("attngeo").load_pruned(folder, dtype=torch.float32)
    return model if head else model.base_model


def _architecture(source: dict[str, str]) -> Any:
    """Return the class that the config names; for a GGUF file, whose config names none, that of a language model."""
    import transformers

    named = named_architecture(transformers.AutoConfig.from_pretrained(**source))
    return named or (transformers.AutoModelForCausalLM if "gguf_file" in source else transformers.AutoModel)


def named_architecture(config: Any) -> Any:
    """Return the class of transformers that a config names first; None if it names no model class."""
    import transformers

    found = getattr(transformers, str(next(iter(config.architectures or ()), "")), None)
    return found if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) else None


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress the progress bars, log messages and warnings of transformers; errors are raised as usual."""
    import warnings

    from transformers import modeling_gguf_pytorch_utils as gguf_utils
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tqdm = vars(gguf_utils).get("tqdm")
    gguf_utils.tqdm = logging.tqdm  # the one progress bar that ignores disable_progress_bar
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gguf_utils.tqdm = tqdm
        logging.set_verbosity(verbosity)
        restore_bars: Callable[[], None] = logging.enable_progress_bar if bars else logging.disable_progress_bar
        restore_bars()


def run_model(model: nn.Module, tensors: Mapping[str, Any], *, within: nn.Module | None = None) -> Any:
    """Return the output of `model` on `tensors`, without a key-value cache; raise InputError if the forward fails.

    within   the whole model, of which `model` is a part; the message names its type
    """
    arguments = dict(tensors) | ({"use_cache": False} if "use_cache" in forward_arguments(model) else {})
    try:
        return model(**arguments)
    except AttngeoError:
        raise
    except Exception as error:
        label = type_label(model if within is None else within)
        given = ", ".join(name for name in tensors if name != "use_cache")
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{label}: {type(model).__name__} cannot run on {given} ({problem})") from error
