"""Saved comparisons of models: two models as Parquet, several as JSON."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.kinds import Files, Kind, mutate_one
from tests.fuzz.mutations import mutate_bytes, mutate_json


@cache
def comparison() -> Any:
    """Return a small comparison with all its parts."""
    from attngeo.applications.compare.change import change_frame
    from attngeo.applications.compare.comparison import ModelComparison
    from attngeo.applications.compare.distance import NetworkDistance
    from attngeo.applications.compare.origin import Relation

    rows = [
        {"stack": "encoder", "layer": layer, "head": head, "change": 0.1 * layer, "symmetry_change": -0.1}
        for layer in range(3)
        for head in (None, 0, 1)
    ]
    related = Relation("related", 0.001, 0.9, 0.01, 0.001, 0.9, 0.02, 999)
    distance = NetworkDistance(0.1, 0.2, 0.01, 0.01, 99, 4, 4, 0.1)
    return ModelComparison("a", "b", change_frame(rows), related, distance, ("a note",))


@cache
def model_map() -> Any:
    """Return a small map of three models."""
    from attngeo.applications.compare.model_map import FORMS, ModelMap, Pair

    pairs = (Pair(0, 1, 0.1, 0.001, "related"), Pair(0, 2, 0.9, None, ""), Pair(1, 2, 0.8))
    return ModelMap(("a", "b", "c"), FORMS, pairs)


def _comparison_files() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        return {"saved.parquet": comparison().save(Path(folder) / "saved.parquet").read_bytes()}


def _map_files() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        return {"saved.json": model_map().save(Path(folder) / "saved.json").read_bytes()}


def _mutate_comparison(rng: Random, data: bytes) -> bytes:
    import polars as pl

    from attngeo.applications.compare.comparison import ABOUT
    from attngeo.io.tables import parquet_bytes, read_parquet

    if rng.random() < 0.5:
        return mutate_bytes(rng, data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.parquet"
        path.write_bytes(data)
        frame, metadata = read_parquet(path)
    about = metadata[ABOUT].encode()
    if rng.random() < 0.5:
        about = mutate_json(rng, json.loads(about))
    else:
        name = rng.choice(frame.columns)
        strange = rng.choice((None, -1, 2**62)) if frame.schema[name] == pl.Int64 else None
        frame = frame.with_columns(pl.lit(strange).cast(frame.schema[name]).alias(name))
    return parquet_bytes(frame, {ABOUT: about.decode("utf-8", "replace")})


def _read_comparison(rng: Random, folder: Path, out: Path) -> None:
    from attngeo import ModelComparison
    from attngeo.show.comparison import comparison_report

    loaded = ModelComparison.load(folder / "saved.parquet")
    repr(loaded)
    loaded._repr_html_()
    comparison_report(loaded)
    assert ModelComparison.load(loaded.save(out / "again.parquet")) == loaded
    if rng.random() < 0.1:
        loaded._repr_png_()


def _read_map(rng: Random, folder: Path, out: Path) -> None:
    from attngeo import ModelMap
    from attngeo.show.comparison import model_map_report

    loaded = ModelMap.load(folder / "saved.json")
    repr(loaded)
    model_map_report(loaded)
    assert ModelMap.load(loaded.save(out / "again.json")) == loaded
    if rng.random() < 0.1:
        loaded._repr_png_()


KINDS = (
    Kind("model comparison", cache(_comparison_files), mutate_one(_mutate_comparison), _read_comparison),
    Kind("model map", cache(_map_files), mutate_one(lambda rng, data: mutate_json(rng, json.loads(data))), _read_map),
)
