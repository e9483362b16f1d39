"""An atlas holds what `score` returns, once per model, whatever is added how often and under which name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest

import attngeo
from attngeo.atlas import Added
from attngeo.atlas.reference import Reference, read_list
from attngeo.atlas.store import MANIFEST, TABLES
from attngeo.atlas.task import ScoreTask
from attngeo.errors import InputError
from attngeo.weights.scoring.score_table import COLUMNS
from tests.atlas.small_models import LAYOUTS, make_models, model_files
from tests.weights.made_checkpoints import LLAMA_CONFIG, llama_like_tensors, safetensors_bytes, write_files


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return make_models(tmp_path / "models", 6)


@pytest.fixture
def atlas(tmp_path: Path) -> attngeo.Atlas:
    return attngeo.Atlas(tmp_path / "atlas")


# ---- rows


def test_rows_are_those_of_score(atlas: attngeo.Atlas, models: list[Path]) -> None:
    assert atlas.add(models, workers=0) == Added(scored=6, linked=0, known=0, failed=0)
    frame = atlas.frame()
    for path in models:
        expected = attngeo.score(path, folded=True).frame.drop("model").sort("stack", "layer", "head")
        found = frame.filter(model=str(path)).select(expected.columns).sort("stack", "layer", "head")
        assert found.select(pl.exclude(pl.Float64)).equals(expected.select(pl.exclude(pl.Float64)))
        for name in expected.select(pl.col(pl.Float64)).columns:
            # NaN: a null on one side only. The number of threads may change last digits.
            gap = (found[name] - expected[name]).abs().max()
            assert found[name].null_count() == expected[name].null_count() and (gap is None or gap < 1e-12), name
    assert set(atlas.models()["model_type"]) == set(list(LAYOUTS)[:6])


@pytest.mark.filterwarnings("ignore:.*no score where:UserWarning")
def test_forms_without_a_score_are_named_in_the_notes(atlas: attngeo.Atlas, tmp_path: Path) -> None:
    tensors = llama_like_tensors()
    tensors["model.layers.1.self_attn.q_proj.weight"][:16] = 0  # the first head
    content = {"config.json": LLAMA_CONFIG, "model.safetensors": safetensors_bytes(tensors)}
    folder, copy = (write_files(tmp_path / name, content) for name in ("zero", "copy"))
    assert atlas.add(folder, workers=0).scored == 1 and atlas.add(copy, workers=0).linked == 1
    [note] = attngeo.score(folder).notes
    assert note.endswith(": L1H0")
    assert atlas.models()["notes"].to_list() == [note.removeprefix(f"{folder}: ")] * 2


def test_options_are_those_of_score_and_give_rows_of_their_own(atlas: attngeo.Atlas, models: list[Path]) -> None:
    for options in ({}, {"folded": False, "nulls": False}, {"heads": False}):
        assert atlas.add(models[0], workers=0, **options).scored == 1
    whole, layers, plain = atlas.frame().partition_by("options", maintain_order=True)
    texts = ("", '{"heads": false}', '{"nulls": false, "folded": false}')
    assert tuple(frame["options"][0] for frame in (whole, layers, plain)) == texts
    assert whole["symmetry"].equals(plain["symmetry"])
    for name in ("symmetry_folded", "symmetry_z", "directionality_p", "symmetry_repaired"):
        assert whole[name].null_count() < whole.height and plain[name].null_count() == plain.height, name
    assert layers["head"].null_count() == layers.height and layers["symmetry_folded"].null_count() < layers.height


def test_newer_results_replace_older_ones(
    atlas: attngeo.Atlas, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an update of attngeo whose rows differ, models that are added again have one set of rows, the new one."""
    atlas.add(models[:2], workers=0)
    older, rows = dict(atlas.models().select("model", "part").rows()), atlas.frame().height
    monkeypatch.setattr(ScoreTask, "version", newer := ScoreTask.version + 1)
    assert atlas.add(models[0], workers=0) == Added(scored=1, linked=0, known=0, failed=0)
    found = {name: (version, part) for name, version, part in atlas.models().select("model", "results", "part").rows()}
    assert found[str(models[0])][0] == newer and found[str(models[0])][1] != older[str(models[0])]
    assert found[str(models[1])] == (newer - 1, older[str(models[1])])
    assert atlas.frame().height == rows


