"""Packed token files are small and are decompressed into the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attngeo.training.data.tokens import open_tokens, prepare_tokens
from experiments.initialisation.text.packed_tokens import pack, unpacked
from tests.experiments.initialisation.small_grids import prepare_small_tokens
from tests.training.small_runs import write_corpus


def test_packed_tokens_are_unpacked_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = open_tokens(prepare_small_tokens(tmp_path))
    small = tmp_path / "packed"
    assert pack(tokens, small) < tokens.train * 2 + tokens.valid * 2 + 60_000
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "cache"))
    again = open_tokens(unpacked(small))
    assert again.digest == tokens.digest
    assert np.array_equal(again.array("train"), tokens.array("train"))
    assert Path(again.folder).is_relative_to(tmp_path / "cache")
    assert unpacked(Path(tokens.folder)) == Path(tokens.folder)
    other = prepare_tokens(tmp_path / "other", [write_corpus(tmp_path, "other.txt", seed=5)], vocabulary=300)
    pack(other, tmp_path / "packed other")
    assert open_tokens(unpacked(tmp_path / "packed other")).digest == other.digest
    assert np.array_equal(again.array("train"), tokens.array("train"))  # the first tokens are not overwritten
