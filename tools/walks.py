"""Trace which modules the main commands and functions pass through, for docs/architecture.md.

    python -m tools.walks [score organize prune compare pretrain gradient_terms Monitor]

Prints, for each walk, the modules of attngeo whose functions run, in the order in which they are first entered.
`errors`, `io`, `arrays` and `display` serve every room and are left out. tests/test_architecture.py compares the page
with these traces.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from attngeo.bundled import bundled

_EVERYWHERE = ("attngeo.errors", "attngeo.arguments", "attngeo.io", "attngeo.arrays", "attngeo.display")
_ENCODER, _DECODER = str(bundled("encoder")), str(bundled("decoder"))
_TEXT = "It is a truth universally acknowledged"


def trace(action: Callable[[], object]) -> list[str]:
    """Return the modules of attngeo that `action` enters, without the prefix `attngeo.`, in order of first entry."""
    modules: dict[str, None] = {}

    def record(frame: FrameType, event: str, _: Any) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        if event == "call" and name.startswith("attngeo.") and name not in modules and not _importing(frame):
            modules[name] = None

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [name.removeprefix("attngeo.") for name in modules if not name.startswith(_EVERYWHERE)]


def _importing(frame: FrameType | None) -> bool:
    """Tell whether the call is part of importing a module, which is not a step of the walk."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap" or frame.f_code.co_name == "__getattr__":
            return True
        frame = frame.f_back
    return False


def _command(*arguments: str) -> None:
    from typer.testing import CliRunner

    from attngeo.cli import app

    result = CliRunner().invoke(app, list(arguments))
    if result.exit_code:
        raise SystemExit(f"attngeo {' '.join(arguments)}: {result.output}")


def _score(_: Path) -> None:
    _command("score", _ENCODER)


def _organize(folder: Path) -> None:
    _command("organize", _ENCODER, "--text", _TEXT, "--out", str(folder / "organization"))


def _pretrain(folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text((_TEXT + "\n\n") * 400)
    config = folder / "config.toml"
    config.write_text(
        f'out = "{folder / "run"}"\ntrain = ["{text}"]\nvocab = 300\nsize = "2x32"\nheads = 2\nlength = 32\nbatch = 8\n'
        'steps = 4\nwarmup = 1\nevaluations = 2\nstart = "symmetric"\nscale = "unit"\n'
    )
    _command("pretrain", str(config))


def _prune(folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text(f"{_TEXT}, that a single man in possession of a good fortune must be in want of a wife. " * 12)
    _command("prune", _DECODER, "--text-file", str(text), "--heads", "2", "--out", str(folder / "pruned"))


def _compare(folder: Path) -> None:
    _command("compare", _ENCODER, _DECODER, "--draws", "99", "--figure", str(folder / "figure.png"))


def _model_and_batch() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(_ENCODER)
    tokens = torch.arange(5, 25).reshape(2, 10)
    return model, {"input_ids": tokens, "labels": tokens}


def _gradient_terms(_: Path) -> None:
    import attngeo

    attngeo.gradient_terms(*_model_and_batch())


def _monitor(folder: Path) -> None:
    import attngeo

    model, batch = _model_and_batch()
    attngeo.Monitor(folder / "attngeo.jsonl", every=1)(1, model, batch)


WALKS: dict[str, Callable[[Path], None]] = {
    "score": _score,
    "organize": _organize,
    "prune": _prune,
    "compare": _compare,
    "pretrain": _pretrain,
    "gradient_terms": _gradient_terms,
    "Monitor": _monitor,
}


def main(names: list[str]) -> None:
    for name in names or WALKS:
        with tempfile.TemporaryDirectory() as folder:
            walk = partial(WALKS[name], Path(folder))
            print(f"{name}: {' → '.join(trace(walk))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
