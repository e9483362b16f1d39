"""Tables of the records: the increase of the loss by method and share, and paired intervals over windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Record = dict[str, Any]
Losses = NDArray[np.float64]


def increases(records: Iterable[Record], method: str, share: float, refit: bool) -> Losses:
    """Return the increase of the loss of each window, mean over draws and seeds; NaN where it was not measured."""
    records = list(records)
    full = {one["draw"]: np.array(one["losses"]) for one in records if one["method"] == "full"}
    own = [one for one in records if one["method"] == method and one.get("refit") == refit]
    if not own:
        return np.array([np.nan])
    nearest = min((one["share"] for one in own), key=lambda found: abs(found - share))
    found: Losses = np.mean([np.array(one["losses"]) - full[one["draw"]] for one in own if one["share"] == nearest], 0)
    return found


def ratio_interval(ours: Any, theirs: Any, draws: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """Return the ratio of two mean increases and its 95% interval, windows resampled in pairs."""
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, len(ours), (draws, len(ours)))
    ratios = ours[picks].mean(1) / theirs[picks].mean(1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(ours.mean() / theirs.mean()), float(low), float(high)


def markdown(records: Sequence[Record], shares: Sequence[float]) -> str:
    """Return one Markdown table per subject: increase without / with refit, by method and share."""
    lines: list[str] = []
    for subject in dict.fromkeys(one["subject"] for one in records):
        own = [one for one in records if one["subject"] == subject]
        full = np.mean([np.mean(one["losses"]) for one in own if one["method"] == "full"])
        lines += [
            f"**{subject}** (full model {full:.4f})",
            "",
            "| method | " + " | ".join(f"{s:.0%}" for s in shares) + " |",
        ]
        lines.append("|---" * (len(shares) + 1) + "|")
        for method in dict.fromkeys(one["method"] for one in own if one["method"] != "full"):
            cells = [
                " / ".join(f"{increases(own, method, share, refit).mean():.3f}" for refit in (False, True))
                for share in shares
            ]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def targets(records: Sequence[Record], rule: str, share: float = 0.3) -> str:
    """Return, per subject, the ratio of the rule with refit to baselines, with paired intervals over windows."""
    lines = ["| subject | baseline | ratio | 95% interval |", "|---|---|---|---|"]
    for subject in dict.fromkeys(one["subject"] for one in records):
        own = [one for one in records if one["subject"] == subject]
        ours = increases(own, rule, share, True)
        for method, refit in (("random", False), ("gradient", False), ("random", True), ("gradient", True)):
            ratio, low, high = ratio_interval(ours, increases(own, method, share, refit))
            label = f"{method}, {'with' if refit else 'without'} refit"
            lines.append(f"| {subject} | {label} | {ratio:.0%} | {low:.0%} to {high:.0%} |")
    return "\n".join(lines) + "\n"
