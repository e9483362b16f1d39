"""Saved results: network tensors, trees, organizations, expansions, comparisons, reports, paraproducts, scores."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.containers import mutate_npz
from tests.fuzz.kinds import Files, Kind, mutate_one
from tests.fuzz.mutations import mutate_bytes, mutate_json, strange_value


@cache
def results() -> dict[str, Any]:
    """Return one small result of each class."""
    from attngeo.organization import NetworkTensor, organize, paraproduct, planted, softmax_invariance

    values, _ = planted((8, 7, 5), 0)
    mask = np.ones((8, 7), bool)
    mask[0, 1:] = False
    tensor = NetworkTensor(values, mask, heads=tuple(f"L0H{head}" for head in range(5)), name="a model")
    organization = organize(tensor)
    expansion = organization.expand()
    rows, columns = organization.trees[:2]
    return {
        "tensor": tensor,
        "tree": organization.trees[0],
        "organization": organization,
        "expansion": expansion,
        "paraproduct": paraproduct(tensor.values[:, :, 0], rows, columns, "softmax"),
        "comparison": expansion.compare(),
        "report": softmax_invariance(tensor, bootstrap=40),
    }


def saved(name: str) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        return {"saved": results()[name].save(Path(folder) / "saved").read_bytes()}


def _read_result(name: str, rng: Random, folder: Path, out: Path) -> None:
    """Load a result; then it must print, save and load again, compute what it offers, and (sometimes) draw itself."""
    loaded = type(results()[name]).load(folder / "saved")
    repr(loaded)
    assert type(loaded).load(loaded.save(out / "again")) == loaded
    use: dict[str, Callable[[Any], object]] = {
        "tensor": lambda it: it.probabilities() if it.stage == "logits" else it.take([0], [0], [0]),
        "tree": lambda it: it.haar(),
        "organization": lambda it: (it.reordered(), it.expand(), it.embedding(2), it.settled),
        "expansion": lambda it: (it.inverse(), it.entropy(), it.entropy("head"), it.sparsity, it.holder),
        "paraproduct": lambda it: it.residual,
        "comparison": lambda it: (it.rows(), it.gain()),
        "report": lambda it: it.rows(),
    }
    use[name](loaded)
    if rng.random() < 0.1:
        loaded._repr_png_()


def _mutate_json_file(rng: Random, data: bytes) -> bytes:
    return mutate_json(rng, json.loads(data))


@cache
def score_table() -> Any:
    from attngeo import ScoreTable

    rows = [
        {"model": "m", "stack": "decoder", "layer": layer, "head": head, "symmetry": 0.1 * layer, "directionality": 0.2,
         "norm": 3.0, "query_width": 64, "key_width": 64, "rank": 16, "qk_norm": False, "cross": False}
        for layer in range(3) for head in (None, 0, 1)
    ]  # fmt: skip
    return ScoreTable.of(rows, ("a note",))


def _table_files() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        score_table().save(Path(folder) / "scores.parquet")
        return {"scores.parquet": (Path(folder) / "scores.parquet").read_bytes()}


def _mutate_table(rng: Random, data: bytes) -> bytes:
    import polars as pl

    from attngeo.io.tables import parquet_bytes

    if rng.random() < 0.6:
        return mutate_bytes(rng, data)
    frame, notes = score_table().frame, json.dumps(["a note"]).encode()
    name = rng.choice(frame.columns)
    kind = rng.randrange(6)
    if kind == 0:
        frame = frame.drop(name)
    elif kind == 1:
        frame = frame.with_columns(pl.col(name).cast(pl.String, strict=False))
    elif kind == 2:
        frame = frame.clear()
    elif kind == 3:
        frame = frame.with_columns(pl.lit(None).cast(frame.schema[name]).alias(name))
    elif kind == 4:
        number = rng.choice((float("nan"), float("inf"), -1e308, 1e308))
        floats = [column for column in frame.columns if frame.schema[column] == pl.Float64]
        frame = frame.with_columns(pl.lit(number).alias(rng.choice(floats)))
    else:
        notes = mutate_json(rng, ["a note", strange_value(rng)])
    return parquet_bytes(frame, {"attngeo_notes": notes.decode("utf-8", "replace")})


def _read_table(rng: Random, folder: Path, out: Path) -> None:
    from attngeo import ScoreTable

    table = ScoreTable.load(folder / "scores.parquet")
    repr(table)
    table._repr_html_()
    table.summary()
    if rng.random() < 0.1:
        table.plot()


KINDS = (
    *(
        Kind(name, cache(partial(saved, name)), mutate_one(mutate_npz), partial(_read_result, name))
        for name in ("tensor", "tree", "organization", "expansion", "paraproduct")
    ),
    *(
        Kind(name, cache(partial(saved, name)), mutate_one(_mutate_json_file), partial(_read_result, name))
        for name in ("comparison", "report")
    ),
    Kind("score table", cache(_table_files), mutate_one(_mutate_table), _read_table),
)
