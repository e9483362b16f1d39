"""Passages come from different documents; the tables hold the figures of a summary."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from experiments.organization import passage
from experiments.organization.passages import passages
from experiments.organization.table import PASSAGE, named_summary, read_figures, tables
from experiments.page_tables import replace_tables

ROOT = Path(__file__).parents[3]


def test_one_passage_per_document() -> None:
    lines = ["a b c d", "e f g h", "", "i j k l", "", "too short", "", f"{'x' * 90} y z w"]
    found = passages(lines, 2, 3, seed=0)
    assert sorted(passage[0] for passage in found) in (["a", "i"], ["e", "i"])
    assert all(len(passage.split()) == 3 for passage in found)
    assert found == passages(lines, 2, 3, seed=0)


def test_tables_show_means_intervals_and_controls() -> None:
    numbers = {"mean": 0.2, "low": 0.1, "high": 0.3, "std": 0.05, "control": 0.04, "difference": 0.16, "better": 0.9}
    numbers |= {"difference_low": 0.1, "difference_high": 0.2}
    common = {"model": "/models/encoder", "revision": None, "commit": None, "content": "c", "options": "", "texts": 5}
    organized = ("gain", "share90_trees", "share99_trees", "exponent_trees", "shared_key")
    rows = [common | {"table": "organized", "figure": figure} | numbers for figure in organized]
    rows.append(common | {"table": "invariance", "figure": "keys_procrustes"} | numbers)
    rows.append(common | {"table": "invariance", "figure": "keys_correlation"} | numbers)
    rows.append(rows[0] | {"model": "/models/other"})
    summary = named_summary(pl.DataFrame(rows, schema_overrides={"revision": pl.String, "commit": pl.String}))
    assert set(summary["model"]) == {"bundled encoder"} and "content" not in summary.columns
    text = "\n".join(tables(summary).values())
    assert "| bundled encoder | 5 | 20.0% (10.0% to 30.0%) | 5.0% | 4.0% | 90% |" in text
    assert "| bundled encoder | 20.0% (10.0% to 30.0%) | 4.00% |" in text
    assert "| 90%: cosines per head | 99%: cosines per head |" in text  # not those of the whole tensor
    assert (
        "| keys: Procrustes distance | 0.20 ± 0.10, 0.04 ✗ |" in text
        and "| keys of a head: affinities, rank correlation | 0.20 ± 0.10, 0.04 |" in text
    )


def test_every_table_of_the_page_is_made_from_the_figures() -> None:
    made = tables(read_figures(ROOT / "results/organization/texts.csv")) | passage.tables(PASSAGE)
    for name in ("docs/organization.md", "experiments/organization/RESULTS.md"):
        page = (ROOT / name).read_text("utf-8")
        assert replace_tables(page, made, "figures") == page
