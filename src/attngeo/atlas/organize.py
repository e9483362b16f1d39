"""Networks on many texts: what is asked of each, the task that answers it, and the texts.

Trees, Invariance   what is asked of a network on a text; its options are part of the hash that names the results
OrganizeTask        one question about one network on one text
organize_tasks      all tasks of one call of `Atlas.organize`
read_texts          the texts of a file or a folder
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attngeo.atlas.reference import Reference, row_name
from attngeo.atlas.store import BASES, CONTRASTS, AtlasWriteError, Store
from attngeo.atlas.task import Options, Outcome, Task
from attngeo.errors import AttngeoError, InputError, SourceError, reason
from attngeo.io.archive import digest
from attngeo.io.files import read_text
from attngeo.live.attention_modules import attention_stacks
from attngeo.live.load import LoadedModel, load_model
from attngeo.organization.capture import capture
from attngeo.organization.inputs import choose_stack, modality
from attngeo.organization.invariance import softmax_invariance
from attngeo.organization.organize import organize
from attngeo.organization.tensor import NetworkTensor
from attngeo.organization.tree import Tree
from attngeo.weights.scoring.score_table import Row, null_if_nan
from attngeo.weights.sources.folder import LocalFolder, is_weights

if TYPE_CHECKING:
    from attngeo.arrays import Floats

BASE_MEMORY = 1 << 30  # bytes, with torch and transformers loaded
OPENING = 60  # characters of a text that its rows repeat

# ---- texts


def text_digest(text: str) -> str:
    """Return a hash of a text, by which its rows name it.

    >>> text_digest("It is a truth universally acknowledged")
    '1e7936ec72c4'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def opening(text: str) -> str:
    """Return the first words of a text."""
    words = " ".join(text[: 4 * OPENING].split())
    return words if len(words) <= OPENING else words[: OPENING - 1].rstrip() + "…"


def read_texts(path: str | os.PathLike[str]) -> list[str]:
    """Return the texts of a file, one per line, or of a folder, one per .txt file; each text once, in order.

    >>> _ = Path("texts.txt").write_text("The first text.\\n\\nThe second text.\\n")
    >>> read_texts("texts.txt")
    ['The first text.', 'The second text.']
    """
    path = Path(path).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix == ".txt" and file.is_file())
        if not files:
            raise InputError(f"{path}: has no .txt files, expected one per text")
        found = [read_text(file).strip() for file in files]
    else:
        # Not splitlines(), which also splits at form feeds and other separators inside a paragraph.
        found = [line.strip() for line in read_text(path).replace("\r\n", "\n").split("\n")]
    texts = [text for text in dict.fromkeys(found) if text]
    if not texts:
        raise InputError(f"{path}: no texts, expected {'text in its files' if path.is_dir() else 'one per line'}")
    return texts


def checked_texts(texts: Iterable[str]) -> list[str]:
    """Return texts that were given in Python, each once."""
    given = list(dict.fromkeys([texts] if isinstance(texts, str) else texts))
    if not given or not all(text.strip() for text in given):
        raise InputError("texts: expected at least one, each of at least a word")
    return given


# ---- questions


@dataclass(frozen=True)
class Question(Options):
    """Options that both questions have."""

    tables: ClassVar[tuple[str, ...]]  # where the answer is stored, the row with its figures in the first
    stack: str | None = None  # as in `attngeo.capture`
    truncate: bool = False
    seed: int = 0

    def answer(self, loaded: LoadedModel, text: str) -> list[list[Row]]:
        """Return the rows for each of the tables."""
        raise NotImplementedError

    def _capture(self, loaded: LoadedModel, text: str, stage: str) -> NetworkTensor:
        options: dict[str, Any] = {"stack": self.stack, "truncate": self.truncate, "tokenizer": loaded.tokenizer}
        found = capture(loaded.model, text, stage=stage, **options)
        assert isinstance(found, NetworkTensor)
        return found


