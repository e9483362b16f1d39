"""The parts of the pruning experiment: reaction strings, sentence similarities, tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from experiments.pruning.measures import disagreement
from experiments.pruning.reactions import reactions, smiles_tokenizer
from experiments.pruning.table import increases, markdown, ratio_interval, targets


def test_reaction_strings_are_in_the_vocabulary(rxnfp: Path) -> None:
    texts = reactions(200, seed=0)
    assert len(set(texts)) > 150
    assert set(texts) != set(reactions(200, seed=1))
    tokenizer = smiles_tokenizer(rxnfp / "bert_pretrained" / "vocab.txt")
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert "".join(tokenizer.convert_ids_to_tokens(ids[1:-1])) == text


def test_disagreement_of_similarities() -> None:
    generator = np.random.default_rng(0)
    one, other = generator.normal(size=(2, 64, 8))
    np.testing.assert_allclose(disagreement(one, one, blocks=4), 0, atol=1e-12)
    assert disagreement(one, 3 * one, blocks=4).max() < 1e-12
    assert abs(disagreement(one, other, blocks=4).mean() - 1) < 0.3


def test_tables() -> None:
    def record(method: str, losses: list[float], refit: bool | None = None, draw: int = 0) -> dict[str, object]:
        return {"subject": "s", "draw": draw, "method": method, "losses": losses, "refit": refit, "share": 0.31}

    records = [record("full", [1.0, 2, 3]), record("full", [1.0, 2, 3], draw=1)]
    for refit in (False, True):
        records += [record("random", [2.0, 3, 4], refit), record("gradient", [2.0, 3, 4], refit)]
        records += [record("rule", [1.5, 2.5, 3.5], refit), record("rule", [1.7, 2.7, 3.7], refit, draw=1)]
    np.testing.assert_allclose(increases(records, "rule", 0.3, True), 0.6)
    assert ratio_interval(np.full(3, 0.6), np.full(3, 1.0)) == pytest.approx((0.6, 0.6, 0.6))
    assert "| rule | 0.600 / 0.600 |" in markdown(records, [0.3])
    assert "| s | gradient, without refit | 60% | 60% to 60% |" in targets(records, "rule")
