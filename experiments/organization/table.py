"""The tables about many texts, from an atlas that `attngeo atlas organize` filled, or from the figures saved of it.

python -m experiments.organization.table ATLAS --csv results/organization/texts.csv
python -m experiments.organization.table results/organization/texts.csv --page experiments/organization/RESULTS.md
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import polars as pl

from attngeo.atlas import Atlas
from attngeo.io.files import write_file
from experiments.organization import passage
from experiments.page_tables import pipe_table, replace_tables

PASSAGE = Path(__file__).parents[2] / "results/organization/passage.jsonl"

# Last part of the path of a model → its name in the tables, in their order.
NAMES = {
    "encoder": "bundled encoder",
    "decoder": "bundled decoder",
    "model": "MiniLM",
    "SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2",
}
STAGES = {"": "", '{"stage": "probabilities"}': ", probabilities"}
# Figures of the softmax invariance → their titles.
TITLES = {
    "heads_correlation": "heads of the network: affinities, rank correlation",
    "heads_information": "heads: trees, adjusted information",
    "heads_procrustes": "heads: diffusion maps, Procrustes distance (0: equal)",
    "queries_correlation": "queries of a head: affinities, rank correlation",
    "queries_information": "queries: trees, adjusted information",
    "queries_procrustes": "queries: Procrustes distance",
    "keys_correlation": "keys of a head: affinities, rank correlation",
    "keys_information": "keys: trees, adjusted information",
    "keys_procrustes": "keys: Procrustes distance",
    "logits_exponent": "exponent of the logits",
    "residual_exponent": "exponent of the paraproduct's residual",
}
Row = dict[str, Any]


def named_summary(summary: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `Atlas.summary` with short names of models instead of their paths."""
    rows = [row | {"model": NAMES[name]} for row in summary.to_dicts() if (name := Path(row["model"]).name) in NAMES]
    order = {name: place for place, name in enumerate(NAMES.values())}
    rows.sort(key=lambda row: (order[row["model"]], row["table"] != "organized", row["options"]))
    return pl.DataFrame(rows, schema=summary.schema).drop("revision", "commit", "content")


def tables(summary: pl.DataFrame) -> dict[str, str]:
    """Return the tables: trees against dyadic trees, sparsity, agreement between texts, shared keys, invariance."""
    cells: dict[tuple[str, str, str], Row] = {}
    summary = summary.filter(pl.col("texts") > 1)  # one text has no interval
    for row in summary.to_dicts():
        cells[row["model"], row["table"] + row["options"], row["figure"]] = row
    networks = list(dict.fromkeys((row["model"], row["options"]) for row in _of(summary, "organized")))

    def cell(model: str, key: str, figure: str) -> Row | None:
        return cells.get((model, key, figure))

    gains, sparsity, agreement = [], [], []
    for model, options in networks:
        title, key = f"{model}{STAGES[options]}", "organized" + options
        gain = cell(model, key, "gain")
        if gain is None:
            continue
        gains.append(
            [
                title,
                str(gain["texts"]),
                _percent(gain),
                f"{100 * gain['std']:.1f}%",
                f"{100 * gain['control']:.1f}%",
                f"{100 * gain['better']:.0f}%",
            ]
        )
        shares = [cell(model, key, f"share{energy}_trees") for energy in (90, 99)]
        exponent = cell(model, key, "exponent_trees")
        sparsity.append(
            [
                title,
                *(_pair(share, 100, "%") for share in shares),
                *(_mean(cell(model, key, f"share{energy}_cosines"), 100, "%") for energy in (90, 99)),
                _pair(exponent, 1, ""),
                _mean(cell(model, key, "exponent_shuffled"), 1, ""),
            ]
        )
        figures = [
            cell(model, "agreement" + options, name) for name in ("rank_correlation", "information", "procrustes")
        ]
        if figures[0] is not None:
            agreement.append([title, str(figures[0]["texts"]), *map(_interval, figures)])
    shared_keys = [
        [f"{row['model']}{STAGES[row['options']]}", _percent(row), f"{100 * row['control']:.2f}%"]
        for row in summary.to_dicts()
        if row["figure"] == "shared_key"
    ]
    models = list(dict.fromkeys(row["model"] for row in _of(summary, "invariance")))
    figures_ = list(dict.fromkeys(row["figure"] for row in _of(summary, "invariance")))
    invariance = []
    for figure in figures_:
        found = [cell(model, "invariance", figure) for model in models]
        invariance.append([TITLES[figure], *("" if row is None else _contrast(row) for row in found)])
    return {
        "gain": pipe_table(["", "texts", "gain: mean, 95% interval", "std", "permuted", "better"], gains),
        "sparsity": pipe_table(
            [
                "",
                "90%: trees / dyadic",
                "99%: trees / dyadic",
                "90%: cosines per head",
                "99%: cosines per head",
                "α: trees / dyadic",
                "shuffled",
            ],
            sparsity,
        ),
        "agreement": pipe_table(["", "pairs", "affinities", "trees", "diffusion maps"], agreement),
        "shared keys": pipe_table(
            ["", "pairs that share a key head", "key heads shuffled over the network"],
            shared_keys,
        ),
        "invariance": pipe_table(["logits compared with their softmax", *models], invariance),
    }


def _of(summary: pl.DataFrame, table: str) -> list[Row]:
    return summary.filter(pl.col("table") == table).to_dicts()


def _interval(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def _percent(row: Row) -> str:
    return f"{100 * row['mean']:.1f}% ({100 * row['low']:.1f}% to {100 * row['high']:.1f}%)"


def _mean(row: Row | None, scale: float, unit: str) -> str:
    return "" if row is None else f"{scale * row['mean']:.3g}{unit}"


def _pair(row: Row | None, scale: float, unit: str) -> str:
    return "" if row is None else f"{scale * row['mean']:.3g}{unit} / {scale * row['control']:.3g}{unit}"


def _contrast(row: Row) -> str:
    """Return a figure and its control; ✗ if the interval of the difference does not lie on the better side."""
    smaller_is_better = row["figure"].endswith("procrustes")
    better = row["difference_high"] < 0 if smaller_is_better else row["difference_low"] > 0
    return f"{row['mean']:.2f} ± {(row['high'] - row['low']) / 2:.2f}, {row['control']:.2f}{'' if better else ' ✗'}"


def read_figures(path: Path) -> pl.DataFrame:
    """Return the figures that `--csv` wrote."""
    return pl.read_csv(path).with_columns(pl.col("options").fill_null(""))


def main() -> None:
    """Print the tables, or write them into a page; write the figures behind them where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="an atlas, or a file that --csv wrote")
    parser.add_argument("--csv", type=Path, help="also write all figures to this file")
    parser.add_argument("--page", type=Path, help="write the tables into this page instead of printing them")
    options = parser.parse_args()
    saved = options.source.suffix == ".csv"
    summary = read_figures(options.source) if saved else named_summary(Atlas(options.source).summary())
    made = tables(summary) | (passage.tables(PASSAGE) if saved else {})
    if options.page is None:
        print("\n\n".join(made.values()))
    else:
        write_file(options.page, replace_tables(options.page.read_text("utf-8"), made, "figures").encode())
    if options.csv is not None:
        numbers = pl.selectors.float()
        summary.with_columns(numbers.round_sig_figs(5)).write_csv(options.csv)


if __name__ == "__main__":
    main()
