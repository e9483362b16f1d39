"""Train the bundled encoder and decoder, and put them where the package ships them.

    python -m tools.train_pair TOKENS [INTO]

TOKENS is a folder of prepared token files (`python -m experiments.initialisation.run prepare`), the same for both. INTO,
by default the package's own folder, gets for each model its weights in bfloat16, config, tokenizer and training.jsonl:
the scores of every layer and head at 13 moments of training.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from attngeo.dynamics.pretraining.config import load_config
from attngeo.dynamics.pretraining.pretrain import pretrain
from experiments.initialisation.packed_tokens import unpacked

HOME = Path(__file__).parents[1] / "src" / "attngeo" / "bundled"
# What the demo shows of a run; the rest of its records says how fast some machine was.
SHOWN = ("step", "eval_loss", "symmetry", "directionality", "head_symmetry", "head_directionality", "max_logit")


def train(name: str, tokens: Path, into: Path) -> None:
    config = replace(load_config(HOME / name / "pretrain.toml"), out=str(into / "runs" / name), tokens=str(tokens))
    began = time.perf_counter()
    run = pretrain(config)
    last = run.records[-1]
    print(f"{name}: loss {run.loss:.4f}, {time.perf_counter() - began:.0f} s, symmetry {last['symmetry']}, "
          f"directionality {last['directionality']}", flush=True)  # fmt: skip
    made, home = run.folder / "model", into / name
    home.mkdir(parents=True, exist_ok=True)
    weights = {key: value.to(torch.bfloat16) for key, value in load_file(made / "model.safetensors").items()}
    save_file(weights, home / "model.safetensors", {"format": "pt"})
    facts = json.loads((made / "config.json").read_text()) | {"dtype": "bfloat16"}
    (home / "config.json").write_text(json.dumps(facts, indent=1) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(made / file, home / file)
    rows = [json.dumps({key: row[key] for key in SHOWN}) for row in run.records]
    (home / "training.jsonl").write_text("\n".join(rows) + "\n")


def main() -> None:
    tokens = unpacked(Path(sys.argv[1]))
    into = Path(sys.argv[2]) if len(sys.argv) > 2 else HOME
    for name in ("encoder", "decoder"):
        train(name, tokens, into)


if __name__ == "__main__":
    main()
