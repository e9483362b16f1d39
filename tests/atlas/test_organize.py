"""`Atlas.organize`: rows per network and text are those of the single commands, once, and calls resume."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

import attngeo
from attngeo.atlas import Organized
from attngeo.atlas import organize as organizing
from attngeo.atlas.organize import is_read, read_texts
from attngeo.errors import InputError
from attngeo.organization.agreement import agreement

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = [
    "The heads of a layer read the same text.",
    "A tree of folders says which of them are close.",
    "What holds on one passage need not hold on the next.",
]
HEADS = 2  # on their own, to be fast
# Figure → its control, and 1 where larger is better, −1 where smaller is.
CONTROLS = {
    "gain": ("gain_permuted", 1),
    "l1_l2_trees": ("l1_l2_dyadic", -1),
    "exponent_trees": ("exponent_dyadic", 1),
    "heads_procrustes": ("heads_procrustes_control", -1),
    "keys_information": ("keys_information_control", 1),
}


@pytest.fixture(scope="module")
def encoder() -> Path:
    return Path(attngeo.bundled("encoder"))


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> attngeo.Atlas:
    atlas = attngeo.Atlas(tmp_path_factory.mktemp("organized") / "atlas")
    done = atlas.organize(encoder, TEXTS, invariance=1, invariance_heads=HEADS, workers=0)
    assert done == Organized(organized=4, known=0, failed=0)
    return atlas


@pytest.fixture
def new(tmp_path: Path) -> attngeo.Atlas:
    return attngeo.Atlas(tmp_path / "atlas")


def row_of(frame: pl.DataFrame, text: str) -> dict[str, Any]:
    """Return the row about a text, which begins with its opening."""
    return next(row for row in frame.to_dicts() if text.startswith(row["opening"].rstrip("…")))


# ---- rows


def test_rows_are_those_of_the_single_functions(atlas: attngeo.Atlas, encoder: Path) -> None:
    tensor = attngeo.capture(encoder, TEXTS[0])
    assert isinstance(tensor, attngeo.NetworkTensor)
    comparison = attngeo.organize(tensor).expand().compare()
    row = row_of(atlas.organized(), TEXTS[0])
    same = {"tokens": len(tensor.queries), "heads": 16, "stage": "logits", "model": str(encoder), "shared_key": None}
    assert {name: row[name] for name in same} == same  # each head has a key of its own
    assert row["gain"] == pytest.approx(comparison.gain(), abs=1e-6)
    assert row["gain_permuted"] == pytest.approx(comparison.gain(permuted=True), abs=1e-6)
    assert row["share90_dyadic"] == pytest.approx(comparison["dyadic trees"].sparsity.shares[0.9], abs=1e-6)
    assert row["exponent_trees"] == pytest.approx(comparison["trees"].holder.exponent, abs=1e-4)  # type: ignore[union-attr]

    [found] = atlas.invariance().iter_rows(named=True)
    assert found["chosen"] == HEADS and found["text"] == row["text"]
    whole = attngeo.softmax_invariance(tensor, heads=[0], bootstrap=0)  # figures of the network need no heads
    expected = whole["heads: affinity rank correlation"]
    assert found["heads_correlation"] == pytest.approx(expected.value, abs=1e-4)
    assert found["heads_correlation_control"] == pytest.approx(expected.control, abs=1e-4)


def test_the_agreement_of_two_texts_is_that_of_their_organisations(atlas: attngeo.Atlas, encoder: Path) -> None:
    """Of three texts, sorted by their hashes, the first two make a pair; its trees and affinities are stored."""
    [pair] = atlas.agreement().iter_rows(named=True)
    digest_of = {row_of(atlas.organized(), text)["text"]: text for text in TEXTS}
    assert [pair["text"], pair["other"]] == sorted(digest_of)[:2]
    tensors = attngeo.capture(encoder, [digest_of[pair[name]] for name in ("text", "other")])
    a, b = (attngeo.organize(tensor) for tensor in tensors)  # type: ignore[union-attr]
    expected = agreement(a.affinities[2], a.trees[2], b.affinities[2], b.trees[2])
    assert pair["information"] == expected.information and pair["rank_correlation"] > 0.5
    assert pair["rank_correlation"] == pytest.approx(expected.rank_correlation, abs=1e-3)
    assert pair["procrustes"] == pytest.approx(expected.procrustes, abs=1e-3)


@pytest.mark.parametrize(
    ("removed", "sharing"),
    [
        ([], 2 * 6),  # two layers of two key heads, each read by three heads
        (["L0H2", "L0H5", "L1H2", "L1H5"], 2 * 2),  # each key head has lost one of its heads
    ],
)
def test_pairs_that_share_a_key_head_are_compared_with_chance(
    new: attngeo.Atlas, encoder: Path, tmp_path: Path, removed: list[str], sharing: int
) -> None:
    """Heads of a pruned model keep their numbers, so that they share the key heads of the full model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    sizes = {"hidden_size": 48, "intermediate_size": 48, "vocab_size": len(tokenizer), "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(num_attention_heads=6, num_key_value_heads=2, head_dim=8, **sizes)
    )
    if removed:
        model = attngeo.prune(model, attngeo.PrunePlan.from_heads(model, removed), refit=False)
    folder = tmp_path / "llama"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert new.organize(folder, TEXTS[:1], permuted=False, invariance=0, workers=0).failed == 0
    row = row_of(new.organized(), TEXTS[0])
    heads = 12 - len(removed)
    assert row["shared_key_chance"] == pytest.approx(sharing / (heads * (heads - 1) / 2))
    tensor = attngeo.capture(folder, TEXTS[0])
    assert isinstance(tensor, attngeo.NetworkTensor)
    key_of = [(name[1], int(name[3:]) // 3) for name in tensor.heads]  # L0H5: layer 0, key head 1
    folders = attngeo.organize(tensor).trees[2].smallest_folders()
    shared = [key_of[a] == key_of[b] for folder in folders for a in folder for b in folder if a < b]
    assert row["shared_key"] == pytest.approx(np.mean(shared))


def test_summaries_are_means_with_intervals_and_the_share_that_beats_the_control(
    atlas: attngeo.Atlas, tmp_path: Path
) -> None:
    copy = attngeo.Atlas(shutil.copytree(atlas.path, tmp_path / "atlas"))
    parts = copy.organized()["part"].to_list()
    for part, figure in zip(parts, ("exponent_trees", "exponent_dyadic"), strict=False):  # unknown on one text each
        path = copy.path / "organized" / f"{part}.parquet"
        pl.read_parquet(path).with_columns(pl.lit(None, pl.Float64).alias(figure)).write_parquet(path)
    summary = {row["figure"]: row for row in copy.summary().to_dicts()}
    assert summary["rank_correlation"]["texts"] == 1 and summary["rank_correlation"]["control"] is None
    for figure, (control, sign) in CONTROLS.items():
        row = summary[figure]
        frame = copy.organized() if row["table"] == "organized" else copy.invariance()
        values = frame[figure].drop_nulls().to_numpy()
        both = frame.drop_nulls([figure, control])
        gaps = (both[figure] - both[control]).to_numpy()
        intervals = {("mean", "low", "high"): values, ("difference", "difference_low", "difference_high"): gaps}
        for (mean, low, high), numbers in intervals.items():
            assert row[mean] == pytest.approx(numbers.mean())
            if len(numbers) > 1:
                interval = stats.t.interval(0.95, len(numbers) - 1, numbers.mean(), stats.sem(numbers))
                assert (row[low], row[high]) == pytest.approx(interval)
            else:
                assert row[low] is row[high] is None
        assert row["texts"] == len(values)
        assert row["std"] is None if len(values) == 1 else row["std"] == pytest.approx(values.std(ddof=1))
        assert row["control"] == pytest.approx(both[control].mean()) and row["better"] == np.mean(sign * gaps > 0)


def test_tables_of_sql_are_those_of_python(atlas: attngeo.Atlas) -> None:
    pytest.importorskip("duckdb")
    for table, frame in (("organized", atlas.organized()), ("invariance", atlas.invariance())):
        assert atlas.sql(f"from {table} order by model, text").equals(frame.sort("model", "text"))
    assert atlas.sql("select count(*) as pairs from head_pairs").item() == 3 * 16 * 15 // 2


# ---- calls that are repeated


def test_the_same_call_again_computes_nothing(
    atlas: attngeo.Atlas, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organizing, "load_model", None)
    again = atlas.organize(encoder, TEXTS, invariance=1, invariance_heads=HEADS, workers=0)
    assert again == Organized(organized=0, known=4, failed=0)
    # A copy has the same content, and its rows appear under its name too.
    copy = shutil.copytree(encoder, tmp_path / "copy")
    assert atlas.organize(copy, TEXTS, invariance=0, workers=0) == Organized(organized=0, known=3, failed=0)
    frame = atlas.organized()
    assert frame.filter(model=str(copy)).drop("model").equals(frame.filter(model=str(encoder)).drop("model"))


def test_an_interrupted_call_resumes_and_workers_give_the_same_rows(
    atlas: attngeo.Atlas, new: attngeo.Atlas, encoder: Path
) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        new.organize(encoder, TEXTS[:2], invariance=0, workers=0, progress=interrupt)
    assert new.organized().height == 1
    assert new.organize(encoder, TEXTS[:2], invariance=0, workers=1) == Organized(organized=1, known=1, failed=0)
    expected = atlas.organized().filter(pl.col("text").is_in(new.organized()["text"].to_list()), model=str(encoder))
    assert new.organized().equals(expected) and expected.height == 2


@pytest.mark.parametrize("text, state", [(TEXTS[0], "organized"), ("word " * 300, "failures")])
def test_replaced_files_replace_their_rows(new: attngeo.Atlas, encoder: Path, tmp_path: Path, text: str, state: str):
    copy, parts = shutil.copytree(encoder, tmp_path / "copy"), []
    for end in ("", "\n"):
        with open(copy / "tokenizer_config.json", "a") as file:
            file.write(end)
        new.organize(copy, [text], invariance=0, permuted=False, workers=0)
        parts += getattr(new, state)()["part"].to_list()
    assert len(parts) == 2 and parts[0] != parts[1]


def test_newer_results_replace_older_ones(new: attngeo.Atlas, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (2, 3):
        monkeypatch.setattr(organizing.NetworkTask, "version", version)
        assert new.organize(encoder, TEXTS[:1], invariance=0, permuted=False, workers=0).organized == 1
        assert new.organized()["results"].to_list() == [version]


def test_files_that_are_not_read_may_change(new: attngeo.Atlas, encoder: Path, tmp_path: Path) -> None:
    """A run that goes on writes its log beside the model."""
    folder, options = shutil.copytree(encoder, tmp_path / "run"), {"invariance": 0, "permuted": False, "workers": 0}
    assert new.organize(folder, TEXTS[:1], **options).organized == 1
    (folder / "checkpoint-500").mkdir()
    for name in ("README.md", "train.log", "trainer_state.json", "checkpoint-500/model.safetensors"):
        (folder / name).write_text("later")
    assert new.organize(folder, TEXTS[:1], **options) == Organized(0, 1, 0)


def test_every_file_that_a_tokenizer_reads_counts() -> None:
    """Names of vocabularies are those of the classes of transformers."""
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


# ---- what cannot be used


def test_a_failing_text_and_a_failing_model_are_rows(new: attngeo.Atlas, encoder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    texts, missing = ["word " * 300, TEXTS[0]], tmp_path / "missing"
    options: dict[str, Any] = {"invariance": 0, "permuted": False, "workers": 0}
    done = new.organize([encoder, missing], texts, say=said.append, **options)
    assert done == Organized(organized=1, known=0, failed=2)
    assert set(new.failures()["model"]) == {str(missing), str(encoder)}
    assert any("reads at most 128" in line for line in said) and any("missing" in line for line in said)
    assert new.organize([encoder, missing], texts, **options).failed == 2
    truncated = new.organize(encoder, texts, truncate=True, **options)
    assert truncated == Organized(organized=2, known=0, failed=0)  # other options, other rows
    broken = shutil.copytree(encoder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    said.clear()
    assert new.organize(broken, TEXTS, say=said.append, **options).failed == 3
    assert len(said) == 1 and new.failures().filter(pl.col("model") == str(broken)).height == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": "values"}, "stage 'values'"),
        ({"invariance": -1}, "invariance is -1"),
        ({"texts": []}, "texts: expected at least one"),
    ],
)
def test_options_that_cannot_be_used(new: attngeo.Atlas, encoder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        new.organize(encoder, **({"texts": TEXTS, "workers": 0} | options))
    assert not new.path.exists()


def test_texts_are_the_lines_of_a_file_or_the_files_of_a_folder(tmp_path: Path) -> None:
    (lines := tmp_path / "c.md").write_bytes("\ufefffirst\r\n\r\n  second \fpart\nfirst\n".encode())
    assert read_texts(lines) == ["first", "second \fpart"]
    with pytest.raises(InputError, match=r"has no \.txt files"):
        read_texts(tmp_path)
    for name, text in (("b.txt", "two\nlines\n"), ("a.txt", "one"), ("d.txt", " \n")):
        (tmp_path / name).write_text(text)
    assert read_texts(tmp_path) == ["one", "two\nlines"]
    with pytest.raises(InputError, match=r"d\.txt: no texts, expected one per line"):
        read_texts(tmp_path / "d.txt")
