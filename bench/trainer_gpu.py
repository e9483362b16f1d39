"""Compare the speed of the pre-training loop with transformers' Trainer in one call, on a GPU.

    python -m bench.trainer_gpu TOKENS [FOLDER]

Both train the same BERT shape on the same number of rows per step in bf16, with fused AdamW, SDPA and torch.compile.
The Trainer's batches are masked beforehand and kept in memory, so that it never waits for data. Steps per second are
counted after compilation. FOLDER, if given, receives trainer_gpu.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

TARGETS = {"4x256": 3.0, "12x768": 1.3}  # least ratio of the two speeds
STEPS = {"4x256": (60, 240), "12x768": (20, 60)}  # of the Trainer: before timing, timed


class PreparedBatches(torch.utils.data.Dataset):
    """Masked rows in memory, taken one batch at a time."""

    def __init__(self, batches: list[dict[str, torch.Tensor]]) -> None:
        self.batches = batches
        self.rows = len(batches[0]["input_ids"])

    def __len__(self) -> int:
        return max(map(sum, STEPS.values())) * self.rows  # no more than the runs need: the sampler lists them all

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        return self.batches[indices[0] % len(self.batches)]


def trainer_rate(size: str, tokens: Path) -> float:
    """Return the Trainer's steps per second: the median of four stretches."""
    from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

    from attngeo.training.data.tokens import open_tokens
    from attngeo.training.pretraining.batches import Batches, Rows
    from attngeo.training.pretraining.pretrain import build_objective
    from experiments.initialisation.grid import Cell

    opened = open_tokens(tokens)
    config = Cell("baseline", 5e-4, 0, 9_500, size).config("", str(tokens))
    layers, hidden, heads = config.shape
    rows = Rows(opened, "train", config.length, torch.device("cpu"), config.batch)
    stream = Batches(rows, build_objective(config, opened), batch=config.batch, seed=0)
    batches = []
    for step in range(16):
        batch = stream.at(step)
        labels = torch.full((config.batch * config.length,), -100)  # [rows·length]
        labels[batch.positions] = batch.targets
        ids = batch.ids.clone()  # [rows, length]
        mask = torch.ones_like(ids)
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": labels.view(config.batch, config.length)})
    shape = BertConfig(
        vocab_size=opened.vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=config.length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    model = BertForMaskedLM(shape)
    before, timed = STEPS[size]
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **other: Any) -> None:
            if state.global_step >= before and (state.global_step - before) % (timed // 4) == 0:
                torch.cuda.synchronize()
                times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=config.batch, max_steps=before + timed, bf16=True,
            optim="adamw_torch_fused", torch_compile=True, learning_rate=config.lr, weight_decay=config.weight_decay,
            warmup_steps=config.warmup, logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
            remove_unused_columns=False,  # the collator receives whole batches
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=PreparedBatches(batches), data_collator=lambda batch: batch,
                callbacks=[Clock()]).train()  # fmt: skip
    return statistics.median((timed // 4) / (b - a) for a, b in pairwise(times))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer_gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("tokens", type=Path, nargs="?", metavar="TOKENS")
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: nothing measured")
        return 0
    if options.tokens is None:  # called by `python -m bench`
        print("no TOKENS given: nothing measured")
        return 0
    import transformers

    from attngeo.io.files import write_file
    from experiments.initialisation.speed import measure
    from experiments.initialisation.text.packed_tokens import unpacked

    tokens = unpacked(options.tokens)
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    met = True
    for size, target in TARGETS.items():
        steps = 200 if size == "4x256" else 40
        ours = measure(tokens, "bert", size, steps, print)["steps_per_second"]
        theirs = trainer_rate(size, tokens)
        report[size] = {"steps/s": ours, "Trainer steps/s": theirs, "ratio": ours / theirs, "target": target}
        met = met and ours / theirs >= target
        print(size, json.dumps(report[size]), flush=True)
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
            write_file(options.folder / "trainer_gpu.json", json.dumps(report, indent=1).encode())
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
