"""A WordPiece tokenizer: trained on a corpus, or given; written so that transformers loads it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attngeo.errors import InputError
from attngeo.show.files import write_whole

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LARGEST = 1 << 16  # token files hold 16-bit numbers


def train_tokenizer(texts: Iterable[str], vocabulary: int, *, lowercase: bool = True) -> Any:
    """A WordPiece tokenizer with at most `vocabulary` tokens, [PAD] [UNK] [CLS] [SEP] [MASK] first."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # A document in many scripts must not fill the vocabulary with single letters.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), limit_alphabet=vocabulary // 8, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a tokenizer.json, or of the folder that holds one; it must have a [MASK] and fit 16 bits."""
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{path}: no tokenizer.json there")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises plain Exceptions
        raise InputError(f"{file}: not a tokenizer ({str(error).splitlines()[0]})") from error
    missing = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
    if missing:
        raise InputError(f"{file}: has no {' '.join(missing)}; a BERT-shaped model needs {' '.join(SPECIAL)}")
    if tokenizer.get_vocab_size() > LARGEST:
        raise InputError(f"{file}: {tokenizer.get_vocab_size()} tokens, token files hold at most {LARGEST}")
    return tokenizer


def save_tokenizer(tokenizer: Any, folder: Path, length: int) -> None:
    """tokenizer.json and tokenizer_config.json, as `AutoTokenizer.from_pretrained` expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "tokenizer.json", tokenizer.to_str().encode())
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings: dict[str, Any] = dict(zip(names, SPECIAL, strict=True))
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    write_whole(folder / "tokenizer_config.json", json.dumps(settings, indent=2).encode())
