"""The harness against transformers' Trainer in the same call, on a GPU: `python bench/trainer_gpu.py TOKENS [FOLDER]`.

Both train the same BERT shape on the same number of rows in bf16 with fused AdamW, SDPA and torch.compile; the
Trainer's batches lie masked in memory, so that it waits for no data. Steps a second once everything is compiled.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

TARGETS = {"4x256": 3.0, "12x768": 1.3}
STEPS = {"4x256": (60, 240), "12x768": (20, 60)}  # of the Trainer: not timed, timed


class Ready(torch.utils.data.Dataset):
    """Masked rows in memory, taken a batch at a time."""

    def __init__(self, batches: list[dict[str, torch.Tensor]]) -> None:
        self.batches = batches
        self.rows = len(batches[0]["input_ids"])

    def __len__(self) -> int:
        return max(map(sum, STEPS.values())) * self.rows  # no run is longer; the sampler makes a list of them all

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        return self.batches[indices[0] % len(self.batches)]


def trainer_rate(size: str, tokens: Path) -> float:
    from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

    from attngeo.dynamics.data.tokens import open_tokens
    from attngeo.dynamics.pretraining.batches import Batches, Rows
    from attngeo.dynamics.pretraining.pretrain import objective_of
    from experiments.initialisation.grid import Cell

    opened = open_tokens(tokens)
    config = Cell("baseline", 5e-4, 0, 9_500, size).config("", str(tokens))
    layers, hidden, heads = config.shape
    rows = Rows(opened, "train", config.length, torch.device("cpu"), config.batch)
    stream = Batches(rows, objective_of(config, opened), batch=config.batch, seed=0)
    batches = []
    for step in range(16):
        one = stream.at(step)
        labels = torch.full((config.batch * config.length,), -100)
        labels[one.at] = one.targets
        ids = one.ids.clone()
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
    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **other: Any) -> None:
            if state.global_step >= before and (state.global_step - before) % (timed // 4) == 0:
                torch.cuda.synchronize()
                marks.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=config.batch, max_steps=before + timed, bf16=True,
            optim="adamw_torch_fused", torch_compile=True, learning_rate=config.lr, weight_decay=config.weight_decay,
            warmup_steps=config.warmup, logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
            remove_unused_columns=False,  # the collator is given whole batches
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=Ready(batches), data_collator=lambda batch: batch,
                callbacks=[Clock()]).train()  # fmt: skip
    return statistics.median((timed // 4) / (b - a) for a, b in pairwise(marks))


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU here: nothing measured")
        return 0
    import transformers

    from bench.pretraining_gpu import measure
    from experiments.initialisation.packed_tokens import unpacked

    tokens = unpacked(Path(sys.argv[1]))
    facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "transformers": transformers.__version__}
    report: dict[str, Any] = dict(facts)
    met = True
    for size, target in TARGETS.items():
        ours = measure(tokens, [size], ["masked"], 200 if size == "4x256" else 40, False, print)[0]["steps_per_second"]
        theirs = trainer_rate(size, tokens)
        report[size] = {"steps/s": ours, "Trainer steps/s": theirs, "ratio": ours / theirs, "target": target}
        met = met and ours / theirs >= target
        print(size, json.dumps(report[size]), flush=True)
        if len(sys.argv) > 2:
            Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
            (Path(sys.argv[2]) / "trainer_gpu.json").write_text(json.dumps(report, indent=1))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
