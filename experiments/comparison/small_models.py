"""Train small encoders (BERT, LayerNorm) and decoders (LLaMA, RMSNorm) on a CPU and save them at chosen steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attngeo.training.data.masking import MaskedObjective
from attngeo.training.data.tokens import Tokens

KINDS = ("bert", "llama")
LAYERS, WIDTH, HEADS, LENGTH, ROWS = 2, 64, 4, 64, 16


def new_model(kind: str, vocabulary: int, seed: int) -> Any:
    """Return an untrained model; `seed` draws its initial values."""
    import transformers

    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH,
        "max_position_embeddings": LENGTH,
        "vocab_size": vocabulary,
    }
    if kind == "bert":
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return transformers.BertForMaskedLM(transformers.BertConfig(**shape, **dropout))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_key_value_heads=HEADS // 2))


def train_model(
    model: Any, tokens: Tokens, steps: Sequence[int], *, order: int, lr: float = 1e-3, warmup: int = 20
) -> Iterator[int]:
    """Train `model` in place and yield at each of `steps`, which ascend; the caller saves what it wants to keep.

    order: seed of the order of the rows and of the masks
    """
    ids = torch.from_numpy(np.asarray(tokens.array("train")).astype(np.int64))
    rows = ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)  # [rows, LENGTH]
    masked = "Masked" in type(model).__name__
    objective = MaskedObjective(tokens.mask, tokens.special, tokens.vocabulary, 0.15)
    generator = torch.Generator().manual_seed(order)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for step in range(steps[-1] + 1):
        if step in steps:
            yield step
        batch = rows[torch.randint(len(rows), (ROWS,), generator=generator)]  # [ROWS, LENGTH]
        if masked:
            seen, positions, targets = (part[0] for part in objective.prepare(batch[None], generator))
            logits = model(input_ids=seen).logits.gather(  # [ROWS, n, vocabulary]
                1, positions[..., None].expand(-1, -1, tokens.vocabulary)
            )
        else:
            logits, targets = model(input_ids=batch).logits[:, :-1], batch[:, 1:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / warmup)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def trained_models(folder: Path, kind: str, tokens: Tokens, seeds: Sequence[int], steps: int) -> list[Path]:
    """Return the folders of models trained from different initial values on the same rows in the same order.

    Models that are there already are not trained again.
    """
    paths = [folder / f"{kind}-{steps}-seed{seed}" for seed in seeds]
    for path, seed in zip(paths, seeds, strict=True):
        if not (path / "config.json").is_file():
            model = new_model(kind, tokens.vocabulary, seed)
            for _ in train_model(model, tokens, [steps], order=0):
                model.save_pretrained(path)
    return paths
