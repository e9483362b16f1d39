"""A WordPiece tokenizer, trained on a corpus or read from a file, and saved so that transformers can load it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import InputError, first_line
from attngeo.io.files import write_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_VOCABULARY = 1 << 16  # token files hold 16-bit numbers


def train_tokenizer(texts: Callable[[], Iterable[str]], vocabulary: int, *, lowercase: bool = True) -> Tokenizer:
    """Return a WordPiece tokenizer with at most `vocabulary` tokens, [PAD] [UNK] [CLS] [SEP] [MASK] first.

    texts: called twice, once to count letters and once to learn words. The same texts give the same tokenizer.
    lowercase: whether text is lowercased before it is tokenised
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    # Rare letters are left out, so that a document in many scripts does not fill the vocabulary with single letters.
    letters = _commonest_letters(texts(), normalizer, max(1, vocabulary // 8))
    # The trainer numbers letters inside words in the order it meets them, which is not fixed, and breaks ties by those
    # numbers. Letters that are named beforehand keep their numbers.
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
    # A second tokenizer with the same vocabulary: in the first one every letter is a special token.
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


def _commonest_letters(texts: Iterable[str], normalizer: Normalizer, count: int) -> list[str]:
    """Return the `count` commonest characters of the normalised texts, sorted."""
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    letters: Counter[str] = Counter()
    for character, times in characters.items():
        for letter in normalizer.normalize_str(character):
            if not letter.isspace():
                letters[letter] += times
    return sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[:count])


def load_tokenizer(path: Path, vocabulary: int = MAX_VOCABULARY) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, or of the folder that contains one.

    It must have the tokens of SPECIAL and at most `vocabulary` tokens.
    """
    from tokenizers import Tokenizer

    file = tokenizer_file(path)
    if not file.is_file():
        raise InputError(f"{path}: no tokenizer.json there")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust library raises plain Exceptions
        raise InputError(f"{file}: not a tokenizer ({first_line(error)})") from error
    missing = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
    if missing:
        raise InputError(f"{file}: has no {' '.join(missing)}; pre-training needs {' '.join(SPECIAL)}")
    size = vocabulary_size(tokenizer)
    if size > MAX_VOCABULARY:
        raise InputError(f"{file}: {size} tokens, token files hold at most {MAX_VOCABULARY}")
    if size > vocabulary:
        raise InputError(f"{file}: {size} tokens do not fit a model with vocab = {vocabulary}")
    # A tokenizer that was saved for a model truncates and pads rows; token files hold whole documents.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_file(path: Path) -> Path:
    """Return the path of tokenizer.json where `path` is a folder, else `path` itself."""
    return path / "tokenizer.json" if path.is_dir() else path


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of rows an embedding needs: the largest id plus one, because ids may leave gaps."""
    return 1 + int(max(tokenizer.get_vocab().values()))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as `AutoTokenizer.from_pretrained` expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "tokenizer.json", tokenizer.to_str().encode())
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings = {
        **dict(zip(names, SPECIAL, strict=True)),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,  # to which a text is truncated on request; a model saved with it states its own
    }
    write_file(folder / "tokenizer_config.json", json.dumps(settings, indent=2).encode())
