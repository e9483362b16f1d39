"""Updates averaged over many passes: means of single passes, halves, controls, growth by kind of pair, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, models

import attngeo
from attngeo.errors import InputError
from attngeo.training.data.masking import MaskedObjective
from attngeo.training.gradients import HeadTerms, expected_terms, gradient_terms
from attngeo.training.gradients.gradient_terms import masked_batches
from tests.training.gradients.gradient_models import model_with_loss
from tests.weights import dense_scores as dense

OFF_DIAGONAL = ~np.eye(10, dtype=bool)


def batches(count: int, length: int = 10, seed: int = 0) -> list[dict[str, Any]]:
    ids = torch.randint(5, 20, (3, length), generator=torch.Generator().manual_seed(1))
    return masked_batches({"input_ids": ids}, MaskedObjective(4, (0, 1, 2, 4), 50, 0.2), count, seed)


def token_batches(count: int) -> list[dict[str, Any]]:
    """Return batches for a causal model."""
    rows = torch.randint(5, 20, (count, 3, 10), generator=torch.Generator().manual_seed(1))  # [passes, rows, tokens]
    return [{"input_ids": ids, "labels": ids} for ids in rows]


def symmetry_between(first: np.ndarray, second: np.ndarray) -> Any:
    """Return tr(U₁ U₂)/⟨U₁, U₂⟩ of two halves, None where they do not agree."""
    agreement = np.vdot(first, second)
    return pytest.approx(np.vdot(first, second.swapaxes(-1, -2)) / agreement, rel=1e-8) if agreement > 0 else None


@pytest.mark.parametrize(("count", "causal"), [(6, True), (3, False)])  # halves of an odd number differ in size
def test_an_average_and_its_control_are_those_of_the_single_passes(count: int, causal: bool) -> None:
    """The control shuffles the coefficients of each prediction in its context, j ≤ i under a causal mask."""
    model, given = model_with_loss("gpt2" if causal else "bert"), (token_batches if causal else batches)(count)
    expected = expected_terms(model, given, same_rows=True)
    singles = [gradient_terms(model, batch) for batch in given]
    assert expected.passes == count and expected.loss == pytest.approx(np.mean([terms.loss for terms in singles]))
    draw, order = np.random.default_rng(0), np.tile(np.arange(10), (10, 1))
    for i in range(10):
        context = i + 1 if causal else 10
        order[i, :context] = draw.permutation(context)
    for label in ("L0H1", "L1H3"):
        heads, scores = [terms[label] for terms in singles], expected[label]
        updates = np.array([head.update.dense() for head in heads])  # [count, d, d]
        mean = updates.mean(0)
        assert scores.norm == pytest.approx(np.linalg.norm(mean), rel=1e-10)
        assert scores.symmetry == symmetry_between(mean, mean)
        assert scores.directionality == pytest.approx(dense.directionality(mean), rel=1e-9)
        for spread, axis in ((scores.row_spread, 1), (scores.column_spread, 0)):
            lengths = np.linalg.norm(mean, axis=axis)
            assert spread == pytest.approx(lengths.std(ddof=1) / lengths.mean(), rel=1e-9)
        halves = updates[::2].mean(0), updates[1::2].mean(0)
        agreement = np.vdot(*halves) / (np.linalg.norm(halves[0]) * np.linalg.norm(halves[1]))
        assert scores.agreement == pytest.approx(agreement, rel=1e-9)
        assert scores.symmetry_split == symmetry_between(*halves)
        betas = np.array([head.beta for head in heads])  # [count, S, N, N]
        beta = betas.mean(0) * OFF_DIAGONAL
        assert scores.pairing == pytest.approx(np.vdot(beta, beta.swapaxes(1, 2)) / np.vdot(beta, beta), rel=1e-9)
        moved = np.take_along_axis(betas, order[None, None], -1)
        for name, one in (("split", betas), ("shuffled", moved)):
            pair = one[::2].mean(0) * OFF_DIAGONAL, one[1::2].mean(0) * OFF_DIAGONAL
            assert getattr(scores, f"pairing_{name}") == symmetry_between(*pair)
        moved = np.array([np.einsum("sia,sij,sjb->ab", h.x, b, h.x) for h, b in zip(heads, moved, strict=True)])
        assert scores.symmetry_shuffled == symmetry_between(moved[::2].mean(0), moved[1::2].mean(0))


def test_little_memory_gives_the_same_scores_in_more_rounds() -> None:
    seen: list[tuple[int, int | None]] = []
    model, given = model_with_loss("bert"), batches(4)
    small = expected_terms(model, given, same_rows=True, memory=1, progress=lambda *step: seen.append(step))
    for row, other in zip(small.rows(), expected_terms(model, given, same_rows=True).rows(), strict=True):
        numbers = {name: value for name, value in other.items() if isinstance(value, float)}
        assert {name: row[name] for name in numbers} == pytest.approx(numbers, rel=1e-9, abs=1e-12)
    assert seen[-1] == (8 * 4, 8 * 4)  # one round per head


def dense_growth(heads: Sequence[HeadTerms], ids: Sequence[Any]) -> np.ndarray:
    """Return the mean growth of ‖M_s‖² and ‖M_a‖² relative to ‖M‖² by kind of pair, [2, 3], from dense matrices."""
    form = heads[0].form.dense()
    total = np.zeros((2, 3))
    for head, tokens in zip(heads, ids, strict=True):
        tokens = np.tile(tokens.numpy(), (len(head.x) // len(tokens), 1))  # a layer used several times: all its calls
        same = tokens[:, :, None] == tokens[:, None]
        position = np.broadcast_to(np.eye(tokens.shape[1], dtype=bool), same.shape)
        for kind, pairs in enumerate((position, same & ~position, ~same)):
            beta = head.scale * head.beta * pairs
            assert head.weights is not None
            to_query = np.einsum("sij,sia,sjb->ab", beta, head.x, head.key)  # [d, r]
            to_key = np.einsum("sij,sib,sja->ab", beta, head.query, head.x)
            change = to_query @ head.weights.key.T + head.weights.query @ to_key.T
            for at, sign in enumerate((1, -1)):
                total[at, kind] += np.vdot(form + sign * form.T, change)
    return total / (len(heads) * np.linalg.norm(form) ** 2)


def bart(length: int, own_ids: bool) -> tuple[Any, list[dict[str, Any]]]:
    """Return a BART and batches whose decoder reads `length` tokens, shifted labels or ids of its own."""
    model, draw, given = model_with_loss("bart"), torch.Generator().manual_seed(3), []
    for _ in range(2):
        ids, labels = torch.randint(5, 9, (2, 6), generator=draw), torch.randint(5, 9, (2, length), generator=draw)
        read = {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels=labels)} if own_ids else {}
        given.append({"input_ids": ids, "labels": labels, **read})
    return model, given


GROWING: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bert": lambda: (model_with_loss("bert"), batches(2)),
    "layers used several times": lambda: (model_with_loss("albert"), batches(3)),
    "decoder reads labels": lambda: bart(6, False),  # as many as the encoder reads
    "decoder has ids": lambda: bart(8, True),
}


@pytest.mark.parametrize("kind", GROWING)
def test_growth_by_kind_of_pair_is_that_of_a_step_of_gradient_descent(kind: str) -> None:
    model, given = GROWING[kind]()
    expected = expected_terms(model, given)
    singles = [gradient_terms(model, batch) for batch in given]
    for label in singles[0].labels[1::4]:
        heads = [terms[label] for terms in singles]
        ids = [batch["input_ids"] for batch in given]
        if heads[0].stack == "decoder":
            ids = [model.prepare_decoder_input_ids_from_labels(labels=batch["labels"]) for batch in given]
        wanted, energy = dense_growth(heads, ids), heads[0].form.norm() ** 2
        for found, parts, sign in zip(
            (expected[label].growth_symmetric, expected[label].growth_skew), wanted, (1, -1), strict=True
        ):
            assert found is not None
            assert [found.position, found.token, found.rest] == pytest.approx(parts.tolist(), rel=1e-8)
            form = heads[0].form.dense()
            moved = np.mean([np.vdot(form + sign * form.T, head.change(1.0).dense()) for head in heads])
            assert found.total == pytest.approx(moved / energy, rel=1e-8)


def test_models_whose_weights_move_by_more_than_the_terms_have_no_growth() -> None:
    expected = expected_terms(model_with_loss("llama"), token_batches(2))
    assert all(row.growth_skew is None and row.pairing is None for row in expected.scores)
    assert expected.rows()[0]["growth_skew_position"] is None


def test_the_bundled_encoder_pairs_its_terms_and_the_shuffled_control_does_not() -> None:
    """The figures of the theory: paired terms are alike in expectation over masks, in the last layers."""
    folder = attngeo.bundled("encoder")
    model, tokenizer = tf.AutoModelForMaskedLM.from_pretrained(folder), tf.AutoTokenizer.from_pretrained(folder)
    text = (
        "The river rises in the hills north of the town and flows past the old mill, where the road crosses it "
        "by a stone bridge that was built when the railway came."
    )
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    expected = gradient_terms(model, {"input_ids": ids}, masks=64, tokenizer=tokenizer, layers=[2, 3])
    for layer in (2, 3):
        rows = [row for row in expected.scores if row.layer == layer]
        assert np.median([row.pairing_split for row in rows]) > 0.05
        assert abs(np.median([row.pairing_shuffled for row in rows])) < 0.05
    torch.manual_seed(0)
    untrained = tf.BertForMaskedLM(model.config)
    random = gradient_terms(untrained, {"input_ids": ids}, masks=16, tokenizer=tokenizer, layers=[2, 3])
    assert abs(np.median([row.pairing for row in random.scores])) < 0.05


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_shuffled_control_leaves_padding_out(kind: str) -> None:
    """Which token pads a row changes the vectors there; with the attention masked they must not count."""
    text = torch.ones(3, 10, dtype=torch.int64)
    text[0, 6:] = 0
    if kind == "bert":
        text[1, :2] = 0
    scores = []
    for pad in (0, 30):
        given = [
            {
                "input_ids": batch["input_ids"].masked_fill(text == 0, pad),
                "attention_mask": text,
                "labels": batch["labels"].masked_fill(text == 0, -100),
            }
            for batch in (batches if kind == "bert" else token_batches)(4)
        ]
        scores.append(expected_terms(model_with_loss(kind), given, same_rows=kind == "bert").scores)
    for row, other in zip(*scores, strict=True):
        for name in ("symmetry_split", "symmetry_shuffled", "pairing_shuffled"):
            assert getattr(row, name) == pytest.approx(getattr(other, name), abs=1e-9), (row.label, name)
        assert row.growth_skew is not None


def test_masks_depend_on_the_seed_and_their_number_alone() -> None:
    assert torch.equal(batches(5)[3]["input_ids"], batches(9)[3]["input_ids"])
    assert int((batches(5)[0]["labels"] != -100).sum(1).min()) == 2  # a fifth of ten tokens
    drawn = [masked["labels"].flatten().tolist() for seed in (0, 1, 2, 3) for masked in batches(4, seed=seed)]
    assert len({tuple(labels) for labels in drawn}) == 16


def test_the_frame_has_one_row_per_head_and_flat_columns() -> None:
    frame = expected_terms(model_with_loss("bert"), batches(2), same_rows=True).frame
    assert frame.height == 8 and {"growth_symmetric_token", "pairing_split"} <= set(frame.columns)
    assert all(math.isfinite(value) for value in frame["growth_skew_rest"])


def test_masks_are_drawn_with_a_tokenizer_whose_ids_leave_gaps() -> None:
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3, "[MASK]": 40}, unk_token="[UNK]"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=words, **names)
    model, text = model_with_loss("bert"), {"input_ids": torch.full((1, 8), 3)}
    assert len(gradient_terms(model, text, masks=2, tokenizer=tokenizer)) == 8
    with pytest.raises(InputError, match="token id 41, expected those of the tokenizer, below 41"):
        gradient_terms(model, {"input_ids": torch.tensor([[3, 41]])}, masks=2, tokenizer=tokenizer)
    for options, message in (
        ({"masks": 1}, "masks is 1, expected a whole number from 2 on"),
        ({"masks": 4, "share": 1.5}, "share: 1.5, expected a share of the tokens between 0 and 1"),
        ({"masks": 4}, "tokenizer: masks need a tokenizer with a mask token"),
    ):
        with pytest.raises(InputError, match=message):
            gradient_terms(model, text, **options)


def test_bad_batches_are_named() -> None:
    for given, message in (
        (batches(2)[0], "batch: expected a mapping of names to tensors"),
        (batches(1), "batches: 1, expected at least 2"),
        ([*batches(1), *batches(1, length=9)], r"tokens \[3, 9\], expected \[3, 10\]"),
    ):
        with pytest.raises(InputError, match=message):
            expected_terms(model_with_loss("bert"), given)


def test_text_that_cannot_be_masked_is_named() -> None:
    encoder, decoder = attngeo.bundled("encoder"), attngeo.bundled("decoder")  # both tokenizers have a mask token
    model, tokenizer = tf.AutoModelForMaskedLM.from_pretrained(encoder), tf.AutoTokenizer.from_pretrained(encoder)
    ids = torch.full((1, 8), tokenizer.pad_token_id)
    with pytest.raises(InputError, match="fewer ordinary tokens than are to be masked"):
        gradient_terms(model, {"input_ids": ids}, masks=4, tokenizer=tokenizer)
    causal, tokenizer = tf.AutoModelForCausalLM.from_pretrained(decoder), tf.AutoTokenizer.from_pretrained(decoder)
    with pytest.raises(InputError, match="masks: the model reads from left to right"):
        gradient_terms(causal, {"input_ids": torch.arange(20, 32)[None]}, masks=2, tokenizer=tokenizer)
