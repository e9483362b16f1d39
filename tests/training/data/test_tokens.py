"""Token files are prepared once, depend only on the text, and are complete or absent however preparation ends."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from attngeo.errors import InputError
from attngeo.training.data.tokens import SPECIAL, Tokens, open_tokens, prepare_tokens, train_tokenizer
from tests.training.small_runs import made_up_texts, start_python, write_corpus


def prepare_small(folder: Path, **changes: Any) -> Tokens:
    """Return the tokens of a small corpus in `folder`."""
    return prepare_tokens(folder / "tokens", [write_corpus(folder)], **{"vocabulary": 300, **changes})


def stored_documents(tokens: Tokens, part: str) -> list[str]:
    """Return the documents of a token file, decoded."""
    codec = Tokenizer.from_file(f"{tokens.folder}/tokenizer.json")
    first, last = codec.token_to_id("[CLS]"), codec.token_to_id("[SEP]")
    ids = tokens.array(part)
    starts, stops = np.flatnonzero(ids == first), np.flatnonzero(ids == last)
    assert starts[0] == 0 and (starts[1:] == stops[:-1] + 1).all() and stops[-1] == len(ids) - 1
    return [codec.decode(ids[a + 1 : b].tolist()) for a, b in zip(starts, stops, strict=True)]


def test_every_document_is_stored_once_and_every_hundredth_is_held_out(tmp_path: Path) -> None:
    tokens = prepare_small(tmp_path)
    documents = made_up_texts()
    assert stored_documents(tokens, "valid") == documents[99::100]
    assert stored_documents(tokens, "train") == [text for number, text in enumerate(documents) if number % 100 != 99]
    assert (tokens.train, tokens.valid) == (len(tokens.array("train")), len(tokens.array("valid")))
    assert tokens.vocabulary == 300 and tokens.special == (0, 1, 2, 3, 4) and tokens.mask == 4


def test_the_tokenizer_is_trained_on_the_training_text_only(tmp_path: Path) -> None:
    """Held-out text must not shape the vocabulary; made-up words have the letters a to p."""
    (tmp_path / "held.txt").write_text("zzyx " * 50)
    tokens = prepare_tokens(tmp_path / "tokens", [write_corpus(tmp_path)], [str(tmp_path / "held.txt")], vocabulary=300)
    assert len(stored_documents(tokens, "train")) == 300 and len(stored_documents(tokens, "valid")) == 1
    words = [word for word in Tokenizer.from_file(f"{tokens.folder}/tokenizer.json").get_vocab() if word not in SPECIAL]
    assert len(words) == 295 and not any(set(word) & set("xyz") for word in words)


def test_tokens_are_prepared_once(tmp_path: Path) -> None:
    first = prepare_small(tmp_path)
    file = tmp_path / "tokens" / "train.bin"
    before = file.stat().st_mtime_ns
    assert prepare_small(tmp_path) == first == open_tokens(tmp_path / "tokens") and file.stat().st_mtime_ns == before


def test_the_same_text_gives_the_same_tokenizer() -> None:
    """A small corpus has many ties between pairs of letters, which are broken the same way each time."""
    words = made_up_texts()
    found = {train_tokenizer(lambda: iter(words), 300).to_str() for _ in range(6)}
    assert len(found) == 1
    tokenizer = Tokenizer.from_str(found.pop())
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3, 4]
    assert tokenizer.decode(tokenizer.encode(words[0]).ids) == words[0]
    assert tokenizer.encode("ab [MASK] zz").tokens[-3:] == ["[MASK]", "[UNK]", "[SEP]"]


def test_rare_letters_do_not_fill_the_vocabulary() -> None:
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 500)))
    tokenizer = train_tokenizer(lambda: iter([rare, *made_up_texts()]), 300)
    assert sum(len(token.removeprefix("##")) == 1 for token in tokenizer.get_vocab()) <= 2 * (300 // 8)
    assert tokenizer.get_vocab_size() == 300


def test_a_given_tokenizer_is_used_without_truncation_and_padding(tmp_path: Path) -> None:
    vocabulary = {token: 2 * number for number, token in enumerate([*SPECIAL, "ab", "##c"])}  # ids may leave gaps
    codec = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    codec.enable_truncation(4)
    codec.enable_padding(length=64)
    codec.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("abc\n\nababc")
    tokens = prepare_tokens(tmp_path / "t", [str(tmp_path / "a.txt")], tokenizer=str(tmp_path), vocabulary=300)
    assert tokens.vocabulary == 13 and tokens.mask == 8 and tokens.special == (0, 2, 4, 6, 8)
    assert tokens.array("train").tolist() == [10, 12, 2]  # neither truncated nor padded


def test_the_digest_is_that_of_all_tokens(tmp_path: Path) -> None:
    """A run continues on tokens of the same digest only: one tokenizer on two corpora gives two of them."""
    first = prepare_small(tmp_path)
    texts = [
        write_corpus(tmp_path, f"{name}.txt", count=40, seed=seed) for name, seed in (("a", 5), ("b", 5), ("c", 6))
    ]
    options = {"tokenizer": first.folder, "vocabulary": 300}
    a, b, c = (prepare_tokens(tmp_path / Path(text).stem, [text], **options).digest for text in texts)
    held = prepare_tokens(tmp_path / "held", texts[:1], texts[2:], **options).digest
    assert a == b and len({a, c, held, first.digest}) == 4


def test_a_tokenizer_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"

    def save(names: list[str]) -> None:
        vocabulary = {token: number for number, token in enumerate(names)}
        Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]")).save(str(path))

    save(["[UNK]", "[PAD]", "a"])
    with pytest.raises(InputError, match=r"has no \[CLS\] \[SEP\] \[MASK\]"):
        prepare_small(tmp_path, tokenizer=str(path))
    save([*SPECIAL, *(f"w{i}" for i in range(400))])
    with pytest.raises(InputError, match="405 tokens do not fit a model with vocab = 300"):
        prepare_small(tmp_path, tokenizer=str(tmp_path))
    path.write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        prepare_small(tmp_path, tokenizer=str(tmp_path))
    path.unlink()
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        prepare_small(tmp_path, tokenizer=str(tmp_path))


def test_a_tokenizer_of_another_script_is_an_error(tmp_path: Path) -> None:
    """Nearly every token would be [UNK], and training on them would seem to go well."""
    prepare_small(tmp_path)
    (tmp_path / "russian.txt").write_text("\n\n".join(["шесть семь восемь"] * 300))
    with pytest.raises(InputError, match=r"tokens: 900 of 1500 tokens of this text are \[UNK\]"):
        prepare_tokens(
            tmp_path / "new", [str(tmp_path / "russian.txt")], tokenizer=str(tmp_path / "tokens"), vocabulary=300
        )
    assert not (tmp_path / "new" / "tokens.json").exists()


def test_a_text_edited_in_place_is_another_corpus(tmp_path: Path) -> None:
    prepare_small(tmp_path)
    with pytest.raises(InputError, match=r"another corpus or tokenizer; name another folder \(tokens\)"):
        prepare_small(tmp_path, vocabulary=200)
    path = Path(write_corpus(tmp_path))
    text = path.read_bytes()
    path.write_bytes(text[:-9] + text[-9:].swapcase())
    assert path.stat().st_size == len(text) and path.read_bytes() != text
    with pytest.raises(InputError, match="holds tokens of another corpus or tokenizer"):
        prepare_tokens(tmp_path / "tokens", [str(path)], vocabulary=300)
    path.write_bytes(text)
    prepare_small(tmp_path)


def test_an_error_names_the_token_file_that_is_broken(tmp_path: Path) -> None:
    prepare_small(tmp_path)
    file = tmp_path / "tokens" / "train.bin"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"train.bin: has \d+ bytes, expected \d+ for \d+ tokens"):
        prepare_small(tmp_path)
    with pytest.raises(InputError, match="no prepared token files"):
        open_tokens(tmp_path)


def test_an_error_in_the_text_leaves_no_token_files(tmp_path: Path) -> None:
    """The second source is binary, which is noticed in training the tokenizer, and in tokenising with a given one."""
    (tmp_path / "bad.txt").write_bytes(b"words\n\n\xff")
    prepare_small(tmp_path)
    for tokenizer in ("train", str(tmp_path / "tokens")):
        with pytest.raises(InputError, match=r"bad\.txt: is not UTF-8 text, near line"):
            prepare_tokens(tmp_path / "new", [write_corpus(tmp_path), str(tmp_path / "bad.txt")], tokenizer=tokenizer)
        assert {file.name for file in (tmp_path / "new").iterdir()} <= {".lock"}


PREPARE = """
import sys
from pathlib import Path
from attngeo.training.data.tokens import prepare_tokens
print("ready", flush=True)
print(prepare_tokens(Path(sys.argv[1]), [sys.argv[2]], vocabulary=600).digest)
"""


def test_preparation_removes_what_a_killed_one_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    for name in (".part-0123456789abcdef", "train.bin"):  # complete is what `tokens.json` describes, written last
        (folder / name).write_bytes(b"half of the tokens")
    tokens = prepare_small(tmp_path)
    assert stored_documents(tokens, "valid") == made_up_texts()[99::100]
    assert not (folder / ".part-0123456789abcdef").exists()


def test_two_processes_at_once_prepare_one_set_of_files(tmp_path: Path) -> None:
    text = write_corpus(tmp_path, count=2_000)
    both = [start_python(["-c", PREPARE, str(tmp_path / "tokens"), text]) for _ in range(2)]
    digests = [one.communicate()[0].split()[1] for one in both]
    assert digests == [prepare_tokens(tmp_path / "alone", [text], vocabulary=600).digest] * 2


def test_a_full_disk_leaves_no_incomplete_file_and_a_second_try_works(tmp_path: Path) -> None:
    text, folder = write_corpus(tmp_path), tmp_path / "tokens"
    code = f"""
from pathlib import Path
from attngeo.training.data.tokens import prepare_tokens
try:
    prepare_tokens(Path({str(folder)!r}), [{text!r}], vocabulary=300)
except Exception as error:
    print(type(error).__name__, error)
"""
    limit = 10_000  # bytes a file may have, fewer than the tokens need
    work = start_python(["-c", code], preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert work.communicate()[0] == f"AttngeoError {folder}: token files cannot be written (File too large)\n"
    assert [file.name for file in folder.iterdir()] == [".lock"]
    assert prepare_tokens(folder, [text], vocabulary=300).train > limit // 2
