"""Print how alike the paired terms β_ij and β_ji of the bundled encoder are, on average over masks.

    python -m tools.mask_pairing TEXT … [--masks 64] [--rows 8]

The rows are the first ones of the text that fill 128 tokens. The same is printed for a model with random weights.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM

import attngeo
from attngeo.training.data.corpus import documents

LENGTH = 128
FIGURES = ("pairing", "pairing_split", "pairing_shuffled", "symmetry_split", "symmetry_shuffled")


def first_rows(texts: list[str], tokenizer: AutoTokenizer, count: int) -> torch.Tensor:
    """Return the ids of the first documents that fill a row, `[count, 128]`."""
    rows: list[list[int]] = []
    for text in documents(texts):
        ids = tokenizer(text, truncation=True, max_length=LENGTH)["input_ids"]
        rows += [ids] if len(ids) == LENGTH else []
        if len(rows) == count:
            break
    return torch.tensor(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="+")
    parser.add_argument("--masks", type=int, default=64)
    parser.add_argument("--rows", type=int, default=8)
    options = parser.parse_args()
    folder = attngeo.bundled("encoder")
    trained, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = {"input_ids": first_rows(options.text, tokenizer, options.rows)}
    torch.manual_seed(0)
    for name, model in (("trained", trained), ("random", BertForMaskedLM(trained.config))):
        terms = attngeo.gradient_terms(model, batch, masks=options.masks, tokenizer=tokenizer)
        for layer in sorted({row.layer for row in terms.scores}):
            print(f"{name}, layer {layer}")
            for figure in FIGURES:
                values = (getattr(row, figure) for row in terms.scores if row.layer == layer)
                print(f"    {figure:18s}", *(" none" if value is None else f"{value:6.3f}" for value in values))


if __name__ == "__main__":
    main()
