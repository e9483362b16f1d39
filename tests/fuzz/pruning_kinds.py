"""Files of pruning: plans with their statistics, losses by share, and the config of a pruned model."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.containers import mutate_npz
from tests.fuzz.kinds import Files, Kind, mutate_one
from tests.fuzz.mutations import mutate_bytes, mutate_json


@cache
def _model() -> Any:
    """Return a small LLaMA with six query and two key heads."""
    from tests.applications.prune.prunable_models import tiny_model

    return tiny_model("llama", "sdpa")


@cache
def _plan() -> Any:
    import torch

    import attngeo

    ids = torch.randint(3, 50, (8, 16), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row[None]} for row in ids]
    return attngeo.prune_plan(_model(), rows, heads=3, method="sensitivity")


def _plan_files() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        _plan().save(Path(folder) / "plan.json")
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def _mutate_plan(rng: Random, files: Files) -> Files:
    if rng.random() < 0.5:
        return {**files, "plan.npz": mutate_npz(rng, files["plan.npz"])}
    return {**files, "plan.json": _damaged_json(rng, files["plan.json"])}


def _damaged_json(rng: Random, data: bytes) -> bytes:
    return mutate_json(rng, json.loads(data)) if rng.random() < 0.8 else mutate_bytes(rng, data)


def _read_plan(rng: Random, folder: Path, out: Path) -> None:
    import attngeo

    loaded = attngeo.PrunePlan.load(folder / "plan.json")
    str(loaded), loaded.labels, loaded.share
    again = attngeo.PrunePlan.load(loaded.save(out / "again.json"))
    assert again == loaded
    small = attngeo.prune(_model(), loaded, refit=loaded.statistics is not None)
    assert small.num_parameters() < _model().num_parameters()


@cache
def _losses() -> Any:
    from attngeo.applications.prune.curve import LossCurve, LossPoint

    points = [
        LossPoint(method, 3 * step, 0.1 * step, refit, 3.0 + step, seed)
        for method in ("refit", "random")
        for step in (1, 2)
        for refit in (False, True)
        for seed in (0, 1)
    ]
    return LossCurve("a model", "next token", 3.0, tuple(points))


def _loss_files() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        return {"losses.json": _losses().save(Path(folder) / "losses.json").read_bytes()}


def _read_losses(rng: Random, folder: Path, out: Path) -> None:
    from attngeo.applications.prune.curve import LossCurve
    from attngeo.show.pruning import loss_table

    loaded = LossCurve.load(folder / "losses.json")
    loss_table(loaded)
    assert LossCurve.load(loaded.save(out / "again.json")) == loaded
    if rng.random() < 0.1:
        loaded._repr_png_()


def _pruned_files() -> Files:
    import attngeo
    from attngeo.live.load import quiet_transformers

    with tempfile.TemporaryDirectory() as folder, quiet_transformers():
        attngeo.prune(_model(), _plan(), refit=False).save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def _mutate_pruned(rng: Random, files: Files) -> Files:
    config = json.loads(files["config.json"])
    if rng.random() < 0.8:  # the record of what was removed
        record = mutate_json(rng, config["attngeo_pruned"])
        return {
            **files,
            "config.json": json.dumps(config | {"attngeo_pruned": "here"}).encode().replace(b'"here"', record),
        }
    return {**files, "config.json": _damaged_json(rng, files["config.json"])}


def _read_pruned(rng: Random, folder: Path, out: Path) -> None:
    import attngeo

    if rng.random() < 0.5:
        attngeo.score(folder, nulls=False)
    else:
        attngeo.load_pruned(folder)


KINDS = (
    Kind("prune plan", cache(_plan_files), _mutate_plan, _read_plan),
    Kind("pruning losses", cache(_loss_files), mutate_one(_damaged_json), _read_losses),
    Kind("pruned model", cache(_pruned_files), _mutate_pruned, _read_pruned),
)
