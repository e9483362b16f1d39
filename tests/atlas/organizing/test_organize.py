"""`Atlas.organize`: rows per network and text are those of the single commands, once, and calls resume."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import attngeo
from attngeo.atlas import Organized
from attngeo.atlas.organizing import frames, job
from attngeo.atlas.organizing.network import is_read
from attngeo.atlas.organizing.summary import mean_interval
from attngeo.errors import InputError
from attngeo.live.load import LoadedModel, load_model
from attngeo.organization.agreement import agreement

TEXTS = [
    "The heads of a layer read the same text, and each of them looks for something else in it.",
    "A tree of folders within folders says which of them are close to each other on one text.",
    "What holds on one passage need not hold on the next, so that many of them are read.",
]
HEADS = 3  # on their own, to be fast


@pytest.fixture(scope="module")
def encoder() -> Path:
    return Path(attngeo.bundled("encoder"))


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> attngeo.Atlas:
    atlas = attngeo.Atlas(tmp_path_factory.mktemp("organized") / "atlas")
    done = atlas.organize(encoder, TEXTS, invariance=1, invariance_heads=HEADS, workers=0)
    assert done == Organized(organized=4, known=0, failed=0)
    return atlas


def test_rows_are_those_of_the_single_functions(atlas: attngeo.Atlas, encoder: Path) -> None:
    rows = {row["opening"]: row for row in atlas.organized().iter_rows(named=True)}
    tensor = attngeo.capture(encoder, TEXTS[0])
    assert isinstance(tensor, attngeo.NetworkTensor)
    comparison = attngeo.organize(tensor).expand().compare()
    row = next(row for opening, row in rows.items() if TEXTS[0].startswith(opening.rstrip("…")))
    assert (row["tokens"], row["heads"], row["stage"], row["model"]) == (
        len(tensor.queries),
        16,
        "logits",
        str(encoder),
    )
    assert row["gain"] == pytest.approx(comparison.gain(), abs=1e-6)
    assert row["gain_permuted"] == pytest.approx(comparison.gain(permuted=True), abs=1e-6)
    assert row["share90_dyadic"] == pytest.approx(comparison["dyadic trees"].sparsity.shares[0.9], abs=1e-6)
    assert row["exponent_trees"] == pytest.approx(comparison["trees"].holder.exponent, abs=1e-4)  # type: ignore[union-attr]
    assert row["shared_key"] is None  # each head has a key of its own

    [found] = atlas.invariance().iter_rows(named=True)
    assert found["chosen"] == HEADS and found["text"] == row["text"]
    whole = attngeo.softmax_invariance(tensor, heads=[0], bootstrap=0)  # figures of the network need no heads
    assert found["heads_correlation"] == pytest.approx(whole["heads: affinity rank correlation"].value, abs=1e-4)
    assert found["heads_correlation_control"] == pytest.approx(
        whole["heads: affinity rank correlation"].control, abs=1e-4
    )


def test_stored_heads_give_the_tree_and_the_affinity_back(atlas: attngeo.Atlas, encoder: Path) -> None:
    a, b = (attngeo.organize(tensor) for tensor in attngeo.capture(encoder, TEXTS[:2]))  # type: ignore[union-attr]
    rows = atlas.organized().sort("text").to_dicts()
    by_text = {row["opening"][:20]: row for row in rows}
    found = []
    for text, organization in ((TEXTS[0], a), (TEXTS[1], b)):
        row = by_text[text[:20]]
        affinity, tree = frames._heads(atlas._store, row["part"], row["depth"])
        assert (tree.levels == organization.trees[2].levels).all()
        assert np.abs(affinity - organization.affinities[2]).max() < 1e-5
        found.append((affinity, tree))
    direct = agreement(a.affinities[2], a.trees[2], b.affinities[2], b.trees[2])
    stored = agreement(*found[0], *found[1])
    assert stored.information == direct.information
    assert stored.rank_correlation == pytest.approx(direct.rank_correlation, abs=1e-3)
    # Three texts make one pair.
    [pair] = atlas.agreement().iter_rows(named=True)
    assert [pair["text"], pair["other"]] == [row["text"] for row in rows[:2]] and pair["rank_correlation"] > 0.5


def test_the_same_call_again_computes_nothing(
    atlas: attngeo.Atlas, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "load_network", None)
    again = atlas.organize(encoder, TEXTS, invariance=1, invariance_heads=HEADS, workers=0)
    assert again == Organized(organized=0, known=4, failed=0)
    # A copy has the same content, and its rows appear under its name too.
    copy = shutil.copytree(encoder, tmp_path / "copy")
    assert atlas.organize(copy, TEXTS, invariance=0, workers=0) == Organized(organized=0, known=3, failed=0)
    frame = atlas.organized()
    assert frame.filter(model=str(copy)).drop("model").equals(frame.filter(model=str(encoder)).drop("model"))


def test_an_interrupted_call_resumes_and_workers_give_the_same_rows(
    atlas: attngeo.Atlas, encoder: Path, tmp_path: Path
) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    other = attngeo.Atlas(tmp_path / "atlas")
    with pytest.raises(KeyboardInterrupt):
        other.organize(encoder, TEXTS, invariance=0, workers=0, progress=interrupt)
    assert other.organized().height == 1
    assert other.organize(encoder, TEXTS, invariance=0, workers=2) == Organized(organized=2, known=1, failed=0)
    of_encoder = atlas.organized().filter(model=str(encoder))
    assert other.organized().equals(of_encoder)
    assert other._store.frame("head_pairs").equals(atlas._store.frame("head_pairs"))


def test_replaced_files_replace_their_rows(encoder: Path, tmp_path: Path) -> None:
    copy, atlas = shutil.copytree(encoder, tmp_path / "copy"), attngeo.Atlas(tmp_path / "atlas")
    found = []
    for end in ("", "\n"):
        with open(copy / "tokenizer_config.json", "a") as file:
            file.write(end)
        atlas.organize(copy, TEXTS[:1], invariance=0, workers=0)
        found += atlas.organized()["content"].to_list()
    assert len(found) == 2 and found[0] != found[1]


def test_files_that_change_before_they_are_loaded(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks may wait long: results of other weights must not get the name of the content that was hashed."""
    folder, decoder = shutil.copytree(encoder, tmp_path / "run"), attngeo.bundled("decoder")

    def training_goes_on(ref: str) -> LoadedModel:
        shutil.copytree(decoder, folder, dirs_exist_ok=True)
        return load_model(ref)

    atlas = attngeo.Atlas(tmp_path / "atlas")
    with monkeypatch.context() as during:
        during.setattr("attngeo.live.load.load_model", training_goes_on)
        assert atlas.organize(folder, TEXTS[:2], invariance=0, workers=0) == Organized(0, 0, 2)
    assert "files changed" in atlas.failures()["message"].item()
    assert atlas.organize(encoder, TEXTS[:1], invariance=0, workers=0) == Organized(1, 0, 0)  # the weights before
    assert atlas.organize(folder, TEXTS[:1], invariance=0, workers=0, retry=True) == Organized(1, 0, 0)


