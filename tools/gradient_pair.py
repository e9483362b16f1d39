"""Train a small encoder and a small decoder of one shape on the same rows, and watch what training asks of their forms.

At every evaluation both go once through the same 32 held-out rows; the rank-1 terms of every head are scored. Then the
first and the last weights go through 512 rows of the training text. Prints both tables (medians over heads) and writes
`gradients.json`, `gradients.png` (the trained pair on the 512 rows) and `gradients_training.png` (over training).

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
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertLMHeadModel

from attngeo.dynamics.data.tokens import Tokens
from attngeo.dynamics.gradients.gradient_terms import gradient_terms
from attngeo.dynamics.gradients.result import GradientTerms, HeadTerms
from attngeo.dynamics.pretraining.batches import Batch, Rows, held_out_batches
from attngeo.dynamics.pretraining.build import build_model, build_objective
from attngeo.dynamics.pretraining.checkpoint import load_checkpoint
from attngeo.dynamics.pretraining.config import PretrainConfig, load_config
from attngeo.dynamics.pretraining.pretrain import pretrain, tokens_for
from attngeo.dynamics.pretraining.processes import process_group
from attngeo.show.canvas import BLUE, GREY, ORANGE, new_figure, panel_title, save_figure, style_axes
from attngeo.show.gradient_figures import gradient_figure
from attngeo.weights.scoring.form import Form

ROWS = 32  # held-out rows gone through at every evaluation
MANY = 512  # rows of the training text gone through before and after
COLOURS = {"masked": BLUE, "causal": ORANGE}
FIGURES = {
    "symmetry": "symmetry of the update",
    "pairing": "pairing of β",
    "column_over_row": "column spread over row spread",
    "form": "symmetry of the form M",
}


def config_of(args: Any, objective: str) -> PretrainConfig:
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


def live(shape: dict[str, Any], weights: dict[str, Any]) -> Any:
    """The transformers model with these weights."""
    config = BertConfig(**{key: value for key, value in shape.items() if key != "architectures"})
    model = (BertLMHeadModel if config.is_decoder else BertForMaskedLM)(config)
    _, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown, unknown
    model.tie_weights()
    return model.eval()


def feed(batch: Batch, causal: bool) -> dict[str, Any]:
    if causal:
        return {"input_ids": batch.ids, "labels": batch.ids}
    labels = torch.full_like(batch.ids, -100).flatten()
    labels[batch.positions] = batch.targets
    return {"input_ids": batch.ids, "labels": labels.view(batch.ids.shape)}


def unpaired(head: HeadTerms, draw: np.random.Generator) -> float:
    """Symmetry of the update with the β of each predicted token dealt anew among its context: the same rows and x."""
    beta = head.beta.copy()
    seen = np.tri(beta.shape[1], dtype=bool) if not np.triu(beta, 1).any() else np.ones(beta.shape[1:], bool)
    for row in range(beta.shape[1]):
        context = np.flatnonzero(seen[row])
        beta[:, row, context] = draw.permuted(beta[:, row, context], axis=1)
    width = head.x.shape[-1]
    x, mixed = head.x.reshape(-1, width), (beta @ head.x).reshape(-1, width)
    return Form(x.T, mixed.T).symmetry()


def measured(terms: GradientTerms, step: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    return [
        asdict(head.scores)
        | {
            "step": step,
            "loss": terms.loss,
            "unpaired": unpaired(head, draw),
            "form": head.form.symmetry(),
            "column_over_row": head.scores.column_spread / head.scores.row_spread,
            "change": head.change().symmetry(),
            "change_directionality": head.change().directionality(),
        }
        for head in terms
    ]


def watched(args: Any, objective: str) -> list[dict[str, Any]]:
    """Scores of every head at the start and at every evaluation of the training."""
    config = config_of(args, objective)
    tokens = tokens_for(config)
    start = build_model(config, tokens, process_group().device)
    held = rows_of(config, tokens, "valid", ROWS)
    rows: list[dict[str, Any]] = []

    def look(step: int, weights: dict[str, Any]) -> None:
        terms = gradient_terms(live(start.config.to_dict(), weights), held)
        rows.extend(row | {"objective": objective} for row in measured(terms, step))
        print(f"{objective} step {step}: held-out loss {terms.loss:.3f}", flush=True)

    def at_evaluation() -> bool:
        state = saved(config)
        if state is not None and state["step"]:
            look(state["step"], state["weights"])
        return False

    look(0, start.state_dict())
    pretrain(config, stop=at_evaluation)
    state = saved(config)
    look(state["step"], state["weights"])
    return rows


def ends(args: Any, objective: str) -> tuple[list[dict[str, Any]], GradientTerms, tuple[str, ...]]:
    """Scores before and after training on many rows, the terms after it, the tokens of the first row."""
    config = config_of(args, objective)
    tokens = tokens_for(config)
    start = build_model(config, tokens, process_group().device)
    many = rows_of(config, tokens, "train", MANY)
    rows: list[dict[str, Any]] = []
    for step, weights in ((0, start.state_dict()), (config.steps, saved(config)["weights"])):
        terms = gradient_terms(live(start.config.to_dict(), weights), many)
        rows.extend(row | {"objective": objective} for row in measured(terms, step))
    names = AutoTokenizer.from_pretrained(str(tokens.folder)).convert_ids_to_tokens(many["input_ids"][0].tolist())
    name = "decoder" if objective == "causal" else "encoder"
    return rows, GradientTerms(terms.loss, terms.layers, name), tuple(names)


def rows_of(config: PretrainConfig, tokens: Tokens, part: str, count: int) -> dict[str, Any]:
    rows = Rows(tokens, part, config.length, torch.device("cpu"), count)
    return feed(held_out_batches(rows, build_objective(config, tokens), count)[0], config.objective == "causal")


def saved(config: PretrainConfig) -> Any:
    return load_checkpoint(Path(config.out) / "checkpoint.pt", config)


def training_figure(rows: list[dict[str, Any]]) -> Figure:
    """Median over heads, and the middle half of them, over training."""
    figure = new_figure(14, 3.4)
    for ax, (key, words) in zip(figure.subplots(1, len(FIGURES)), FIGURES.items(), strict=True):
        for objective, colour in COLOURS.items():
            steps = sorted({row["step"] for row in rows})
            parts = [[r[key] for r in rows if r["step"] == s and r["objective"] == objective] for s in steps]
            low, middle, high = (np.array([np.nanpercentile(part, q) for part in parts]) for q in (25, 50, 75))
            ax.plot(steps, middle, "o-", color=colour, markersize=3, linewidth=1.6, label=objective)
            ax.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.axhline(1.0 if key == "column_over_row" else 0.0, color=GREY, linewidth=0.8, linestyle=":")
        panel_title(ax, words)
        ax.set_xlabel("step")
        style_axes(ax)
        ax.legend(frameon=False, fontsize=8)
    return figure


def table(rows: list[dict[str, Any]]) -> str:
    keys = ("symmetry", "unpaired", "pairing", "change", "row_spread", "column_spread", "directionality", "form")
    lines = ["| objective | step | loss | " + " | ".join(keys) + " |", "|---|---|---|" + "---|" * len(keys)]
    for objective in COLOURS:
        for step in sorted({row["step"] for row in rows}):
            some = [row for row in rows if row["step"] == step and row["objective"] == objective]
            middle = " | ".join(f"{np.nanmedian([row[key] for row in some]):.3f}" for key in keys)
            lines.append(f"| {objective} | {step} | {some[0]['loss']:.3f} | {middle} |".replace("-0.", "−0."))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--valid", nargs="*", default=[])
    parser.add_argument("--out", default="out/gradients")
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    rows = [row for objective in COLOURS for row in watched(args, objective)]
    after = [ends(args, objective) for objective in COLOURS]
    many = [row for found, _, _ in after for row in found]
    out = Path(args.out)
    (out / "gradients.json").write_text(json.dumps({"training": rows, "ends": many}))
    figure = gradient_figure([terms for _, terms, _ in after], tokens=[names for _, _, names in after])
    save_figure(figure, out / "gradients.png")
    save_figure(training_figure(rows), out / "gradients_training.png")
    print(f"{ROWS} held-out rows\n{table(rows)}\n\n{MANY} rows of the training text\n{table(many)}")


if __name__ == "__main__":
    main()
