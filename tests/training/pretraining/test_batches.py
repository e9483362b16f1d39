"""Batches depend on seed and step only: every row once per epoch, BERT's masking, fixed masks for evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attngeo.arguments import LARGEST_SEED
from attngeo.errors import InputError
from attngeo.training.data.masking import MaskedObjective
from attngeo.training.data.tokens import Tokens
from attngeo.training.pretraining.batches import Batches, CausalObjective, Rows, held_out_batches

VOCABULARY, MASK, SPECIAL, LENGTH, ROWS = 50_000, 4, (0, 1, 2, 3, 4), 16, 300
CPU = torch.device("cpu")


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    """Token files in which each row is [CLS], a token for its number, random tokens, some beyond 32,767, and [SEP]."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, VOCABULARY, (ROWS, LENGTH)).astype(np.uint16)
    ids[:, 0], ids[:, -1], ids[:, 1] = 2, 3, 5 + np.arange(ROWS)
    ids.tofile(tmp_path / "train.bin")
    ids[:40].tofile(tmp_path / "valid.bin")
    return Tokens(str(tmp_path), VOCABULARY, ids.size, 40 * LENGTH, MASK, SPECIAL, "digest")


def rows(tokens: Tokens, part: str = "train") -> Rows:
    return Rows(tokens, part, LENGTH, CPU, 16)


def masked(share: float = 0.25) -> MaskedObjective:
    return MaskedObjective(MASK, SPECIAL, VOCABULARY, share)


def batches(tokens: Tokens, **changes: int) -> Batches:
    return Batches(rows(tokens), masked(), **{"batch": 16, "seed": 0, **changes})


def test_every_epoch_takes_every_row_of_the_file_once_in_a_new_order(tokens: Tokens) -> None:
    plain = Batches(rows(tokens), CausalObjective(), batch=15, seed=3)
    steps = ROWS // 15
    epochs = [torch.cat([plain.at(e * steps + step).ids for step in range(steps)]) for e in range(3)]
    file = torch.from_numpy(tokens.array("train").astype(np.int64)).view(ROWS, LENGTH)
    assert file.max() > 40_000  # 16 bits, read without a sign
    for seen in epochs:
        assert torch.equal(seen[seen[:, 1].argsort()], file)
    assert not torch.equal(epochs[0], epochs[1]) and not torch.equal(epochs[1], epochs[2])


def test_the_batch_of_a_step_does_not_depend_on_the_steps_before(tokens: Tokens) -> None:
    stream = batches(tokens)
    in_order = [stream.at(step) for step in range(80)]
    for step in (0, 31, 32, 79, 5):
        fresh = batches(tokens).at(step)
        for part in ("ids", "positions", "targets"):
            assert torch.equal(getattr(fresh, part), getattr(in_order[step], part))


def test_every_step_has_new_masks_and_another_seed_another_order_too(tokens: Tokens) -> None:
    seeds = (0, 1, LARGEST_SEED)
    stream = batches(tokens)
    drawn = [stream.at(step).positions for step in range(100)]  # in several blocks of steps and epochs
    assert not any(torch.equal(drawn[a], drawn[b]) for b in range(100) for a in range(b))
    plain = [Batches(rows(tokens), CausalObjective(), batch=16, seed=seed).at(0) for seed in seeds]
    assert len({tuple(batch.ids[:, 1].tolist()) for batch in plain}) == len(seeds)
    assert len({tuple(batches(tokens, seed=seed).at(0).positions.tolist()) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("world", [2, 4])
def test_any_number_of_processes_shares_the_same_rows_and_masks(tokens: Tokens, world: int) -> None:
    whole = batches(tokens).at(33)
    parts = [batches(tokens, rank=rank, world=world).at(33) for rank in range(world)]
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    offset = 16 // world * LENGTH
    assert torch.equal(torch.cat([part.positions + rank * offset for rank, part in enumerate(parts)]), whole.positions)
    with pytest.raises(InputError, match="batch 16 does not divide among 3 processes"):
        batches(tokens, world=3)


def test_masking_follows_its_probabilities_and_changes_nothing_else(tokens: Tokens) -> None:
    stream, source = batches(tokens), rows(tokens).take(torch.arange(ROWS))
    original = {int(row[1]): row for row in source}
    kind_counts = torch.zeros(3)
    position_counts = torch.zeros(LENGTH)
    for step in range(120):
        batch = stream.at(step)
        assert batch.positions.shape == batch.targets.shape == (16 * 4,)  # always a quarter of each row
        positions = batch.positions.view(16, 4)
        assert (positions // LENGTH == torch.arange(16)[:, None]).all()
        assert (positions[:, 1:] > positions[:, :-1]).all()
        restored = batch.ids.flatten().index_copy(0, batch.positions, batch.targets).view(16, LENGTH)
        for row in restored:  # only masked positions were changed, and the targets are the original tokens
            assert torch.equal(row, original[int(row[1])])
        read = batch.ids.flatten()[batch.positions]
        kinds = torch.where(read == MASK, 0, torch.where(read == batch.targets, 2, 1))
        assert not torch.isin(read[kinds == 1], torch.tensor(SPECIAL)).any()
        kind_counts += torch.bincount(kinds, minlength=3)
        position_counts += torch.bincount(batch.positions % LENGTH, minlength=LENGTH)
    total = kind_counts.sum()  # 7,680
    for share, count in zip((0.8, 0.1, 0.1), kind_counts, strict=True):
        assert abs(count - share * total) < 4 * (share * (1 - share) * total) ** 0.5
    assert position_counts[0] == position_counts[-1] == 0  # [CLS] and [SEP] are never predicted
    assert (position_counts[1:-1] - total / 14).abs().max() < 5 * (total / 14) ** 0.5


@pytest.mark.parametrize("size", [16, 12, 100])
def test_held_out_rows_and_masks_do_not_depend_on_the_number_of_processes(tokens: Tokens, size: int) -> None:
    """Batches of 16 leave 8 of 40 rows over, with which two processes could fill one more batch of their own."""

    def whole(parts: int) -> list[torch.Tensor]:
        parted = held_out_batches(rows(tokens, "valid"), masked(), size, parts)
        assert len({batch.ids.shape for batch in parted}) == 1  # so the mean over batches is the mean over rows
        read = [batch.ids.flatten()[batch.positions] for batch in parted]
        return [torch.cat(part) for part in ([b.ids for b in parted], [b.targets for b in parted], read)]

    for parts in (2, 3, 4):
        assert all(torch.equal(*pair) for pair in zip(whole(parts), whole(1), strict=True)), parts
    assert held_out_batches(rows(tokens, "valid"), masked(), 16, 4)[0].ids.shape[0] == 4
