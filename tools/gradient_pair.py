"""Train a small encoder and a small decoder of one shape on the same rows, and score the updates of their forms.

At each evaluation, one backward pass on the same 32 held-out rows gives the rank-1 terms of each head of both models.
The initial and the final weights are also run on 512 rows of the training text. The tool prints both tables (medians
over heads) and writes `gradients.json`, `gradients.png` (the trained pair on the 512 rows) and `gradients_training.png`
(over training).

    python -m tools.gradient_pair TEXT … [--valid TEXT] [--out out/gradients] [--steps 2000]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import AutoTokenizer

from attngeo.charts import BLUE, GREY, ORANGE
from attngeo.io.files import write_file
from attngeo.show.gradients import gradient_figure
from attngeo.show.matplotlib import new_figure, panel_title, save_figure, style_axes
from attngeo.training.data.tokens import Part, Tokens
from attngeo.training.gradients.gradient_terms import gradient_terms
from attngeo.training.gradients.terms import GradientTerms, HeadTerms
from attngeo.training.pretraining.batches import Batch, Rows, held_out_batches
from attngeo.training.pretraining.build import build_model, build_objective
from attngeo.training.pretraining.checkpoint import load_checkpoint
from attngeo.training.pretraining.config import PretrainConfig, load_config
from attngeo.training.pretraining.engine import process_group
from attngeo.training.pretraining.pretrain import pretrain, tokens_for
from attngeo.weights.scoring.form import Form
from experiments.updates.measure import transformers_model

Row = dict[str, Any]  # the scores of one head, by name

HELD_OUT_ROWS = 32  # at each evaluation
TRAINING_ROWS = 512  # before and after training
COLOURS = {"masked": BLUE, "causal": ORANGE}
NAMES = {"masked": "encoder, masked", "causal": "decoder, causal"}
# Score → title and vertical axis
PANELS = {
    "symmetry": ("update", "symmetry of the update"),
    "pairing": ("pairing of terms", "Σ β_ij β_ji / Σ β_ij², i ≠ j"),
    "column_over_row": ("norms of the update", "column spread / row spread"),
    "form": ("form M", "symmetry of M"),
}


def config_of(args: argparse.Namespace, objective: str) -> PretrainConfig:
    """Return the pre-training config of the encoder (masked) or of the decoder (causal)."""
    return load_config(
        {
            "out": str(Path(args.out) / objective),
            "train": list(args.text),
            "valid": list(args.valid),
            "objective": objective,
            "size": "4x64",
            "heads": 4,
            "vocab": 2048,
            "length": 64,
            "batch": 16,
            "steps": args.steps,
            "lr": 2e-3,
            "warmup": 100,
            "evaluations": 10,
            "checkpoints": 10,
            "precision": "fp32",
        }
    )


def model_arguments(batch: Batch, causal: bool) -> dict[str, Tensor]:
    """Return the ids and labels of a batch as a transformers model takes them."""
    if causal:
        return {"input_ids": batch.ids, "labels": batch.ids}
    labels = torch.full_like(batch.ids, -100).flatten()
    labels[batch.positions] = batch.targets
    return {"input_ids": batch.ids, "labels": labels.view(batch.ids.shape)}


def shuffled_symmetry(head: HeadTerms, generator: np.random.Generator) -> float:
    """Return the symmetry of the update in the shuffled-β control.

    The coefficients of each predicted token are shuffled among its context; x and the rows of β otherwise stay.
    """
    beta = head.beta.copy()  # [S, N, N]
    is_causal = not np.triu(beta, 1).any()
    allowed = np.tri(beta.shape[1], dtype=bool) if is_causal else np.ones(beta.shape[1:], bool)
    for row in range(beta.shape[1]):
        context = np.flatnonzero(allowed[row])
        beta[:, row, context] = generator.permuted(beta[:, row, context], axis=1)
    width = head.x.shape[-1]
    x, weighted = head.x.reshape(-1, width), (beta @ head.x).reshape(-1, width)  # [S·N, d]
    return Form(x.T, weighted.T).symmetry()


def head_rows(terms: GradientTerms, step: int, objective: str) -> list[Row]:
    """Return one row of scores per head."""
    generator = np.random.default_rng(0)
    return [
        asdict(head.scores)
        | {
            "step": step,
            "loss": terms.loss,
            "unpaired": shuffled_symmetry(head, generator),
            "form": head.form.symmetry(),
            "column_over_row": head.scores.column_spread / head.scores.row_spread,
            "change": head.change().symmetry(),
            "change_directionality": head.change().directionality(),
            "objective": objective,
        }
        for head in terms
    ]


def scores_over_training(args: argparse.Namespace, objective: str) -> list[Row]:
    """Train one model; return the scores of its heads at initialisation and at each evaluation."""
    config = config_of(args, objective)
    tokens = tokens_for(config)
    initial = build_model(config, tokens, process_group().device)
    held_out = batch_of(config, tokens, "valid", HELD_OUT_ROWS)
    rows: list[Row] = []

    def score(step: int, weights: dict[str, Tensor]) -> None:
        terms = gradient_terms(transformers_model(initial.config.to_dict(), weights), held_out)
        rows.extend(head_rows(terms, step, objective))
        print(f"{objective} step {step}: held-out loss {terms.loss:.3f}", flush=True)

    def at_evaluation() -> bool:
        checkpoint = saved_checkpoint(config)
        if checkpoint is not None and checkpoint["step"]:
            score(checkpoint["step"], checkpoint["weights"])
        return False  # do not stop the training

    score(0, initial.state_dict())
    pretrain(config, stop=at_evaluation)
    checkpoint = saved_checkpoint(config)
    score(checkpoint["step"], checkpoint["weights"])
    return rows


def scores_before_and_after(
    args: argparse.Namespace, objective: str
) -> tuple[list[Row], GradientTerms, tuple[str, ...]]:
    """Return the scores before and after training, the final terms and the tokens of the first row.

    All are computed on rows of the training text.
    """
    config = config_of(args, objective)
    tokens = tokens_for(config)
    initial = build_model(config, tokens, process_group().device)
    batch = batch_of(config, tokens, "train", TRAINING_ROWS)
    rows: list[Row] = []
    for step, weights in ((0, initial.state_dict()), (config.steps, saved_checkpoint(config)["weights"])):
        terms = gradient_terms(transformers_model(initial.config.to_dict(), weights), batch)
        rows.extend(head_rows(terms, step, objective))
    tokenizer = AutoTokenizer.from_pretrained(str(tokens.folder))
    labels = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    name = "decoder" if objective == "causal" else "encoder"
    return rows, GradientTerms(terms.loss, terms.layers, name), tuple(labels)


def batch_of(config: PretrainConfig, tokens: Tokens, part: Part, count: int) -> dict[str, Tensor]:
    """Return the first `count` rows of one part of the text, with the masks of an evaluation."""
    rows = Rows(tokens, part, config.length, torch.device("cpu"), count)
    batch = held_out_batches(rows, build_objective(config, tokens), count)[0]
    return model_arguments(batch, config.objective == "causal")


def saved_checkpoint(config: PretrainConfig) -> Any:
    return load_checkpoint(Path(config.out) / "checkpoint.pt", config)


def training_figure(rows: list[Row]) -> Figure:
    """Draw the median over heads and the middle half of them over training, of one seed per objective."""
    figure = new_figure(14, 3.7)
    axes = figure.subplots(1, len(PANELS))
    count = len({row["label"] for row in rows})
    for ax, (key, (title, name)) in zip(axes, PANELS.items(), strict=True):
        for objective, colour in COLOURS.items():
            steps = sorted({row["step"] for row in rows})
            heads = [[r[key] for r in rows if r["step"] == s and r["objective"] == objective] for s in steps]
            low, middle, high = (np.array([np.nanpercentile(one, q) for one in heads]) for q in (25, 50, 75))
            ax.plot(
                steps, middle, "o-", color=colour, markersize=3, linewidth=1.6, label=f"{NAMES[objective]} (1 seed)"
            )
            ax.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.axhline(1.0 if key == "column_over_row" else 0.0, color=GREY, linewidth=0.8, linestyle=":")
        panel_title(ax, title)
        ax.set_xlabel("step")
        ax.set_ylabel(name)
        style_axes(ax)
    handles, labels = axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    legend.set_title(f"line: median of {count} heads, band: the middle half of them")
    legend.get_title().set_fontsize(8)
    return figure


def table(rows: list[Row]) -> str:
    """Return a Markdown table of medians over heads, one line per objective and step."""
    keys = ("symmetry", "unpaired", "pairing", "change", "row_spread", "column_spread", "directionality", "form")
    lines = ["| objective | step | loss | " + " | ".join(keys) + " |", "|---|---|---|" + "---|" * len(keys)]
    for objective in COLOURS:
        for step in sorted({row["step"] for row in rows}):
            heads = [row for row in rows if row["step"] == step and row["objective"] == objective]
            medians = " | ".join(f"{np.nanmedian([row[key] for row in heads]):.3f}" for key in keys)
            lines.append(f"| {objective} | {step} | {heads[0]['loss']:.3f} | {medians} |".replace("-0.", "−0."))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="text files to train on")
    parser.add_argument("--valid", nargs="*", default=[], help="held-out text files; by default a part of the text")
    parser.add_argument("--out", default="out/gradients", help="folder for the runs, the scores and the figures")
    parser.add_argument("--steps", type=int, default=2000, help="training steps of each model")
    args = parser.parse_args()
    rows = [row for objective in COLOURS for row in scores_over_training(args, objective)]
    by_objective = [scores_before_and_after(args, objective) for objective in COLOURS]
    ends = [row for end_rows, _, _ in by_objective for row in end_rows]
    out = Path(args.out)
    write_file(out / "gradients.json", json.dumps({"training": rows, "ends": ends}).encode())
    figure = gradient_figure([terms for _, terms, _ in by_objective], tokens=[tokens for _, _, tokens in by_objective])
    save_figure(figure, out / "gradients.png")
    save_figure(training_figure(rows), out / "gradients_training.png")
    print(f"{HELD_OUT_ROWS} held-out rows\n{table(rows)}\n\n{TRAINING_ROWS} rows of the training text\n{table(ends)}")
    print("\nMedians over heads: symmetry of the update, the same in the shuffled-β control (unpaired), pairing of β,")
    print("symmetry of the change of M, spread of row and column norms, directionality of the update, symmetry of M.")


if __name__ == "__main__":
    main()