@dataclass(frozen=True)
class Trees(Question):
    """The trees and affinities of the heads, and how sparse the network is along its trees, with controls."""

    tables = ("organized", "head_pairs")
    stage: str = "logits"
    permuted: bool = True  # also fit trees to permuted values

    def answer(self, loaded: LoadedModel, text: str) -> list[list[Row]]:
        tensor = self._capture(loaded, text, self.stage)
        organization = organize(tensor)
        comparison = organization.expand().compare(self.seed, permuted=self.permuted)
        tree, affinity = organization.trees[2], organization.affinities[2]  # of the heads
        row: Row = {"stage": self.stage, "depth": tree.depth, "gain": comparison.gain()}
        row |= {"tokens": len(tensor.queries), "heads": len(tensor.heads)}
        if self.permuted:
            row["gain_permuted"] = comparison.gain(permuted=True)
        for name, basis in BASES.items():
            if basis in comparison:
                profile = comparison[basis]
                row[f"l1_l2_{name}"] = profile.sparsity.normalised
                row |= {f"share{100 * energy:g}_{name}": profile.sparsity.shares[energy] for energy in (0.9, 0.99)}
                if profile.holder is not None:
                    row[f"exponent_{name}"] = null_if_nan(profile.holder.exponent)
        # How many query heads of each layer of the full model share a key head.
        reads = modality(text, loaded, self.stack)
        stack = choose_stack(loaded, attention_stacks(loaded.model), self.stack, reads)
        groups = {attention.layer: attention.group for attention in stack.attentions}
        return [[row | _shared_keys(tree, tensor.heads, groups)], _pairs(tree, affinity, tensor.heads)]


@dataclass(frozen=True)
class Invariance(Question):
    """Agreement of the geometry before and after the softmax, for the network and for some heads on their own."""

    tables = ("invariance",)
    heads: int = 24  # heads on their own, drawn anew for each text; 0: all

    def answer(self, loaded: LoadedModel, text: str) -> list[list[Row]]:
        tensor = self._capture(loaded, text, "logits")
        count = len(tensor.heads)
        chosen = list(range(count))
        if 0 < self.heads < count:
            rng = np.random.default_rng([self.seed, int(text_digest(text), 16)])
            chosen = sorted(rng.choice(count, self.heads, replace=False).tolist())
        # Intervals come from the spread between texts, so that no bootstrap over heads is needed.
        report = softmax_invariance(tensor, heads=chosen, bootstrap=0, seed=self.seed)
        row: Row = {"tokens": len(tensor.queries), "heads": count, "chosen": len(chosen)}
        for name, figure in CONTRASTS.items():
            contrast = report[figure]
            row |= {name: null_if_nan(contrast.value), f"{name}_control": null_if_nan(contrast.control)}
        return [[row]]


def _shared_keys(tree: Tree, heads: tuple[str, ...], groups: Mapping[int, int]) -> Row:
    """Return how many pairs of heads that are joined first share a key head, and how many would by chance.

    groups: layer → how many query heads of the full model share a key head
    """
    largest = max(groups.values(), default=1)
    if largest == 1:
        return {}
    # L3H7 → layer 3, key head 7 // groups[3]: pruned heads keep their numbers. A module that runs several times is
    # several layers, which `groups` does not list.
    layers, numbers = np.asarray([head[1:].split("H") for head in heads]).astype(int).T  # [heads] each
    group = np.asarray([groups.get(layer, largest) for layer in layers.tolist()])
    key = layers * (numbers.max() + 1) + numbers // group  # [heads]
    same = key[:, None] == key[None, :]  # [heads, heads]
    shared = [bool(same[a, b]) for folder in tree.smallest_folders() for a in folder for b in folder if a < b]
    all_pairs = len(heads) * (len(heads) - 1) / 2
    return {
        "shared_key": float(np.mean(shared)) if shared else None,
        "shared_key_chance": float((same.sum() - len(heads)) / 2 / all_pairs),
    }


