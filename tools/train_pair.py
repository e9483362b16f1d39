"""Train the bundled encoder and decoder and write them to the folder from which the package ships them.

    python -m tools.train_pair TOKENS [INTO]

TOKENS is a folder of token files (`python -m experiments.initialisation prepare`), the same for both models. INTO, by
default the folder of the package, receives for each model its weights, rounded to bfloat16 for size, its config, with
which `from_pretrained` computes in float32, its tokenizer and training.jsonl: the scores of every layer and head at 13
evaluations.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from attngeo.io.files import write_file
from attngeo.training.pretraining.config import load_config
from attngeo.training.pretraining.pretrain import pretrain
from experiments.initialisation.text.packed_tokens import unpacked

BUNDLED = Path(__file__).parents[1] / "src" / "attngeo" / "bundled"
# The keys of a record that the demo shows; the others, such as steps per second, depend on the machine.
KEYS = ("step", "eval_loss", "symmetry", "directionality", "head_symmetry", "head_directionality", "max_logit")


def train(name: str, tokens: Path, into: Path) -> None:
    """Train the model `name`, "encoder" or "decoder", and write its files to `into`/`name`."""
    config = replace(load_config(BUNDLED / name / "pretrain.toml"), out=str(into / "runs" / name), tokens=str(tokens))
    began = time.perf_counter()
    run = pretrain(config)
    last = run.records[-1]
    print(f"{name}: loss {run.loss:.4f}, {time.perf_counter() - began:.0f} s, symmetry {last['symmetry']}, "
          f"directionality {last['directionality']}", flush=True)  # fmt: skip
    trained, folder = run.folder / "model", into / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.to(torch.bfloat16) for key, value in load_file(trained / "model.safetensors").items()}
    write_file(folder / "model.safetensors", save(weights, {"format": "pt"}))
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        write_file(folder / file, (trained / file).read_bytes())
    rows = [json.dumps({key: record[key] for key in KEYS}) for record in run.records]
    write_file(folder / "training.jsonl", ("\n".join(rows) + "\n").encode())


def main() -> None:
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: python -m tools.train_pair TOKENS [INTO]")
    tokens = unpacked(Path(sys.argv[1]))
    into = Path(sys.argv[2]) if len(sys.argv) > 2 else BUNDLED
    for name in ("encoder", "decoder"):
        train(name, tokens, into)


if __name__ == "__main__":
    main()
