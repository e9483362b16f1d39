"""Train with trl's SFTTrainer, report to trackio on disk, and print what trackio has: run in a process of its own.

trackio reads its folder from the environment when it is imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from trackio.sqlite_storage import SQLiteStorage
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import attngeo
from tests.weights.tiny_models import llama


def tokenizer() -> Any:
    """Return a tokenizer of 60 words, "w0" to "w56" and three special ones."""
    words = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(57))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    texts = [" ".join(f"w{(5 * i + 3 * j) % 57}" for j in range(12)) for i in range(16)]
    arguments = SFTConfig(
        str(folder), max_steps=4, per_device_train_batch_size=2, logging_steps=2, report_to=["trackio"], use_cpu=True,
        project="attngeo", run_name="tiny", save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        max_length=16, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    data = Dataset.from_dict({"text": texts})
    trainer = SFTTrainer(llama(), arguments, train_dataset=data, processing_class=tokenizer())
    attngeo.watch(trainer, every=100)
    monitor = attngeo.watch(trainer, every=1)
    trainer.train()
    logs = SQLiteStorage.get_logs("attngeo", "tiny")
    print(json.dumps({"records": monitor.records, "logs": logs}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