def _pairs(tree: Tree, affinity: Floats, heads: tuple[str, ...]) -> list[Row]:
    """Return affinity and last common level of all pairs of heads."""
    last = np.zeros(affinity.shape, np.int64)
    for level, row in enumerate(tree.levels):
        last[row[:, None] == row[None, :]] = level
    pairs = zip(*np.triu_indices(len(heads), 1), strict=True)
    return [
        {"head": heads[a], "other": heads[b], "affinity": float(affinity[a, b]), "level": int(last[a, b])}
        for a, b in pairs
    ]


# ---- tasks


@dataclass(frozen=True)
class NetworkTask(Task):
    """A network as a whole: its failure is that it cannot be found or loaded. It is not run by itself."""

    version = 2

    @property
    def asked(self) -> tuple[str, ...]:
        return ("organize",)


@dataclass(frozen=True)
class OrganizeTask(NetworkTask):
    """One question about one network on one text."""

    content: str  # what all results of the network depend on
    text: str
    question: Question

    @property
    def part(self) -> str:
        """Return the name of the files that hold the answer."""
        return digest(self.content, self.text, self.question.tables[0], self.question.text)

    @property
    def asked(self) -> tuple[str, ...]:
        return f"{self.question.tables[0]} {self.question.text}".strip(), self.text

    def named(self, message: str) -> str:
        return f"{opening(self.text)!r}: {message}"

    def is_known(self, store: Store) -> bool:
        row = store.row(self.question.tables[0], self.part)
        others = all(store.has(table, self.part) for table in self.question.tables)
        return row is not None and row["results"] == self.version and others

    def memory(self) -> int:
        """Return the bytes of one task; a model of 4 bits per weight grows eightfold."""
        return BASE_MEMORY + 8 * (self.reference.size() or 0)

    def work(self, store: Store) -> Outcome:
        network = NetworkTask(self.reference)
        if (failed := network.failed_before(store)) is not None:
            return failed  # another task of this call could not load the network
        if self.is_known(store):
            return Outcome(self.reference, "known")
        try:
            loaded = load_network(self.reference, self.content)
        except AttngeoError as error:
            return network.fail(store, error)
        with _one_torch_thread():
            answers = self.question.answer(loaded, self.text)
        figures = {"content": self.content, "options": self.question.text, "results": self.version}
        answers[0][0] |= figures | {"text": text_digest(self.text), "opening": opening(self.text)}
        # The row last: where there is a row, there are pairs.
        for table, rows in reversed(list(zip(self.question.tables, answers, strict=True))):
            store.write(table, self.part, [row | {"part": self.part} for row in rows])
        return Outcome(self.reference, "scored")


def organize_tasks(
    store: Store,
    references: Sequence[Reference],
    asked: Sequence[tuple[Question, Sequence[str]]],
    retry: bool,
) -> tuple[list[Outcome], list[Task]]:
    """Return the failures of networks that cannot be found, and the tasks; those of one network follow each other.

    asked: each question with the texts on which it is asked
    """
    failures: list[Outcome] = []
    tasks: list[Task] = []
    for reference in references:
        network = NetworkTask(reference)
        if not retry and (failed := network.failed_before(store)) is not None:
            failures.append(failed)
            continue
        try:
            content = find_content(store, reference)
        except AtlasWriteError:
            raise
        except AttngeoError as error:
            failures.append(network.fail(store, error))
            continue
        store.remove("failures", network.failure)
        tasks += [OrganizeTask(reference, content, text, question) for question, some in asked for text in some]
    return failures, tasks


# ---- networks

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
def load_network(reference: Reference, content: str) -> LoadedModel:
    """Return the model. Tasks of one network follow each other, so that one model per process is kept."""
    # On the hub the content is the commit: a branch may move while the call runs.
    return load_model(reference.model if reference.revision is None else f"{reference.model}@{content}")


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


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Run torch on one thread, so that all executors give the same digits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
