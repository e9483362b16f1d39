"""The rotary pairs of each layer as text for the terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attngeo.show.tables import padded
from attngeo.show.terminal import ABOVE, PLAIN, Terminal, bar

if TYPE_CHECKING:
    import polars as pl

_SHARES = ("fast", "medium", "slow")
_LEGEND = (
    "fast: share of energy in pairs that turn once within {fast} tokens, mean over the heads of the layer",
    "slow: the same for pairs that need more than {slow:,} tokens for a turn; medium: all other pairs",
    "head, pair, share: the pair with the largest share of the energy of its head; pair 0 is the first",
    "tokens per turn: the offset after which this pair has turned once",
    "prefers offset: where this pair adds most for equal tokens; below 0 the key is before the query",
)


def frequency_report(summary: pl.DataFrame, fast: int, slow: int, terminal: Terminal = PLAIN) -> str:
    """Return a table per model and stack, then what its columns mean.

    summary: as `frequency_summary` returns it
    fast:    tokens within which a fast pair turns
    slow:    tokens within which a slow pair does not turn
    """
    sections = []
    for part in summary.partition_by("model", "stack", maintain_order=True):
        model, stack = part.select("model", "stack").row(0)
        sections.append("\n".join([f"{model}  {stack}", *_table_lines(part, terminal), ""]))
    legend = [line.format(fast=fast, slow=slow) for line in _LEGEND]
    return "\n".join([*sections, *legend, ""])


def _table_lines(part: pl.DataFrame, terminal: Terminal) -> list[str]:
    """Return a line of titles and a line per layer, with bars where there is room for them."""
    titles = ["layer", *_SHARES, "head", "pair", "share", "tokens per turn", "prefers offset"]
    rows = [
        [
            str(row["layer"]),
            *(f"{row[name]:.3f}{' ' + bar(row[name]) if terminal.bars else ''}" for name in _SHARES),
            str(row["head"]),
            str(row["pair"]),
            f"{row['share']:.3f}",
            _tokens(row["turn"]),
            _tokens(row["offset"]),
        ]
        for row in part.iter_rows(named=True)
    ]
    body = padded([titles, *rows], right=[True] * len(titles))
    if terminal.bars and len("  ".join(body[0])) > terminal.width:
        return _table_lines(part, replace(terminal, bars=False))
    for row in body[1:]:
        for column in range(1, 1 + len(_SHARES)):
            row[column] = terminal.paint(row[column], ABOVE)
    return ["  ".join(row).rstrip() for row in body]


def _tokens(count: float | None) -> str:
    """Return a number of tokens: one decimal below 100, thousands separated above."""
    if count is None:
        return "-"
    return f"{round(count, 1) + 0.0:.1f}" if abs(count) < 100 else f"{count:,.0f}"
