"""Token files: prepared once, the same from the same text, whole or not there however the preparation ends."""

from __future__ import annotations

import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from attngeo.dynamics.data.tokens import Tokens, open_tokens, prepare
from attngeo.dynamics.data.wordpiece import SPECIAL, load_tokenizer, train_tokenizer
from attngeo.errors import AttngeoError, InputError
from experiments.initialisation.packed_tokens import pack, unpacked
from tests.dynamics.small_runs import corpus, process, texts


def made(folder: Path, **changes: Any) -> Tokens:
    return prepare(folder / "tokens", [corpus(folder)], **{"vocabulary": 300, **changes})


def rows(tokens: Tokens, part: str) -> list[str]:
    """The documents of a file, read back."""
    codec = Tokenizer.from_file(f"{tokens.folder}/tokenizer.json")
    first, last = codec.token_to_id("[CLS]"), codec.token_to_id("[SEP]")
    ids = tokens.array(part)
    starts, stops = np.flatnonzero(ids == first), np.flatnonzero(ids == last)
    assert starts[0] == 0 and (starts[1:] == stops[:-1] + 1).all() and stops[-1] == len(ids) - 1
    return [codec.decode(ids[a + 1 : b].tolist()) for a, b in zip(starts, stops, strict=True)]


def test_every_document_is_there_once_and_every_hundredth_is_held_out(tmp_path: Path) -> None:
    tokens = made(tmp_path)
    documents = texts()
    assert rows(tokens, "valid") == documents[99::100]
    assert rows(tokens, "train") == [text for number, text in enumerate(documents) if number % 100 != 99]
    assert (tokens.train, tokens.valid) == (len(tokens.array("train")), len(tokens.array("valid")))
    assert tokens.vocabulary == 300 and tokens.special == (0, 1, 2, 3, 4) and tokens.mask == 4


def test_held_out_documents_of_their_own(tmp_path: Path) -> None:
    held = corpus(tmp_path, "held.txt", count=3, seed=0)
    tokens = prepare(tmp_path / "tokens", [corpus(tmp_path)], [held], vocabulary=300)
    assert rows(tokens, "valid") == texts(3) and len(rows(tokens, "train")) == 300


def test_prepared_once(tmp_path: Path) -> None:
    first = made(tmp_path)
    file = tmp_path / "tokens" / "train.bin"
    before = file.stat().st_mtime_ns
    assert made(tmp_path) == first == open_tokens(tmp_path / "tokens") and file.stat().st_mtime_ns == before


def test_the_same_text_gives_the_same_tokenizer() -> None:
    """Ties between pairs of letters are many in a small corpus, and settled the same way each time."""
    words = texts()
    found = {train_tokenizer(lambda: iter(words), 300).to_str() for _ in range(6)}
    assert len(found) == 1
    tokenizer = Tokenizer.from_str(found.pop())
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3, 4]
    assert tokenizer.decode(tokenizer.encode(words[0]).ids) == words[0]
    assert tokenizer.encode("ab [MASK] zz").tokens[-3:] == ["[MASK]", "[UNK]", "[SEP]"]


