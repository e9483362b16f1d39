"""Updates averaged over many passes: sums against autograd, halves, controls, growth by kind of pair, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import attngeo
from attngeo.errors import InputError
from attngeo.training.data.masking import MaskedObjective
from attngeo.training.gradients.expected_scores import pairing, split_symmetry, update_scores
from attngeo.training.gradients.expected_terms import expected_terms
from attngeo.training.gradients.gradient_terms import gradient_terms
from attngeo.training.gradients.growth import growth_sums, moves_by_terms, pair_kinds
from attngeo.training.gradients.head_terms import HeadTerms
from attngeo.training.gradients.layer_sums import _shuffled, _shuffled_context, _without_padding
from attngeo.training.gradients.masked_batches import MaskedBatches
from attngeo.training.gradients.single_pass import single_pass
from tests.training.gradients.gradient_models import ENCODER_DECODER, GROUPED, TEXT
from tests.weights import dense_scores as dense


@pytest.fixture
def bert() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**TEXT, initializer_range=0.3)).double().eval()


def batches(count: int, rows: int = 3, length: int = 10, seed: int = 0) -> MaskedBatches:
    ids = torch.randint(5, 20, (rows, length), generator=torch.Generator().manual_seed(1))
    return MaskedBatches({"input_ids": ids}, MaskedObjective(4, (0, 1, 2, 4), 50, 0.2), count, seed)


def growth_of(head: HeadTerms, kinds: np.ndarray) -> np.ndarray:
    """Return the growth of one head, `[2, 3]`."""
    w = head.weights
    vectors = head.query[:, None], head.key[:, None]  # [S, 1, N, r]
    return growth_sums(head.x, head.beta[:, None], (w.query[None], w.key[None]), vectors, head.scale, kinds)[0]


@pytest.mark.parametrize("count", [6, 3])  # the halves of an odd number of passes differ in size
def test_an_average_is_the_mean_of_the_single_updates(bert, count):
    given = batches(count)
    expected = expected_terms(bert, given, same_rows=True)
    singles = [single_pass(bert, batch) for batch in given]
    assert expected.passes == count and expected.loss == pytest.approx(np.mean([terms.loss for terms in singles]))
    for label in ("L0H1", "L1H3"):
        updates = np.array([terms[label].update.dense() for terms in singles])  # [count, d, d]
        mean = updates.mean(0)
        scores = expected[label]
        assert scores.norm == pytest.approx(np.linalg.norm(mean), rel=1e-10)
        assert scores.symmetry == pytest.approx(np.trace(mean @ mean) / np.linalg.norm(mean) ** 2, rel=1e-9)
        assert scores.directionality == pytest.approx(dense.directionality(mean), rel=1e-9)
        for spread, axis in ((scores.row_spread, 1), (scores.column_spread, 0)):
            lengths = np.linalg.norm(mean, axis=axis)
            assert spread == pytest.approx(lengths.std(ddof=1) / lengths.mean(), rel=1e-9)
        halves = updates[::2].mean(0), updates[1::2].mean(0)
        agreement = np.vdot(*halves) / (np.linalg.norm(halves[0]) * np.linalg.norm(halves[1]))
        assert scores.agreement == pytest.approx(agreement, rel=1e-9)
        assert scores.symmetry_split == pytest.approx(np.trace(halves[0] @ halves[1]) / np.vdot(*halves), rel=1e-9)
        beta = np.mean([terms[label].beta for terms in singles], axis=0) * ~np.eye(10, dtype=bool)
        assert scores.pairing == pytest.approx(np.vdot(beta, beta.swapaxes(1, 2)) / np.vdot(beta, beta), rel=1e-9)


@pytest.mark.parametrize("count", [6, 3])
def test_controls_shuffle_every_pass_in_the_same_way(bert, count):
    given = batches(count)
    expected = expected_terms(bert, given, same_rows=True)
    singles = [single_pass(bert, batch) for batch in given]
    order = _shuffled_context(singles[0].layers[0].beta)
    off_diagonal = ~np.eye(10, dtype=bool)
    for label in ("L0H1", "L1H3"):
        heads = [terms[label] for terms in singles]
        betas = np.array([np.take_along_axis(head.beta, order[None], -1) for head in heads])  # [count, S, N, N]
        updates = np.array([np.einsum("sia,sij,sjb->ab", h.x, b, h.x) for h, b in zip(heads, betas, strict=True)])
        first, second = updates[::2].mean(0), updates[1::2].mean(0)
        scores = expected[label]
        if (agreement := np.vdot(first, second)) > 0:
            assert scores.symmetry_shuffled == pytest.approx(np.trace(first @ second) / agreement, rel=1e-8)
        first, second = betas[::2].mean(0) * off_diagonal, betas[1::2].mean(0) * off_diagonal
        if (agreement := np.vdot(first, second)) > 0:
            swapped = np.vdot(first, second.swapaxes(1, 2))
            assert scores.pairing_shuffled == pytest.approx(swapped / agreement, rel=1e-8)
        betas = np.array([head.beta for head in heads])
        first, second = betas[::2].mean(0) * off_diagonal, betas[1::2].mean(0) * off_diagonal
        if (agreement := np.vdot(first, second)) > 0:
            swapped = np.vdot(first, second.swapaxes(1, 2))
            assert scores.pairing_split == pytest.approx(swapped / agreement, rel=1e-8)


def test_little_memory_gives_the_same_scores_in_more_rounds(bert):
    seen: list[tuple[int, int]] = []
    small = expected_terms(bert, batches(4), same_rows=True, memory=1, progress=lambda *step: seen.append(step))
    for row, other in zip(small.rows(), expected_terms(bert, batches(4), same_rows=True).rows(), strict=True):
        numbers = {name: value for name, value in other.items() if isinstance(value, float)}
        assert {name: row[name] for name in numbers} == pytest.approx(numbers, rel=1e-9, abs=1e-12)
    assert seen[-1] == (8 * 4, 8 * 4)  # one round per head


@pytest.fixture
def biased(bert):
    """The same model with biases of queries and keys, as after some steps of training."""
    before = {name: value.detach().clone() for name, value in bert.named_parameters()}
    with torch.no_grad():
        for name, value in bert.named_parameters():
            if name.endswith(("query.bias", "key.bias")):
                value.normal_(generator=torch.Generator().manual_seed(len(name)))
    yield bert
    with torch.no_grad():
        for name, value in bert.named_parameters():
            value.copy_(before[name])


@pytest.mark.parametrize("model", ["bert", "biased"])
def test_growth_is_that_of_a_step_of_gradient_descent(model, request):
    bert = request.getfixturevalue(model)
    batch = batches(1)[0]
    terms = single_pass(bert, batch)
    kinds = pair_kinds(batch["input_ids"].numpy())
    for head in terms:
        sums = growth_of(head, kinds)
        assert moves_by_terms(head)
        form, change = head.form.dense(), head.change(1.0).dense()
        for sign, parts in zip((1, -1), sums, strict=True):
            part = (form + sign * form.T) / 2
            assert parts.sum() == pytest.approx(2 * np.vdot(part, change), rel=1e-8)


def test_pairs_are_a_position_the_same_token_or_the_rest(bert):
    kinds = pair_kinds(np.array([[7, 8, 7], [9, 9, 5]]))
    assert kinds.tolist() == [[[0, 2, 1], [2, 0, 2], [1, 2, 0]], [[0, 1, 2], [1, 0, 2], [2, 2, 0]]]
    different = {"input_ids": torch.arange(5, 15)[None], "labels": torch.arange(6, 16)[None]}
    expected = expected_terms(bert, [different, different])
    for head in single_pass(bert, different):  # the mean of two equal passes is that of one
        position, token, rest = growth_of(head, pair_kinds(different["input_ids"].numpy()))[1] / head.form.norm() ** 2
        found = expected[head.label].growth_skew
        assert token == found.token == 0 != rest  # no token occurs twice
        assert (found.position, found.rest) == pytest.approx((position, rest), rel=1e-9)


def test_growth_through_one_kind_of_pair_is_that_of_its_coefficients_alone(biased):
    batch = batches(1)[0]
    head = single_pass(biased, batch)["L1H0"]
    kinds = pair_kinds(batch["input_ids"].numpy())
    assert set(np.unique(kinds)) == {0, 1, 2}
    w = head.weights
    for kind in range(3):
        beta = head.scale * head.beta * (kinds == kind)
        to_query = np.einsum("sij,sia,sjb->ab", beta, head.x, head.key)  # [d, r]
        to_key = np.einsum("sij,sib,sja->ab", beta, head.query, head.x)
        change = to_query @ w.key.T + w.query @ to_key.T
        skew = (head.form.dense() - head.form.dense().T) / 2
        assert growth_of(head, kinds)[1, kind] == pytest.approx(2 * np.vdot(skew, change), rel=1e-8)


def test_models_whose_weights_move_by_more_than_the_terms_have_no_growth():
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**GROUPED)).eval()
    ids = torch.randint(5, 50, (2, 2, 8), generator=torch.Generator().manual_seed(2))
    expected = expected_terms(llama, [{"input_ids": rows, "labels": rows} for rows in ids])
    assert all(row.growth_skew is None and row.pairing is None for row in expected.scores)
    assert expected.rows()[0]["growth_skew_position"] is None


def test_the_bundled_encoder_pairs_its_terms_and_the_shuffled_control_does_not():
    """The figures of the theory: paired terms are alike in expectation over masks, in the last layers."""
    folder = attngeo.bundled("encoder")
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = (
        "The river rises in the hills north of the town and flows past the old mill, where the road crosses it "
        "by a stone bridge that was built when the railway came."
    )
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    expected = gradient_terms(model, {"input_ids": ids}, masks=64, tokenizer=tokenizer, layers=[2, 3])
    pairs = {layer: [row for row in expected.scores if row.layer == layer] for layer in (2, 3)}
    for rows in pairs.values():
        assert np.median([row.pairing_split for row in rows]) > 0.05
        assert abs(np.median([row.pairing_shuffled for row in rows])) < 0.05
    torch.manual_seed(0)
    untrained = BertForMaskedLM(model.config)
    random = gradient_terms(untrained, {"input_ids": ids}, masks=64, tokenizer=tokenizer, layers=[2, 3])
    assert abs(np.median([row.pairing for row in random.scores])) < 0.05


@pytest.mark.parametrize("causal", [True, False])
def test_the_shuffled_control_keeps_each_prediction_in_its_context(causal):
    """Under a causal mask no coefficient may move to a token that the prediction cannot see."""
    full = np.random.default_rng(0).normal(size=(2, 3, 12, 12))
    beta = np.tril(full) if causal else full
    order = torch.from_numpy(_shuffled_context(beta))
    shuffled = _shuffled(torch.from_numpy(beta), order).numpy()
    np.testing.assert_array_equal(np.sort(shuffled, -1), np.sort(beta, -1))  # each row keeps its coefficients
    assert bool(np.triu(shuffled, 1).any()) is not causal
    assert np.mean(shuffled[..., 1:, :] == beta[..., 1:, :]) < 0.7
    assert any(order[i, i] != i for i in range(12))  # a prediction is part of its own context


def test_the_shuffled_control_leaves_padding_out(bert):
    """Which token pads a row changes the vectors there; with the attention masked they must not count."""
    ids = torch.randint(5, 20, (3, 10), generator=torch.Generator().manual_seed(1))  # [rows, tokens]
    text = torch.ones(3, 10, dtype=torch.int64)
    text[0, 6:], text[1, :2] = 0, 0
    labels = ids.masked_fill(text == 0, -100)
    scores = []
    for pad in (0, 30):
        reads = [ids.index_fill(1, torch.tensor([k]), 4).masked_fill(text == 0, pad) for k in range(2, 6)]
        given = [{"input_ids": read, "attention_mask": text, "labels": labels} for read in reads]
        scores.append(expected_terms(bert, given, same_rows=True).scores)
    for row, other in zip(*scores, strict=True):
        for name in ("symmetry_split", "symmetry_shuffled", "pairing_shuffled"):
            assert getattr(row, name) == pytest.approx(getattr(other, name), abs=1e-9), (row.label, name)


def test_a_decoder_alone_reads_the_tokens_and_the_padding_of_the_batch():
    """Only a decoder beside an encoder has token ids and a mask of its own."""
    torch.manual_seed(0)
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=4, n_layer=2, n_positions=32, vocab_size=50)).double().eval()
    ids = torch.randint(5, 20, (4, 3, 10), generator=torch.Generator().manual_seed(1))  # [passes, rows, tokens]
    text = torch.ones(3, 10, dtype=torch.int64)
    text[0, 6:] = 0
    scores = []
    for pad in (0, 30):
        given = [
            {
                "input_ids": rows.masked_fill(text == 0, pad),
                "attention_mask": text,
                "labels": rows.masked_fill(text == 0, -100),
            }
            for rows in ids
        ]
        scores.append(expected_terms(gpt2, given).scores)
    for row, other in zip(*scores, strict=True):
        assert row.symmetry_shuffled == pytest.approx(other.symmetry_shuffled, abs=1e-9)
        assert row.growth_skew is not None


@pytest.mark.parametrize("causal", [False, True])
def test_orders_of_padded_rows_move_text_only(causal):
    beta = np.ones((1, 1, 8, 8))
    order = _shuffled_context(np.tril(beta) if causal else beta)
    text = np.array([[True] * 8, [True] * 5 + [False] * 3, [False, True, False, True, True, True, True, False]])
    moved = _without_padding(order, text)
    assert (moved[0] == order).all()  # the numbers drawn for rows without padding stay the same
    for row, is_text in zip(moved, text, strict=True):
        for i in range(8):
            assert sorted(row[i]) == list(range(8))
            assert row[i][is_text].tolist() == [j for j in order[i] if is_text[j]]
            assert not causal or (row[i][: i + 1][is_text[: i + 1]] <= i).all()


def test_scores_of_known_averages():
    symmetric = np.array([[2.0, 1.0], [1.0, 3.0]])
    skew = np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert update_scores(np.array([symmetric, symmetric]))["symmetry"] == 1
    assert split_symmetry(np.array([skew, skew])) == -1
    assert split_symmetry(np.array([skew, -skew])) is None  # the halves do not agree
    beta = np.array([[[5.0, 1.0], [1.0, 7.0]]])
    assert pairing(beta, beta) == 1 and pairing(beta, -beta) is None
    assert pairing(np.array([[[0.0, 1.0], [-1.0, 0.0]]]), np.array([[[0.0, 1.0], [-1.0, 0.0]]])) == -1


def test_masks_depend_on_the_seed_and_their_number_alone():
    first, again = batches(5), batches(9)
    assert torch.equal(first[3]["input_ids"], again[3]["input_ids"])
    assert not torch.equal(first[3]["labels"], first[2]["labels"])
    assert int((first[0]["labels"] != -100).sum(1).min()) == 2  # a fifth of ten tokens


def test_other_seeds_give_other_masks():
    drawn = [masked["labels"].flatten().tolist() for seed in (0, 1, 2, 2**32 - 1) for masked in batches(4, seed=seed)]
    assert len({tuple(labels) for labels in drawn}) == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": object()}, "tokenizer: draws masks and needs masks"),
        ({"masks": 1}, "masks: 1, expected at least 2"),
        ({"masks": 4, "share": 1.5}, "share: 1.5"),
        ({"masks": 4, "share": "half"}, "share is 'half', expected a finite number"),
        ({"masks": 4}, "tokenizer: masks need a tokenizer with a mask token"),
    ],
)
def test_bad_masks_are_named(bert, options, message):
    with pytest.raises(InputError, match=message):
        gradient_terms(bert, {"input_ids": torch.full((1, 8), 7)}, **options)


def test_a_row_without_ordinary_tokens_is_named():
    tokenizer = AutoTokenizer.from_pretrained(attngeo.bundled("encoder"))
    model = AutoModelForMaskedLM.from_pretrained(attngeo.bundled("encoder"))
    ids = torch.full((1, 8), tokenizer.pad_token_id)
    with pytest.raises(InputError, match="0 ordinary tokens, expected at least 1 to mask"):
        gradient_terms(model, {"input_ids": ids}, masks=4, tokenizer=tokenizer)


def test_masks_are_drawn_with_a_tokenizer_whose_ids_leave_gaps(bert):
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3, "[MASK]": 40}, unk_token="[UNK]"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    assert len(gradient_terms(bert, {"input_ids": torch.full((1, 8), 3)}, masks=2, tokenizer=tokenizer)) == 8
    with pytest.raises(InputError, match="token ids 3 to 41, expected those of the tokenizer, below 41"):
        gradient_terms(bert, {"input_ids": torch.tensor([[3, 41]])}, masks=2, tokenizer=tokenizer)


def test_memory_that_is_no_number_is_named(bert):
    with pytest.raises(InputError, match="memory is '1 GB', expected a finite number"):
        expected_terms(bert, batches(2), memory="1 GB")


def test_weights_without_values_are_named(bert):
    ids = torch.full((1, 8), 7)
    with pytest.raises(InputError, match="its weights are on the meta device and have no values yet"):
        gradient_terms(bert.to("meta"), {"input_ids": ids, "labels": ids})


def test_batches_of_different_shapes_are_named(bert):
    rows = [{"input_ids": torch.full((1, n), 7), "labels": torch.full((1, n), 7)} for n in (8, 9)]
    with pytest.raises(InputError, match=r"tokens \[1, 9\], expected \[1, 8\]"):
        expected_terms(bert, rows)


def test_the_frame_has_one_row_per_head_and_flat_columns(bert):
    frame = expected_terms(bert, batches(2), same_rows=True).frame
    assert frame.height == 8 and {"growth_symmetric_token", "pairing_split"} <= set(frame.columns)
    assert all(math.isfinite(value) for value in frame["growth_skew_rest"])


def test_batches_may_come_from_any_iterable(bert):
    several = batches(4)
    assert expected_terms(bert, iter(several), layers=0, memory=1) == expected_terms(bert, several, layers=0, memory=1)
    with pytest.raises(InputError, match="batches: one mapping of names to tensors, expected a list"):
        expected_terms(bert, several[0])


@pytest.mark.parametrize("length", [6, 8])  # of the decoder; the encoder reads 6 tokens
@pytest.mark.parametrize("given", ["labels", "decoder_input_ids"])
def test_pairs_of_a_decoder_are_those_of_the_tokens_it_reads(given, length):
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(**ENCODER_DECODER)).double().eval()
    draw = torch.Generator().manual_seed(3)
    several = []
    for _ in range(2):
        ids, labels = torch.randint(5, 9, (2, 6), generator=draw), torch.randint(5, 9, (2, length), generator=draw)
        several.append({"input_ids": ids, "labels": labels})
    read = [model.prepare_decoder_input_ids_from_labels(labels=batch["labels"]) for batch in several]
    if given == "decoder_input_ids":
        several = [{**batch, given: ids} for batch, ids in zip(several, read, strict=True)]
    expected = expected_terms(model, several)
    for stack, tokens in (("encoder", [batch["input_ids"] for batch in several]), ("decoder", read)):
        label = f"{stack} L0H1"
        heads = [single_pass(model, batch)[label] for batch in several]
        growth = sum(growth_of(head, pair_kinds(ids.numpy())) for head, ids in zip(heads, tokens, strict=True))
        mean = growth[0] / (2 * heads[0].form.norm() ** 2)  # of the symmetric part, by kind of pair
        found = expected[label].growth_symmetric
        assert [found.position, found.token, found.rest] == pytest.approx(mean.tolist(), rel=1e-9)


def test_a_layer_used_several_times_is_averaged_over_several_rows():
    torch.manual_seed(0)
    model = AlbertForMaskedLM(AlbertConfig(**TEXT, embedding_size=16)).double().eval()
    given = batches(3)
    scores = expected_terms(model, given, same_rows=True)["L0H1"]
    heads = [single_pass(model, batch)["L0H1"] for batch in given]
    calls = len(heads[0].x) // 3  # of three rows each
    kinds = [np.concatenate([pair_kinds(batch["input_ids"].numpy())] * calls) for batch in given]
    growth = sum(growth_of(head, kind) for head, kind in zip(heads, kinds, strict=True))
    mean = growth[1] / (3 * heads[0].form.norm() ** 2)  # of the skew part
    found = scores.growth_skew
    assert [found.position, found.token, found.rest] == pytest.approx(mean.tolist(), rel=1e-9)


def test_masks_are_for_models_that_read_both_ways():
    folder = attngeo.bundled("decoder")  # its tokenizer has a mask token, too
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = torch.arange(20, 32)[None]
    with pytest.raises(InputError, match="masks: the model reads from left to right"):
        gradient_terms(model, {"input_ids": ids}, masks=2, tokenizer=tokenizer)
    with pytest.raises(InputError, match="seed is 4294967296, expected a whole number from 0 to 4294967295"):
        gradient_terms(model, {"input_ids": ids}, masks=2, tokenizer=tokenizer, seed=2**32)
