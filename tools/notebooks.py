"""Run the notebooks of docs/notebooks and write them with their outputs.

    python -m tools.notebooks [NAME ...]

Pictures are reduced to 128 colours, so that a notebook stays small. `tests/test_notebooks.py` runs them again and
compares what they print.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"
SECONDS = 300  # that one cell may take


def run(path: Path, folder: Path) -> Any:
    """Return the notebook with fresh outputs; it runs in `folder`."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def tidy(notebook: Any) -> Any:
    """Drop what changes from run to run and is not shown, and reduce the colours of pictures."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.outputs = joined([output for output in cell.outputs if is_result(output)])
        for output in cell.outputs:
            output.pop("metadata", None) if output.output_type == "stream" else output.update(metadata={})
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = reduced(output.data["image/png"])
    return notebook


def joined(outputs: list[Any]) -> list[Any]:
    """Return outputs with what is printed in several pieces as one: where a kernel cuts it depends on the machine."""
    out: list[Any] = []
    for output in outputs:
        if out and output.output_type == out[-1].output_type == "stream":
            out[-1].text += output.text
        else:
            out.append(output)
    return out


def is_result(output: Any) -> bool:
    """Return whether an output is more than a progress bar or a message on stderr."""
    return output.get("name") != "stderr" and "application/vnd.jupyter.widget-view+json" not in output.get("data", {})


def reduced(picture: str) -> str:
    """Return a PNG, as base64, with 128 colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize(128)
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def printed(cell: Any) -> str:
    """Return what a cell prints or returns as text."""
    outputs = filter(is_result, cell.get("outputs", ()))
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    # A kernel may send what one cell prints in several pieces.
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in texts if not text.startswith("<Figure"))


def main(arguments: Sequence[str]) -> None:
    """Run notebooks in an empty folder and write them with their outputs."""
    import tempfile

    paths = [FOLDER / f"{name}.ipynb" for name in arguments] or sorted(FOLDER.glob("*.ipynb"))
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(tidy(run(path, Path(folder))), path)  # type: ignore[no-untyped-call]
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
