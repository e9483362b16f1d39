"""compare: from two checkpoints to a ModelComparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import attngeo
from attngeo.applications.compare import ModelComparison, compare, compare_all
from attngeo.errors import AttngeoError, InputError
from attngeo.show.comparison import model_map_report, model_map_section
from tests.applications.compare.llama_pairs import (
    HEADS,
    LAYERS,
    permuted,
    random_model,
    save_model,
    tuned,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def base(folder):
    return save_model(folder / "base", random_model(0))


@pytest.fixture(scope="module")
def fine_tuned(folder, base):
    return compare(base, save_model(folder / "tuned", tuned(random_model(0), 0.1)))


def test_changes_of_scores_are_differences_of_scores(base, folder, fine_tuned):
    before, after = (attngeo.score(path).frame for path in (base, folder / "tuned"))
    joined = fine_tuned.changes
    for frame, suffix in ((before, "_of_a"), (after, "_of_b")):
        keys = ["stack", "layer", "head"]
        joined = joined.join(frame, on=keys, nulls_equal=True, maintain_order="left", suffix=suffix)
    for score in ("symmetry", "directionality", "symmetry_rope", "dominance", "self_attending", "rank_skew", "norm"):
        assert joined[score].to_list() == joined[f"{score}_of_a"].to_list()
        assert joined[score].null_count() == 0
        expected = (joined[f"{score}_of_b"] - joined[f"{score}_of_a"]).to_list()
        assert joined[f"{score}_change"].to_list() == pytest.approx(expected, abs=1e-12)


def test_a_fine_tune_is_related_and_a_stranger_is_not(fine_tuned, base, folder):
    heads = fine_tuned.changes.drop_nulls("head")
    assert heads.height == LAYERS * HEADS and fine_tuned.changes.height == LAYERS * (HEADS + 1)
    assert (heads["match"] == heads["head"]).all() and (heads["match_cosine"] == heads["cosine"]).all()
    related = fine_tuned.related
    assert related.p_value == 0.001 and related.related and related.draws == 999
    assert related.cosine > 0.97 > 0.2 > related.null_mean > related.null_std
    assert related.verdict.startswith("the weights share an origin, p ≤ 0.001: mean matched |cosine| 0.9")
    assert related.verdict in repr(fine_tuned) and "share an origin" in fine_tuned._repr_html_()
    stranger = compare(base, save_model(folder / "stranger", random_model(9))).related
    assert stranger.p_value > 0.01 and "no sign of a common origin" in stranger.verdict
    assert stranger.cosine < 0.2


def test_permuted_heads_are_matched(base, folder):
    tensors = random_model(0)
    order = np.array([2, 0, 1])  # of the key heads, with their query heads
    for name, value in tensors.items():
        if "_proj" in name:
            tensors[name] = value.reshape(3, -1, *value.shape[1:])[order].reshape(value.shape)
    comparison = compare(base, save_model(folder / "heads", tensors))
    rows = comparison.changes.filter(pl.col("head").is_not_null())
    assert rows["match"].to_list() == [2, 3, 4, 5, 0, 1] * LAYERS
    assert rows["match_cosine"].to_list() == pytest.approx([1] * rows.height)
    assert rows["change"].min() > 0.5
    assert comparison.related.cosine == pytest.approx(1)


@pytest.mark.parametrize("flips", [False, True])
def test_a_permuted_basis_is_found_by_alignment_only(base, folder, flips):
    other = save_model(folder / f"permuted-{flips}", permuted(tuned(random_model(0), 0.05), flips=flips))
    assert compare(base, other).related.p_value > 0.01
    comparison = compare(base, other, align=True)
    aligned = comparison.related
    assert aligned.p_value == 0.01 and aligned.aligned and aligned.draws == 99 and aligned.statistic > 0.95
    legends = [axes.get_legend() for axes in comparison.plot().axes]
    labels = {text.get_text() for legend in legends if legend is not None for text in legend.get_texts()}
    assert "shuffled tokens, 95%" in labels and "permuted bases, 95%" not in labels
    stranger = compare(base, save_model(folder / "stranger", random_model(9)), align=True).related
    assert stranger.p_value > 0.01


def test_the_cosine_of_two_models_leaves_out_cross_attention(folder):
    """The queries and keys of cross-attention live in two spaces, on which no one permutation acts."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 40, "max_position_embeddings": 16}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    model = transformers.BartModel(transformers.BartConfig(**sizes, **heads, encoder_ffn_dim=8, decoder_ffn_dim=8))
    model.save_pretrained(folder / "two-stacks")
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "encoder_attn" in name:
                value.normal_()
    model.save_pretrained(folder / "other-cross")
    comparison = compare(folder / "two-stacks", folder / "other-cross")
    assert comparison.related.cosine == pytest.approx(1)
    by_stack = comparison.changes.filter(pl.col("head").is_null()).group_by("stack").agg(pl.col("change").min())
    assert {stack: change > 0.5 for stack, change in by_stack.rows()} == {
        "encoder": False,
        "decoder": False,
        "cross": True,
    }


