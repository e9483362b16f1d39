"""The files of an atlas: its manifest, the description of a running call, and the Parquet files of its tables."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.kinds import Files, Kind
from tests.fuzz.mutations import mutate_bytes, mutate_json

_SLASH = "--"  # files of a case lie in one folder, those of an atlas in several
_PLAIN = ("attngeo-atlas.json", f"running{_SLASH}call.json")
_QUERY = "select model, layer, head, max(symmetry) as s, count(*) as n from scores group by all"


@cache
def _files() -> Files:
    import attngeo
    from attngeo.atlas.progress import RunningCall
    from attngeo.io.archive import save_json
    from tests.atlas.small_models import make_models

    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "atlas"
        attngeo.Atlas(folder).add([*make_models(Path(home), 3), Path(home) / "missing"], workers=0)
        call = RunningCall(1, 3, 0, 1000, 1.0, time.time(), os.getpid(), socket.gethostname())
        save_json(folder / "running" / "call.json", "running call", asdict(call))
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)).replace("/", _SLASH): path.read_bytes() for path in sorted(paths)}


def _mutate_plain(rng: Random, files: Files) -> Files:
    name = rng.choice(_PLAIN)
    content = mutate_json(rng, json.loads(files[name])) if rng.random() < 0.8 else mutate_bytes(rng, files[name])
    return {**files, name: content}


def _mutate_part(rng: Random, files: Files) -> Files:
    """Damage the bytes of one file, or write other columns and values with a valid digest, or lose or swap files."""
    name, other = rng.sample([name for name in files if name not in _PLAIN], 2)
    kind = rng.randrange(6)
    if kind < 3:
        return {**files, name: mutate_bytes(rng, files[name])}
    if kind == 3:
        return {key: data for key, data in files.items() if key != name}
    return {**files, name: files[other] if kind == 4 else _other_columns(rng, files[name])}


def _other_columns(rng: Random, data: bytes) -> bytes:
    import polars as pl

    from attngeo.io.tables import parquet_bytes, parse_parquet

    frame, _ = parse_parquet(data)
    name = rng.choice(frame.columns)
    kind = rng.randrange(6)
    if kind == 0:
        frame = frame.drop(name)
    elif kind == 1:
        frame = frame.with_columns(pl.col(name).cast(rng.choice((pl.String, pl.Float32, pl.Int8)), strict=False))
    elif kind == 2:
        frame = frame.clear()
    elif kind == 3:
        frame = frame.with_columns(pl.lit(None).cast(frame.schema[name]).alias(name))
    elif kind == 4:
        frame = frame.with_columns(pl.lit(rng.choice((2**62, -1))).cast(frame.schema[name], strict=False).alias(name))
    else:
        frame = frame.with_columns(pl.lit([1, 2]).alias(rng.choice((name, "added"))))
    return parquet_bytes(frame, {})


def _read(rng: Random, folder: Path, out: Path) -> None:
    """Copy the atlas, read all its tables and add to it; each call may fail on its own."""
    import attngeo
    from attngeo.errors import AttngeoError

    for path in folder.iterdir():
        copy = out / "atlas" / path.name.replace(_SLASH, "/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    atlas = attngeo.Atlas(out / "atlas")
    errors = []
    for use in (
        lambda: str(atlas.status()),
        atlas.models,
        atlas.failures,
        atlas.frame,
        lambda: atlas.sql(_QUERY),
        lambda: atlas.add(out / "missing", workers=0, retry=True),
    ):
        try:
            use()
        except AttngeoError as error:
            errors.append(error)
    if errors:
        raise errors[0]


KINDS = (
    Kind("atlas manifest", _files, _mutate_plain, _read),
    Kind("atlas parts", _files, _mutate_part, _read),
)