def test_files_that_are_not_read_may_change(encoder: Path, tmp_path: Path) -> None:
    """All networks are hashed before the first is loaded; meanwhile a run writes its log beside the second."""
    folder, beside = shutil.copytree(encoder, tmp_path / "run"), shutil.copytree(encoder, tmp_path / "other")
    (beside / "config.json").write_text((encoder / "config.json").read_text() + "\n")  # of another content, so loaded
    atlas = attngeo.Atlas(tmp_path / "atlas")

    def training_goes_on(done: int, total: int) -> None:
        (beside / "checkpoint-500").mkdir(exist_ok=True)
        for name in ("README.md", "train.log", "notes.txt", "metrics.jsonl", "optimizer.pt", "trainer_state.json",
                     "eval_results.json", "checkpoint-500/model.safetensors"):  # fmt: skip
            (beside / name).write_text(f"{done} of {total}")

    done = atlas.organize([folder, beside], TEXTS[:1], invariance=0, workers=0, progress=training_goes_on)
    assert done == Organized(2, 0, 0), atlas.failures()["message"].to_list()
    training_goes_on(3, 3)
    assert atlas.organize(beside, TEXTS[:1], invariance=0, workers=0) == Organized(0, 1, 0)


def test_every_file_that_a_tokenizer_reads_counts() -> None:
    """Names of vocabularies are those of the classes of transformers."""
    transformers = pytest.importorskip("transformers")
    names = {"config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model.v3", "tekken.json"}
    for module in Path(transformers.__file__).parent.glob("models/*/tokenization_*.py"):
        for table in re.findall(r"^VOCAB_FILES_NAMES = \{(.*?)\}", module.read_text(), re.M | re.S):
            names |= set(re.findall(r': "(.*?)"', table))
    assert len(names) > 20 and [name for name in sorted(names) if not is_read(name)] == []


def test_a_missing_part_is_found_and_restored(atlas: attngeo.Atlas, encoder: Path, tmp_path: Path) -> None:
    copy = attngeo.Atlas(shutil.copytree(atlas.path, tmp_path / "atlas"))
    part = copy.organized()["part"][0]
    (copy.path / "head_pairs" / f"{part}.parquet").unlink()
    with pytest.raises(InputError, match=f"{part}.parquet: is missing"):
        copy.agreement()
    assert copy.organize(encoder, TEXTS, invariance=0, workers=0).organized == 1
    assert copy.agreement().equals(atlas.agreement())