@pytest.mark.parametrize(("added", "shared"), [(3, True), (4, False)])
def test_vocabularies_may_differ_by_a_hundredth(base, folder, added, shared):
    """Of 300 tokens: some were added, or the embedding was padded."""
    tensors = permuted(random_model(0))
    name = "model.embed_tokens.weight"
    tensors[name] = np.concatenate([tensors[name], np.zeros((added, tensors[name].shape[1]), np.float32)])
    other = save_model(folder / f"added-{added}", tensors)
    if shared:
        assert compare(base, other, align=True).related.statistic > 0.95
    else:
        with pytest.raises(InputError, match=r"has 300 token embeddings, .* has 304; expected models with a shared"):
            compare(base, other, align=True)


def test_identical_weights_are_called_identical(base):
    comparison = compare(base, base)
    assert comparison.identical and comparison.words()[0].endswith("are identical.")
    assert comparison.changes["change"].max() == 0


def test_other_depths_have_changes_and_no_verdict(base, folder):
    comparison = compare(base, save_model(folder / "deeper", random_model(0, layers=LAYERS + 1)))
    assert comparison.changes["layer"].n_unique() == LAYERS
    assert comparison.related.p_value is None and comparison.related.related is None
    assert comparison.related.verdict == "no verdict: the models differ in depth, so their layers cannot be paired"


def test_fixed_positions_have_no_verdict(folder, base):
    pinned = save_model(folder / "pinned", random_model(3), sinusoidal_embeddings=True)
    assert "fixed sinusoidal positions" in compare(base, pinned).related.verdict


def test_too_few_draws_or_models_are_refused(base):
    for call in (lambda: compare(base, base, draws=10), lambda: compare_all([base, base], draws=10)):
        with pytest.raises(InputError, match="draws is 10, expected at least 99"):
            call()
    with pytest.raises(InputError, match="1 model, expected at least two"):
        compare_all([base])


def test_models_that_cannot_be_compared_are_refused(base, folder):
    with pytest.raises(InputError, match="have the widths 48 and 64: forms of different width have no cosine"):
        compare(base, save_model(folder / "wide", random_model(0, width=64)))
    weights = {key: value for key, value in random_model(0).items() if "embed" not in key}
    with pytest.raises(InputError, match="no token embedding of width 48"):
        compare(weights, weights, num_heads=HEADS, align=True)


def test_a_comparison_saves_and_loads(fine_tuned, tmp_path):
    path = tmp_path / "comparison.parquet"
    fine_tuned.save(path)
    assert ModelComparison.load(path) == fine_tuned
    for other in ({"a": "another"}, {"changes": fine_tuned.changes[1:]}):
        assert replace(fine_tuned, **other) != fine_tuned
    with pytest.raises(InputError, match=r"saved as \.parquet"):
        fine_tuned.save(tmp_path / "comparison.json")
    (tmp_path / "cut.parquet").write_bytes(path.read_bytes()[:100])
    attngeo.score(attngeo.bundled("encoder"), nulls=False).save(tmp_path / "scores.parquet")
    messages = {"cut": "not a sound Parquet file", "missing": "No such file", "scores": "is not a comparison"}
    for name, message in messages.items():
        with pytest.raises(AttngeoError, match=message):
            ModelComparison.load(tmp_path / f"{name}.parquet")


def test_without_a_number_of_heads_only_layers_are_compared():
    """Such a layer is read as one head, which is no head of the model and has no counterpart to miss."""
    a, b = (
        {f"layers.{i}.{name}.weight": rng.normal(size=(32, 32)) for i in range(2) for name in ("q_proj", "k_proj")}
        for rng in map(np.random.default_rng, (0, 1))
    )
    found = compare(a, b, draws=99)
    assert found.notes == (
        "Only layers are compared: the number of heads of state dict is not known (num_heads, --num-heads)",
    )
    assert found.changes["head"].null_count() == found.changes.height == 2
    assert "the forms of 2 layers by" in found.words()[0] and "heads" not in found.words()[0]
    assert compare(a, b, draws=99, num_heads=4).notes == ()
    several = compare_all([a, b, a], draws=99)
    assert several.notes == found.notes and found.notes[0] in repr(several)
    assert found.notes[0] in model_map_report(several)
    assert found.notes[0] in model_map_section(several).notes


def test_heads_are_not_matched_to_a_whole_layer(tmp_path):
    """A folder without its config has the same weights; its layers are compared with layers, not with heads."""
    encoder = attngeo.bundled("encoder")
    (tmp_path / "model.safetensors").symlink_to(encoder / "model.safetensors")
    for pair in ((encoder, tmp_path), (tmp_path, encoder)):
        found = compare(*pair, draws=99)
        assert found.identical and "Only layers are compared" in found.notes[0]
        assert found.related.cosine == pytest.approx(1) and found.related.statistic == pytest.approx(1)
    alone = compare(tmp_path, tmp_path, draws=99)
    assert found.related == alone.related


def test_stacks_of_different_names_are_noted_in_a_sentence():
    encoder, decoder = (attngeo.bundled(name) for name in ("encoder", "decoder"))
    note = f"The stack encoder of {encoder} is compared with the stack decoder of {decoder}"
    assert compare(encoder, decoder).notes == (note,)
