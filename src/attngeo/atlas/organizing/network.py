"""A network that is to be organised: what its results depend on, and the model itself, loaded once per process."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.atlas.reference import Reference, row_name
from attngeo.atlas.store import Store
from attngeo.errors import SourceError, reason
from attngeo.weights.sources.folder import LocalFolder, is_weights

if TYPE_CHECKING:
    from attngeo.live.load import LoadedModel

# Files beside the weights that transformers may read: settings, and vocabularies of tokenizers.
_SETTINGS = re.compile(r"[^/]*\.(json|model|spm|codes|tokenizer)|tokenizer\.[^/]*|(vocab|merges|dict)\.txt")
# What a Trainer writes into the folder of its run besides the model.
_OF_TRAINING = re.compile(r"checkpoint-\d+/|trainer_state|\w+_results")


def find_content(store: Store, reference: Reference) -> str:
    """Return what all results of a network depend on, and note it in the table of networks.

    On the hub this is the commit, of files on this machine a hash of those that are read: weights, settings and
    tokenizer. Others, such as logs and model cards, may change meanwhile.
    """
    located = reference.locate()
    name = row_name(reference, located.state)
    if (row := store.row("networks", name)) is not None:
        return str(row["content"])
    content = located.commit or _content_hash(Path(reference.model))
    if located.commit is None:
        store.remove_earlier("networks", name)
    common = {"model": reference.model, "revision": reference.revision, "commit": located.commit}
    store.write("networks", name, [common | {"content": content}])
    return content


@lru_cache(maxsize=1)
def load_network(store: Store, reference: Reference, content: str) -> LoadedModel:
    """Return the model. Tasks of one network follow each other, so that one model per process is kept."""
    from attngeo.live.load import load_model

    if reference.revision is not None:
        return load_model(f"{reference.model}@{content}")  # a branch may move while the call runs
    loaded = load_model(reference.model)
    if find_content(store, reference) != content:
        raise SourceError(f"{reference.model}: its files changed before they were read; try it again")
    return loaded


def is_read(name: str) -> bool:
    """Return whether results may depend on a file of the folder of a model, judged by its name.

    >>> [name for name in ("model.safetensors", "vocab.txt", "README.md", "train.log") if is_read(name)]
    ['model.safetensors', 'vocab.txt']
    """
    return not _OF_TRAINING.match(name) and (is_weights(name) or _SETTINGS.fullmatch(name) is not None)


def _content_hash(path: Path) -> str:
    """Return a hash of a GGUF file, or of the files of a model's folder that are read."""
    content = hashlib.sha256()
    if not path.exists():
        raise SourceError(f"{path}: no such folder or file")
    try:
        if path.is_file() and path.suffix == ".gguf":
            files = {"": path}  # complete in itself, and the same model under any name
        else:
            folder = path if path.is_dir() else path.parent
            names = sorted(filter(is_read, LocalFolder(str(path), folder).names))
            files = {name: folder / name for name in names}
        for name, file in files.items():
            with open(file, "rb") as opened:
                inside = hashlib.file_digest(opened, "sha256").hexdigest()
            content.update(f"{len(name)} {name} {inside}\n".encode())
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({reason(error)})") from None
    return content.hexdigest()[:40]
