"""The parts of the pruning experiment, and that its pages show what the logs hold."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from attngeo.applications.prune.plan import METHOD
from experiments.pruning.__main__ import main
from experiments.pruning.page import with_tables
from experiments.pruning.reactions import reactions
from experiments.pruning.records import Record, Series, ratio, read_records
from experiments.pruning.run import Settings, run
from experiments.pruning.smiles_tokenizer import smiles_tokenizer
from experiments.pruning.subjects import subjects
from experiments.pruning.table import RULE, tables

ROOT = Path(__file__).parents[3]
PAGES, LOGS = (ROOT / "docs/pruning.md", ROOT / "experiments/pruning/RESULTS.md"), ROOT / "results/pruning"


def test_reaction_strings_are_in_the_vocabulary(rxnfp: Path) -> None:
    texts = reactions(200, seed=0)
    assert len(set(texts)) == 200
    assert set(texts) != set(reactions(200, seed=1))
    assert not set(texts) & set(reactions(200, seed=0, evaluation=True))
    vocabulary = rxnfp / "bert_pretrained" / "vocab.txt"
    whole = smiles_tokenizer(vocabulary, whole_atoms=True)
    for text in texts:
        ids = whole(text)["input_ids"]
        assert whole.unk_token_id not in ids
        assert "".join(whole.convert_ids_to_tokens(ids[1:-1])) == text
    split = smiles_tokenizer(vocabulary)
    tokens = split.convert_ids_to_tokens(split("[Na+]Br>>C[nH]")["input_ids"])
    unknown = "[UNK]"
    assert tokens == ["[CLS]", *[unknown] * 4, "Br", *[unknown] * 2, "C", *[unknown] * 3, "[SEP]"]


@pytest.mark.slow
def test_the_pretrained_model_knows_the_reactions(rxnfp: Path, tmp_path: Path) -> None:
    subject = subjects(rxnfp.parents[2], tmp_path)["rxnfp"]
    (full, *_) = run(subject, Settings(evaluation_tokens=1024, methods=("random",), shares=(0.3,)))
    assert np.mean(full["losses"]) < 0.05


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two texts of numbered lines."""
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("english-train", "english-valid"):
        lines = [f"{name} line {number} says that there are {number} words in the text." for number in range(60_000)]
        with lzma.open(folder / f"{name}.txt.xz", "wt") as file:
            file.write("\n".join(lines))
    return folder


def test_draws_have_no_passage_in_common(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.pruning.subjects.CALIBRATION", (0, 2_000_000))
    monkeypatch.setattr("experiments.pruning.subjects.DEVELOPMENT", (2_000_000, 4_000_000))
    own = subjects(Path("models"), corpus)["decoder"]
    texts = [own.calibration(0, 2048)[0], own.calibration(1, 2048)[0], own.evaluation("development", 2048)[0]]
    texts.append(own.evaluation("fresh", 2048)[0])
    lines = [{line for line in text.splitlines() if line.endswith("text.")} for text in texts]
    assert all(len(found) > 50 for found in lines)
    assert [len(a & b) for i, a in enumerate(lines) for b in lines[:i]] == [0] * 6


def test_a_run_is_resumed(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.pruning.subjects.CALIBRATION", (0, 2_000_000))
    subject = subjects(Path("models"), corpus)["decoder"]
    settings = Settings("fresh", 1024, 1024, shares=(0.25,), methods=("error", "sensitivity"))
    records = list(run(subject, settings))
    assert [one["method"] for one in records] == ["full", "calibration", *["error"] * 2, *["sensitivity"] * 2]
    assert {one["heads"] for one in records[2:]} == {4}
    assert all(np.mean(one["losses"]) > np.mean(records[0]["losses"]) for one in records[2:])
    again = list(run(subject, settings, records[:-1]))
    assert [one["method"] for one in again] == ["calibration", "sensitivity"]
    assert again[-1]["losses"] == records[-1]["losses"]
    assert list(run(subject, settings, records)) == []


def made_records() -> list[Record]:
    common = {"subject": "decoder", "split": "fresh", "evaluation_tokens": 3}
    own = common | {"tokens": 8192, "unit": "query", "share": 0.3, "seed": 0, "draw": 0}
    records: list[Record] = [common | {"method": "full", "losses": [1.0, 2, 3]}]
    for refit in (False, True):
        records += [own | {"method": one, "losses": [2.0, 3, 4], "refit": refit} for one in ("random", "gradient")]
        records += [own | {"method": RULE, "losses": [1.5, 2.5, 3.5], "refit": refit}]
        records += [own | {"method": RULE, "losses": [1.7, 2.7, 3.7], "refit": refit, "draw": 1}]
    return [one | {"seconds": 1.0} for one in records]


def test_tables_of_records() -> None:
    records = made_records()
    found = Series("decoder").increases(records, RULE, 0.3, True)
    np.testing.assert_allclose(found[3], 0.6)
    assert str(ratio(found, {3: np.ones(3)})) == "60% [60, 60]"
    assert ratio(found, {4: np.ones(4)}) is None and ratio(found, {3: np.array([-1.0, 0, 1])}) is None
    made = tables(records)
    assert f"| {RULE} | 0.600 / 0.600 |" in made["losses, decoder"]
    assert "| bundled decoder | 60% [60, 60] | 60% [60, 60] | 60% [60, 60] | 60% [60, 60] |" in made["targets"]
    assert "losses, rxnfp" not in made and "groups" not in made


def test_every_table_of_the_pages_is_made_from_the_logs() -> None:
    records = read_records([LOGS])
    shown = ""
    for path in PAGES:
        page = path.read_text("utf-8")
        assert with_tables(page, records) == page
        shown += page
    assert all(f"<!-- table: {name} -->" in shown for name in tables(records))


def test_the_default_that_the_page_describes_is_the_one_that_the_rule_chose() -> None:
    records = read_records([LOGS])
    assert [one["default"] for one in records if one["method"] == "choice"] == [RULE] == [METHOD]
    assert "| all five | 0.97 | 0.95 | refit |" in tables(records)["influence"]


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    main(["figure", str(tmp_path / "figure.png"), str(LOGS)])
    assert (tmp_path / "figure.png").stat().st_size > 20_000
