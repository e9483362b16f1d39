"""A WordPiece tokenizer: trained on a corpus, or given; written so that transformers loads it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attngeo.errors import InputError, first_line
from attngeo.io.atomic import write_file

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LARGEST = 1 << 16  # token files hold 16-bit numbers


def train_tokenizer(texts: Callable[[], Iterable[str]], vocabulary: int, *, lowercase: bool = True) -> Any:
    """A WordPiece tokenizer with at most `vocabulary` tokens, [PAD] [UNK] [CLS] [SEP] [MASK] first.

    texts  called twice: for the letters, and for the words. The same text gives the same tokenizer.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    # A document in many scripts must not fill the vocabulary with single letters.
    letters = _letters(texts(), normalizer, max(1, vocabulary // 8))
    # The trainer numbers letters inside words as it meets them, in no fixed order, and settles ties by those numbers:
    # named beforehand they keep their places.
    fixed = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=fixed,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer, learner.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    learner.train_from_iterator(texts(), trainer)
    # A second one with the same words: in the first every letter is a special token.
    tokenizer = Tokenizer(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def _letters(texts: Iterable[str], normalizer: Any, most: int) -> list[str]:
    """The `most` commonest characters of the texts as the tokenizer will see them, in order."""
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(text)
    counts: Counter[str] = Counter()
    for character, count in seen.items():
        for letter in normalizer.normalize_str(character):
            if not letter.isspace():
                counts[letter] += count
    return sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:most])


def load_tokenizer(path: Path, vocabulary: int = LARGEST) -> Any:
    """The tokenizer of a tokenizer.json, or of the folder that holds one; it must have a [MASK] and fit the model."""
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{path}: no tokenizer.json there")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises plain Exceptions
        raise InputError(f"{file}: not a tokenizer ({first_line(error)})") from error
    missing = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
    if missing:
        raise InputError(f"{file}: has no {' '.join(missing)}; a BERT-shaped model needs {' '.join(SPECIAL)}")
    if vocabulary_size(tokenizer) > LARGEST:
        raise InputError(f"{file}: {vocabulary_size(tokenizer)} tokens, token files hold at most {LARGEST}")
    if vocabulary_size(tokenizer) > vocabulary:
        raise InputError(f"{file}: {vocabulary_size(tokenizer)} tokens do not fit a model with vocab = {vocabulary}")
    tokenizer.no_truncation()  # a tokenizer saved for a model cuts and fills rows; token files hold whole documents
    tokenizer.no_padding()
    return tokenizer


def vocabulary_size(tokenizer: Any) -> int:
    """Rows an embedding needs: one more than the largest id, for ids may leave gaps."""
    return 1 + int(max(tokenizer.get_vocab().values()))


def save_tokenizer(tokenizer: Any, folder: Path, length: int) -> None:
    """tokenizer.json and tokenizer_config.json, as `AutoTokenizer.from_pretrained` expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "tokenizer.json", tokenizer.to_str().encode())
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings: dict[str, Any] = dict(zip(names, SPECIAL, strict=True))
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    write_file(folder / "tokenizer_config.json", json.dumps(settings, indent=2).encode())
