"""Batches: a function of seed and step; every row once a pass, masks as BERT draws them, fixed ones for evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attngeo.dynamics.data.tokens import Tokens
from attngeo.dynamics.pretraining.batches import Batches, Causal, Masked, Rows, fixed
from attngeo.errors import InputError

VOCABULARY, MASK, SPECIAL, LENGTH, ROWS = 50_000, 4, (0, 1, 2, 3, 4), 16, 300
CPU = torch.device("cpu")


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    """Every row is [CLS], its own number and other tokens, some ids beyond 32,767, then [SEP]."""
    draw = np.random.default_rng(0)
    ids = draw.integers(5, VOCABULARY, (ROWS, LENGTH)).astype(np.uint16)
    ids[:, 0], ids[:, -1], ids[:, 1] = 2, 3, 5 + np.arange(ROWS)
    ids.tofile(tmp_path / "train.bin")
    ids[:40].tofile(tmp_path / "valid.bin")
    return Tokens(str(tmp_path), VOCABULARY, ids.size, 40 * LENGTH, MASK, SPECIAL, "digest")


def rows(tokens: Tokens, part: str = "train") -> Rows:
    return Rows(tokens, part, LENGTH, CPU, 16)


def masked(share: float = 0.25) -> Masked:
    return Masked(MASK, SPECIAL, VOCABULARY, share)


def batches(tokens: Tokens, **changes: int) -> Batches:
    return Batches(rows(tokens), masked(), **{"batch": 16, "seed": 0, **changes})


def test_rows_are_the_file(tokens: Tokens) -> None:
    found = rows(tokens).take(torch.arange(ROWS))
    assert torch.equal(found, torch.from_numpy(tokens.array("train").astype(np.int64)).view(ROWS, LENGTH))
    assert found.max() > 40_000  # 16 bits, none of them a sign


def test_every_pass_takes_every_row_once_in_a_new_order(tokens: Tokens) -> None:
    plain = Batches(rows(tokens), Causal(), batch=15, seed=3)
    steps = ROWS // 15
    passes = [torch.cat([plain.at(p * steps + step).ids[:, 1] for step in range(steps)]) for p in range(3)]
    for seen in passes:
        assert sorted(seen.tolist()) == list(range(5, 5 + ROWS))
    assert not torch.equal(passes[0], passes[1]) and not torch.equal(passes[1], passes[2])


def test_a_step_is_the_same_from_wherever_one_comes(tokens: Tokens) -> None:
    along = batches(tokens)
    walked = [along.at(step) for step in range(80)]
    for step in (0, 31, 32, 79, 5):
        fresh = batches(tokens).at(step)
        assert all(torch.equal(getattr(fresh, part), getattr(walked[step], part)) for part in ("ids", "at", "targets"))


def test_seeds_differ(tokens: Tokens) -> None:
    """In the order of the rows and in the masks."""
    orders = [Batches(rows(tokens), Causal(), batch=16, seed=seed).at(0).ids[:, 1] for seed in (0, 1)]
    assert not torch.equal(*orders)
    assert not torch.equal(batches(tokens).at(0).at, batches(tokens, seed=1).at(0).at)


@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_one_batch(tokens: Tokens, world: int) -> None:
    """Whatever their number: the same rows with the same masks."""
    whole = batches(tokens).at(33)
    parts = [batches(tokens, rank=rank, world=world).at(33) for rank in range(world)]
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    offset = 16 // world * LENGTH
    assert torch.equal(torch.cat([part.at + rank * offset for rank, part in enumerate(parts)]), whole.at)
    with pytest.raises(InputError, match="batch 16 does not divide among 3 processes"):
        batches(tokens, world=3)


def test_masks(tokens: Tokens) -> None:
    stream, source = batches(tokens), rows(tokens).take(torch.arange(ROWS))
    original = {int(row[1]): row for row in source}
    fates = torch.zeros(3)
    places = torch.zeros(LENGTH)
    for step in range(120):
        batch = stream.at(step)
        assert batch.at.shape == batch.targets.shape == (16 * 4,)  # a quarter of each row, always the same number
        at = batch.at.view(16, 4)
        assert (at // LENGTH == torch.arange(16)[:, None]).all() and (at[:, 1:] > at[:, :-1]).all()
        restored = batch.ids.flatten().index_copy(0, batch.at, batch.targets).view(16, LENGTH)
        for row in restored:  # nothing but the masked places was changed, and the targets are what stood there
            assert torch.equal(row, original[int(row[1])])
        read = batch.ids.flatten()[batch.at]
        kinds = torch.where(read == MASK, 0, torch.where(read == batch.targets, 2, 1))
        assert not torch.isin(read[kinds == 1], torch.tensor(SPECIAL)).any()
        fates += torch.bincount(kinds, minlength=3)
        places += torch.bincount(batch.at % LENGTH, minlength=LENGTH)
    total = fates.sum()  # 7,680
    for share, count in zip((0.8, 0.1, 0.1), fates, strict=True):
        assert abs(count - share * total) < 4 * (share * (1 - share) * total) ** 0.5
    assert places[0] == places[-1] == 0  # [CLS] and [SEP] are never predicted
    assert (places[1:-1] - total / 14).abs().max() < 5 * (total / 14) ** 0.5


def test_masks_are_fresh_each_pass(tokens: Tokens) -> None:
    stream = Batches(rows(tokens), masked(), batch=ROWS, seed=0)
    first, second = ({int(r): set((a % LENGTH).tolist()) for r, a in zip(ids, at, strict=True)} for ids, at in (
        (b.ids.flatten().index_copy(0, b.at, b.targets).view(ROWS, LENGTH)[:, 1], b.at.view(ROWS, -1))
        for b in (stream.at(0), stream.at(1))))  # fmt: skip
    same = sum(first[row] == second[row] for row in first)
    assert set(first) == set(second) and same < 0.05 * ROWS
    along = batches(tokens)
    places = [along.at(step).at for step in range(100)]  # over several blocks of steps prepared together
    assert not any(torch.equal(places[a], places[b]) for b in range(100) for a in range(b))


def test_causal(tokens: Tokens) -> None:
    batch = Batches(rows(tokens), Causal(), batch=16, seed=0).at(0)
    at = batch.at.view(16, LENGTH - 1)
    assert torch.equal(batch.ids.flatten()[at + 1], batch.targets.view(16, -1))
    assert torch.equal(at[0], torch.arange(LENGTH - 1)) and int(at[1, 0]) == LENGTH


def test_held_out_masks_never_change(tokens: Tokens) -> None:
    first, again = (fixed(rows(tokens, "valid"), masked(), 16) for _ in range(2))
    assert len(first) == 2 and first[0].ids.shape == (16, LENGTH)  # 40 rows: two equal batches
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.ids, other.ids) and torch.equal(one.at, other.at)


@pytest.mark.parametrize("size", [16, 12, 100])
def test_held_out_rows_and_masks_do_not_depend_on_the_number_of_processes(tokens: Tokens, size: int) -> None:
    """Of 40 rows, batches of 16 leave 8 over, of which two processes could fill one batch of their own more."""

    def whole(parts: int) -> list[torch.Tensor]:
        found = fixed(rows(tokens, "valid"), masked(), size, parts)
        assert len({batch.ids.shape for batch in found}) == 1  # a plain mean over them is the mean over the rows
        read = [batch.ids.flatten()[batch.at] for batch in found]
        return [torch.cat(part) for part in ([b.ids for b in found], [b.targets for b in found], read)]

    for parts in (2, 3, 4):
        assert all(torch.equal(*pair) for pair in zip(whole(parts), whole(1), strict=True)), parts
    assert fixed(rows(tokens, "valid"), masked(), 16, 4)[0].ids.shape[0] == 4


def test_a_corpus_shorter_than_a_batch(tokens: Tokens) -> None:
    with pytest.raises(InputError, match=r"train\.bin: 4800 tokens, fewer than the 301 rows of 16 of one batch"):
        Rows(tokens, "train", LENGTH, CPU, 301)
    with pytest.raises(InputError, match=r"valid\.bin: 640 tokens, fewer than one row of 641"):
        Rows(tokens, "valid", 641, CPU, 1)