def test_other_readers_need_no_attngeo(atlas: attngeo.Atlas, models: list[Path]) -> None:
    atlas.add(models[:3], workers=0)
    scores = pl.read_parquet(atlas.path / "scores" / "*.parquet")
    assert {name: str(kind) for name, kind in scores.schema.items()} == TABLES["scores"]
    joined = scores.join(pl.read_parquet(atlas.path / "models" / "*.parquet"), on="part")
    assert joined.height == atlas.frame().height


def test_new_columns_need_a_new_version_of_results() -> None:
    columns = hashlib.sha256(json.dumps(COLUMNS).encode()).hexdigest()[:8]
    assert (ScoreTask.version, columns) == (4, "16d938bb"), "raise the version when the rows of a model change"


# ---- adding again


def test_adding_again_writes_nothing(atlas: attngeo.Atlas, models: list[Path]) -> None:
    atlas.add(models[:2], workers=0)
    paths = [path for path in atlas.path.rglob("*") if path.is_file()]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    assert atlas.add(models[:2] * 2, workers=2) == Added(scored=0, linked=0, known=2, failed=0)
    assert attngeo.Atlas(atlas.path).add(str(models[0])) == Added(scored=0, linked=0, known=1, failed=0)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    assert paths == [path for path in atlas.path.rglob("*") if path.is_file()]


def test_a_copy_is_linked_and_not_scored(
    atlas: attngeo.Atlas, models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atlas.add(models[:2], workers=0)
    copy = shutil.copytree(models[0], tmp_path / "renamed")
    monkeypatch.setattr("attngeo.atlas.task.score_rows", None)
    assert atlas.add(copy, workers=0) == Added(scored=0, linked=1, known=0, failed=0)
    of_copy, original = (atlas.frame().filter(model=str(path)) for path in (copy, models[0]))
    assert of_copy.drop("model").equals(original.drop("model")) and of_copy.height > 0
    status = atlas.status()
    assert (status.models, status.copies, status.parts) == (3, 1, 2)


def test_touched_files_are_read_again_and_give_no_second_row(atlas: attngeo.Atlas, models: list[Path]) -> None:
    atlas.add(models[0], workers=0)
    before = atlas.frame()
    os.utime(models[0] / "model.safetensors", (1, 1))
    assert atlas.add(models[0], workers=0) == Added(scored=0, linked=1, known=0, failed=0)
    assert atlas.frame().equals(before) and atlas.models().height == 1


def test_replaced_files_replace_their_rows(atlas: attngeo.Atlas, models: list[Path], tmp_path: Path) -> None:
    """Local rows have no commit: those of weights that are gone could not be told from the new ones."""
    folder = shutil.copytree(models[0], tmp_path / "run")
    atlas.add([folder, models[1]], workers=0)
    atlas.add(folder, workers=0, nulls=False)
    shutil.rmtree(folder)
    shutil.copytree(models[2], folder)
    assert atlas.add(folder, workers=0) == Added(scored=1, linked=0, known=0, failed=0)
    expected = attngeo.score(models[2], folded=True).frame
    found = atlas.frame().filter(model=str(folder), options="")
    assert found["symmetry"].to_list() == pytest.approx(expected["symmetry"].to_list(), abs=1e-12)
    assert atlas.models().select("model", "options").is_unique().all() and atlas.status().models == 3
    (folder / "model.safetensors").write_bytes(b"short")
    assert atlas.add(folder, workers=0).failed == 1
    assert atlas.frame().filter(model=str(folder), options="").equals(found)  # what cannot be scored replaces nothing


@pytest.mark.parametrize(
    ("change", "same"),
    [("k_proj", False), ("input_layernorm", False), ("heads", False), ("rope_theta", False), ("v_proj", True)],
)
def test_what_changes_the_rows_gives_another_part(
    atlas: attngeo.Atlas, tmp_path: Path, change: str, same: bool
) -> None:
    """The last bit of one entry of a key or a norm does, and so does the config; values are not read."""
    content = model_files("llama")
    data, config = bytearray(content["model.safetensors"]), dict(content["config.json"])  # type: ignore[arg-type]
    start = 8 + int.from_bytes(data[:8], "little")
    offsets = {name: entry["data_offsets"] for name, entry in json.loads(data[8:start]).items()}
    tensor = next((name for name in offsets if change in name), None)
    if tensor is not None:
        data[start + offsets[tensor][1] - 4] ^= 1
    elif change == "heads":
        config |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4}
    else:
        config[change] = 5000.0
    folder = write_files(tmp_path / "llama", content)
    changed = write_files(tmp_path / "changed", {"config.json": config, "model.safetensors": bytes(data)})
    added = atlas.add([folder, changed], workers=0)
    assert (added.scored, added.linked) == ((1, 1) if same else (2, 0))