def test_means_and_intervals_over_texts(atlas: attngeo.Atlas, encoder: Path) -> None:
    summary = atlas.summary().filter(model=str(encoder))
    gains = atlas.organized().filter(model=str(encoder))["gain"].to_numpy()
    [row] = summary.filter(figure="gain").iter_rows(named=True)
    assert row["texts"] == 3 and row["mean"] == pytest.approx(gains.mean())
    margin = 4.302652729911275 * gains.std(ddof=1) / 3**0.5  # the 97.5% quantile of t with 2 degrees of freedom
    assert (row["low"], row["high"]) == pytest.approx((gains.mean() - margin, gains.mean() + margin))
    assert row["difference"] == pytest.approx(row["mean"] - row["control"]) and row["better"] == 1.0
    [single] = summary.filter(figure="keys_correlation").iter_rows(named=True)
    assert single["texts"] == 1 and single["low"] is None and single["std"] is None
    assert summary.filter(table="agreement").height == 3
    assert mean_interval(np.array([2.0])) == (None, None)


def test_a_distance_is_better_where_it_is_smaller_than_its_control(atlas: attngeo.Atlas) -> None:
    rows = atlas.summary().filter(table="invariance", texts=1).iter_rows(named=True)
    better = {row["figure"]: (row["difference"], row["better"]) for row in rows}
    assert {"heads_procrustes", "heads_correlation"} <= better.keys()
    for figure, (difference, share) in better.items():
        assert share == (difference < 0 if figure.endswith("procrustes") else difference > 0)


def test_tables_of_sql_are_those_of_python(atlas: attngeo.Atlas) -> None:
    pytest.importorskip("duckdb")
    for table, frame in (("organized", atlas.organized()), ("invariance", atlas.invariance())):
        assert atlas.sql(f"from {table} order by model, text").equals(frame.sort("model", "text"))
    heads = atlas.sql("select count(*) as pairs from head_pairs").item()
    assert heads == 3 * 16 * 15 // 2


def test_a_failing_text_and_a_failing_model_are_rows(encoder: Path, tmp_path: Path) -> None:
    atlas, said = attngeo.Atlas(tmp_path / "atlas"), []
    texts = ["word " * 300, TEXTS[0]]
    missing = tmp_path / "missing"
    done = atlas.organize([encoder, missing], texts, invariance=0, workers=0, say=said.append)
    assert done == Organized(organized=1, known=0, failed=2)
    failures = atlas.failures()
    assert set(failures["model"]) == {str(missing), str(encoder)}
    assert any("reads at most 128" in line for line in said) and any("missing" in line for line in said)
    assert atlas.organize([encoder, missing], texts, invariance=0, workers=0).failed == 2
    truncated = atlas.organize(encoder, texts, invariance=0, workers=0, truncate=True)
    assert truncated == Organized(organized=2, known=0, failed=0)  # other options, other rows
    broken = shutil.copytree(encoder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    said.clear()
    assert atlas.organize(broken, TEXTS, invariance=0, workers=0, say=said.append).failed == 3
    assert len(said) == 1 and atlas.failures().filter(pl.col("model") == str(broken)).height == 1


def test_replaced_files_replace_their_failures(encoder: Path, tmp_path: Path) -> None:
    copy, atlas = shutil.copytree(encoder, tmp_path / "copy"), attngeo.Atlas(tmp_path / "atlas")
    parts = []
    for end in ("", "\n"):
        with open(copy / "tokenizer_config.json", "a") as file:
            file.write(end)
        assert atlas.organize(copy, ["word " * 300], invariance=0, workers=0).failed == 1
        parts += atlas.failures()["part"].to_list()
    assert len(parts) == 2 and parts[0] != parts[1]


def test_options_that_cannot_be_used(encoder: Path, tmp_path: Path) -> None:
    atlas = attngeo.Atlas(tmp_path / "atlas")
    for options, message in (
        ({"stage": "values"}, "stage 'values'"),
        ({"invariance": -1}, "invariance is -1"),
        ({"invariance_heads": -1}, "invariance_heads is -1"),
        ({"invariance_heads": 1.5}, "invariance_heads is 1.5, expected a whole number"),
        ({"seed": -1}, "seed is -1, expected a whole number from 0 on"),
        ({"stack": ["encoder"]}, "expected the name of one stack"),
    ):
        with pytest.raises(InputError, match=message):
            atlas.organize(encoder, TEXTS, workers=0, **options)  # type: ignore[arg-type]
    for texts in ([], ["  "], [3]):
        with pytest.raises(InputError, match="texts"):
            atlas.organize(encoder, texts, workers=0)  # type: ignore[arg-type]
    assert not atlas.path.exists()
