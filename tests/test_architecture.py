"""The walks in docs/architecture.md are those of the running code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()

# Traced in one fresh process, because what an earlier test imported or cached would be missing from the trace.
CODE = """
import json, sys, tempfile
from pathlib import Path
from tools.walks import WALKS, trace
found = {}
for name, walk in WALKS.items():
    with tempfile.TemporaryDirectory() as folder:
        found[name] = trace(lambda: walk(Path(folder)))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    pytest.importorskip("transformers")
    home = str(tmp_path_factory.mktemp("home"))
    environment = {"ATTNGEO_CACHE": home, "HOME": home, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    walks: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return walks


def documented(name: str) -> list[str]:
    """Return the modules of one walk, in the order of the page."""
    section = re.search(rf"^### `attngeo[ .]{name}`\n(.*?)(?=^##)", PAGE, re.M | re.S)
    assert section, f"docs/architecture.md has no walk for {name}"
    rows = [line.split("|")[2] for line in section[1].splitlines() if line.startswith("| ") and "`" in line]
    return [module for row in rows for module in re.findall(r"`([\w.]+)`", row)]


@pytest.mark.parametrize("name", ["score", "organize", "prune", "compare", "pretrain", "gradient_terms", "Monitor"])
def test_each_walk_names_the_modules_that_run(name: str, traced: dict[str, list[str]]) -> None:
    page = documented(name)
    # The kernels depend on whether numba is installed.
    kernels = [module for module in traced[name] if module.startswith("organization.kernels.") and module not in page]
    assert sorted(page) == sorted(set(traced[name]) - set(kernels))


def test_modules_to_look_up_exist() -> None:
    table = PAGE.split("## Where to find it")[1].split("##")[0]
    modules = re.findall(r"`([\w/]+\.py)`", table)
    assert len(modules) >= 10
    assert [module for module in modules if not (ROOT / "src" / "attngeo" / module).is_file()] == []