# ---- failures


def test_failures_are_rows_until_they_are_tried_again(atlas: attngeo.Atlas, tmp_path: Path) -> None:
    broken, missing = tmp_path / "broken", tmp_path / "missing"
    write_files(broken, model_files("bert") | {"model.safetensors": b"nothing"})
    said: list[str] = []
    assert atlas.add([broken, missing], workers=2, say=said.append).failed == 2
    failures = atlas.failures()
    assert failures["model"].to_list() == [str(broken), str(missing)]
    assert failures["kind"].to_list() == ["SourceError", "SourceError"]
    assert sorted(said) == sorted(failures["message"]) and "no such folder" in failures["message"][1]

    write_files(broken, model_files("bert"))
    assert atlas.add([broken, missing], workers=0) == Added(scored=0, linked=0, known=0, failed=2)
    assert atlas.add([broken, missing], workers=0, retry=True) == Added(scored=1, linked=0, known=0, failed=1)
    assert atlas.failures()["model"].to_list() == [str(missing)]


def test_an_unexpected_error_is_a_failure_too(
    atlas: attngeo.Atlas, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def score_rows(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("attngeo.atlas.task.score_rows", score_rows)
    atlas.add(models[0], workers=0)
    assert atlas.failures().select("kind", "message").row(0) == ("MemoryError", "MemoryError")


# ---- bad input


def test_a_folder_that_is_no_atlas(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for path, error in ((tmp_path, "is not an atlas"), (tmp_path / "notes.txt", "is a file")):
        with pytest.raises(InputError, match=error):
            attngeo.Atlas(path)
    with pytest.raises(InputError, match="no such folder"):
        attngeo.Atlas(tmp_path / "none").frame()
    for manifest, error in (('{"kind": "atlas", "version": 2}', "version is 2, expected 1"), ("{", "damaged")):
        (tmp_path / MANIFEST).write_text(manifest)
        with pytest.raises(InputError, match=error):
            attngeo.Atlas(tmp_path)


def test_a_truncated_part_is_named_and_restored(atlas: attngeo.Atlas, models: list[Path]) -> None:
    atlas.add(models[:2], workers=0)
    before, part = atlas.frame(), atlas.path / "scores" / f"{atlas.models()['part'][0]}.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(InputError, match=f"{part.name}: is damaged or of another version; delete it"):
        atlas.frame()
    part.unlink()
    assert atlas.add(models[:2], workers=0).known == 1
    assert atlas.frame().equals(before)


@pytest.mark.parametrize(("option", "lowest"), [("num_heads", 1), ("workers", 0)])
def test_bad_options_are_errors_and_no_failures_of_the_models(atlas: attngeo.Atlas, option: str, lowest: int) -> None:
    with pytest.raises(InputError, match=f"{option} is {lowest - 1}, expected a whole number from {lowest} on"):
        atlas.add(attngeo.bundled("encoder"), **{option: lowest - 1})
    assert not atlas.path.exists()


def test_references() -> None:
    assert Reference.parse("org/name") == Reference("org/name", "main")
    assert Reference.parse("https://huggingface.co/org/name/tree/v1") == Reference("org/name", "v1")
    assert Reference.parse("./missing").revision is None
    for bad in ("", "two words", "org/name@"):
        with pytest.raises(InputError):
            Reference.parse(bad)


def test_a_list_names_its_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "models.txt"
    path.write_text("# encoders\n\norg/name  # the first\norg/other@v1\n")
    assert read_list(path) == ["org/name", "org/other@v1"]
    path.write_text("org/name\n\nnot a model\n")
    with pytest.raises(InputError, match=r"models\.txt: line 3: 'not a model'"):
        read_list(path)
    path.write_text("\n# nothing\n")
    with pytest.raises(InputError, match="no references"):
        read_list(path)
