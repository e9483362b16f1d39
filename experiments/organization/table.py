"""Print the tables of docs/organization.md about many texts, from an atlas that `attngeo atlas organize` filled.

python -m experiments.organization.table ATLAS [--csv FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from attngeo.atlas import Atlas
from experiments.page_tables import pipe_table

# Last part of the path of a model → its name in the tables, in their order.
NAMES = {
    "encoder": "bundled encoder",
    "decoder": "bundled decoder",
    "model": "MiniLM",
    "SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2",
}
STAGES = {"": "logits", '{"stage": "probabilities"}': "probabilities"}
Row = dict[str, Any]


def named_summary(summary: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `Atlas.summary` with short names of models instead of their paths."""
    rows = [row | {"model": NAMES[name]} for row in summary.to_dicts() if (name := Path(row["model"]).name) in NAMES]
    order = {name: place for place, name in enumerate(NAMES.values())}
    rows.sort(key=lambda row: (order[row["model"]], row["table"] != "organized", row["options"]))
    return pl.DataFrame(rows, schema=summary.schema).drop("revision", "commit", "content")


def tables(summary: pl.DataFrame) -> Iterable[str]:
    """Yield the tables: trees against dyadic trees, sparsity, shared keys, agreement between texts, invariance."""
    cells: dict[tuple[str, str, str], Row] = {}
    summary = summary.filter(pl.col("texts") > 1)  # one text has no interval
    for row in summary.to_dicts():
        cells[row["model"], row["table"] + row["options"], row["figure"]] = row
    networks = list(dict.fromkeys((row["model"], row["options"]) for row in _of(summary, "organized")))

    def cell(model: str, key: str, figure: str) -> Row | None:
        return cells.get((model, key, figure))

    gains, sparsity, agreement = [], [], []
    for model, options in networks:
        title, key = f"{model}, {STAGES[options]}", "organized" + options
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
    yield pipe_table(["", "texts", "gain: mean, 95% interval", "std", "permuted", "better"], gains)
    yield pipe_table(
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
    )
    yield pipe_table(["", "pairs", "affinities", "trees", "diffusion maps"], agreement)
    keys = [row for row in summary.to_dicts() if row["figure"] == "shared_key"]
    yield pipe_table(
        ["", "pairs that share a key", "by chance"],
        [[f"{row['model']}, {STAGES[row['options']]}", _percent(row), f"{100 * row['control']:.2f}%"] for row in keys],
    )
    models = list(dict.fromkeys(row["model"] for row in _of(summary, "invariance")))
    figures_ = list(dict.fromkeys(row["figure"] for row in _of(summary, "invariance")))
    body = []
    for figure in figures_:
        found = [cell(model, "invariance", figure) for model in models]
        body.append([figure, *("" if row is None else _contrast(row) for row in found)])
    yield pipe_table(["figure", *models], body)


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


def main() -> None:
    """Print the tables, and write the figures behind them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("atlas", type=Path)
    parser.add_argument("--csv", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    summary = named_summary(Atlas(options.atlas).summary())
    print("\n\n".join(tables(summary)))
    if options.csv is not None:
        numbers = pl.selectors.float()
        summary.with_columns(numbers.round_sig_figs(5)).write_csv(options.csv)


if __name__ == "__main__":
    main()