def test_letters_do_not_fill_the_vocabulary() -> None:
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 500)))
    tokenizer = train_tokenizer(lambda: iter([rare, *texts()]), 300)
    assert sum(len(token.removeprefix("##")) == 1 for token in tokenizer.get_vocab()) <= 2 * (300 // 8)
    assert tokenizer.get_vocab_size() == 300


def test_progress_is_told(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    made(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(256, None)] * 3  # letters, words, tokens


def test_a_given_tokenizer_is_used_as_it_is(tmp_path: Path) -> None:
    vocabulary = {token: 2 * number for number, token in enumerate([*SPECIAL, "ab", "##c"])}  # ids may leave gaps
    codec = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    codec.enable_truncation(4)
    codec.enable_padding(length=64)
    codec.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("abc\n\nababc")
    tokens = prepare(tmp_path / "t", [str(tmp_path / "a.txt")], tokenizer=str(tmp_path), vocabulary=300)
    assert tokens.vocabulary == 13 and tokens.mask == 8 and tokens.special == (0, 2, 4, 6, 8)
    assert tokens.array("train").tolist() == [10, 12, 2]  # neither cut nor filled


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"

    def saved(names: list[str], first: int = 0) -> None:
        vocabulary = {token: first + number for number, token in enumerate(names)}
        Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]")).save(str(path))

    saved(["[UNK]", "[PAD]", "a"])
    with pytest.raises(InputError, match=r"has no \[CLS\] \[SEP\] \[MASK\]"):
        load_tokenizer(path)
    saved([*SPECIAL, "a"], first=65_600)
    with pytest.raises(InputError, match="65606 tokens, token files hold at most 65536"):
        load_tokenizer(path)
    saved([*SPECIAL, *(f"w{i}" for i in range(400))])
    with pytest.raises(InputError, match="405 tokens do not fit a model with vocab = 300"):
        made(tmp_path, tokenizer=str(tmp_path))
    path.write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_of_another_script_is_refused(tmp_path: Path) -> None:
    """Nearly every token would be [UNK], and training on that would look as if it went well."""
    made(tmp_path)
    (tmp_path / "russian.txt").write_text("\n\n".join(["шесть семь восемь"] * 300))
    with pytest.raises(InputError, match=r"tokens: 900 of 1500 tokens of this text are \[UNK\]"):
        prepare(tmp_path / "new", [str(tmp_path / "russian.txt")], tokenizer=str(tmp_path / "tokens"), vocabulary=300)
    assert not (tmp_path / "new" / "tokens.json").exists()


def test_tokens_of_another_corpus_are_not_taken_for_these(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(InputError, match="holds tokens of another corpus or tokenizer"):
        made(tmp_path, vocabulary=200)
    with pytest.raises(InputError, match="holds tokens of another corpus or tokenizer"):
        prepare(tmp_path / "tokens", [corpus(tmp_path, count=301)], vocabulary=300)


def test_a_text_edited_in_place_is_another_corpus(tmp_path: Path) -> None:
    made(tmp_path)
    path = Path(corpus(tmp_path))
    text = path.read_bytes()
    path.write_bytes(text[:-9] + text[-9:].swapcase())
    assert path.stat().st_size == len(text) and path.read_bytes() != text
    with pytest.raises(InputError, match="holds tokens of another corpus or tokenizer"):
        prepare(tmp_path / "tokens", [str(path)], vocabulary=300)
    path.write_bytes(text)
    made(tmp_path)


def test_broken_token_files_are_named(tmp_path: Path) -> None:
    made(tmp_path)
    file = tmp_path / "tokens" / "train.bin"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"train.bin: \d+ tokens, \d+ expected"):
        made(tmp_path)
    with pytest.raises(InputError, match="no prepared token files"):
        open_tokens(tmp_path)


def test_text_that_breaks_off_leaves_nothing_behind(tmp_path: Path) -> None:
    """The second source is binary: found while the tokenizer reads, and again where a tokenizer is given."""
    (tmp_path / "bad.txt").write_bytes(b"words\n\n\xff")
    made(tmp_path)
    for tokenizer in ("train", str(tmp_path / "tokens")):
        with pytest.raises(InputError, match=r"bad\.txt: byte 7 is not UTF-8"):
            prepare(tmp_path / "new", [corpus(tmp_path), str(tmp_path / "bad.txt")], tokenizer=tokenizer)
        assert {file.name for file in (tmp_path / "new").iterdir()} <= {".lock"}


PREPARE = """
import sys
from pathlib import Path
from attngeo.dynamics.data.tokens import prepare
print("ready", flush=True)
print(prepare(Path(sys.argv[1]), [sys.argv[2]], vocabulary=600).digest)
"""


def test_killed_while_preparing_it_starts_over(tmp_path: Path) -> None:
    text, folder = corpus(tmp_path, count=4_000), tmp_path / "tokens"
    draw, cut_short = random.Random(1), 0
    for longest in (0.02, 0.3, 0.6):
        work = process(["-c", PREPARE, str(folder), text])
        assert work.stdout is not None and work.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0.01, longest))
        work.kill()
        work.communicate()
        cut_short += work.returncode == -signal.SIGKILL and not (folder / "tokens.json").exists()
    assert cut_short
    undisturbed = prepare(tmp_path / "other", [text], vocabulary=600)
    assert prepare(folder, [text], vocabulary=600).digest == undisturbed.digest
    assert (folder / "train.bin").read_bytes() == (tmp_path / "other" / "train.bin").read_bytes()
    assert not list(folder.glob(".*.part"))


def test_two_processes_at_once_prepare_one_set_of_files(tmp_path: Path) -> None:
    text = corpus(tmp_path, count=2_000)
    both = [process(["-c", PREPARE, str(tmp_path / "tokens"), text]) for _ in range(2)]
    digests = [one.communicate()[0].split()[1] for one in both]
    assert digests == [prepare(tmp_path / "alone", [text], vocabulary=600).digest] * 2


def test_a_full_disk_leaves_no_half_file_and_a_second_try_works(tmp_path: Path) -> None:
    text, folder = corpus(tmp_path), tmp_path / "tokens"
    code = f"""
from pathlib import Path
from attngeo.dynamics.data.tokens import prepare
try:
    prepare(Path({str(folder)!r}), [{text!r}], vocabulary=300)
except Exception as error:
    print(type(error).__name__, error)
"""
    limit = 10_000  # bytes a file may have: fewer than the tokens
    work = process(["-c", code], preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert work.communicate()[0] == f"AttngeoError {folder}: token files cannot be written (File too large)\n"
    assert [file.name for file in folder.iterdir()] == [".lock"]
    assert prepare(folder, [text], vocabulary=300).train > limit // 2


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("a file")
    with pytest.raises(AttngeoError, match="token files cannot be written"):
        made(tmp_path)


def test_packed_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = made(tmp_path)
    small = tmp_path / "packed"
    assert pack(tokens, small) < tokens.train * 2 + tokens.valid * 2 + 60_000
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    again = open_tokens(unpacked(small))
    assert again.digest == tokens.digest
    assert np.array_equal(again.array("train"), tokens.array("train"))
    assert unpacked(Path(tokens.folder)) == Path(tokens.folder)
    other = prepare(tmp_path / "other", [corpus(tmp_path, "other.txt", seed=5)], vocabulary=300)
    pack(other, tmp_path / "packed too")
    assert open_tokens(unpacked(tmp_path / "packed too")).digest == other.digest
    assert np.array_equal(again.array("train"), tokens.array("train"))  # the first are not overwritten
    for part in small.glob("train.*.xz"):
        part.write_bytes(part.read_bytes()[:20])
    (Path(again.folder) / "tokens.json").unlink()
    with pytest.raises(InputError, match="packed tokens cannot be unpacked"):
        unpacked(small)
    (small / "tokens.json").unlink()
    with pytest.raises(InputError, match="packed tokens cannot be unpacked"):
        unpacked(small)
