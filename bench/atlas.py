"""Measure and disturb an atlas: `python -m bench.atlas [PART...]`, by default all parts, each of which has a target.

hub        500 checkpoints of 12 layouts from a hub on this machine that limits requests and fails now and then
kills      500 checkpoints, 28 processes killed at random moments: the calling one and workers
ray_kills  500 checkpoints, 12 processes killed at random moments: the calling one and those of Ray
node       a Ray of two nodes on this machine, one of which is killed midway
workers    two worker processes against one
overhead   what an atlas adds to scoring a model
memory     the process that adds 5,000 models
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attngeo
from attngeo.atlas.reference import Reference
from attngeo.atlas.store import Store
from attngeo.atlas.task import ScoreTask
from attngeo.io.threads import one_core
from bench._memory import resident_bytes
from tests.atlas.hub import UnreliableHub, atlas_command, small_repos
from tests.atlas.kills import Victim, contents, fill_with_kills, finished, start_add
from tests.atlas.processes import wait_until
from tests.atlas.ray_cluster import RayCluster
from tests.atlas.small_models import LAYOUTS, make_models

CHECKPOINTS = 500
LOCAL_KILLS, RAY_KILLS = 28, 12
ENTRIES = 5000
LEAST_SPEEDUP = 1.7
MOST_OVERHEAD = 0.020  # seconds, median
MOST_GROWTH = 4 << 20  # bytes from 500 to 5,000 models: their names, and what the allocator leaves unused


def hub(folder: Path) -> bool:
    """Score models from an unreliable hub with two workers."""
    repos, seconds = small_repos(CHECKPOINTS), 10.0
    start = time.perf_counter()
    with UnreliableHub(repos, limits={"api": 50, "file": 200}, seconds=seconds, every=20) as server:
        run = atlas_command(folder, server.url, "add", folder / "atlas", *repos, "--workers", "2")
    scored = f"{CHECKPOINTS} scored" in run.stderr
    faults = ", ".join(f"{count} × {fault}" for fault, count in sorted(server.faults.items()))
    needed = sum(len(repo.files["model.safetensors"]) for repo in repos.values())
    print(
        f"hub: {run.stderr.strip()[-500:]}; {faults}; "
        f"{server.refused} requests refused for {seconds:.0f} s after each 50 listings or 200 files; "
        f"{server.fetched_twice()} bytes fetched again, {server.sent('.safetensors') / 1e6:.1f} of {needed / 1e6:.1f} "
        f"MB; {time.perf_counter() - start:.0f} s"
    )
    return scored and server.fetched_twice() == 0


def kills(folder: Path) -> bool:
    """Kill local processes while models are added, and compare with an undisturbed run."""
    names, expected = undisturbed(folder, CHECKPOINTS)
    start, atlas = time.perf_counter(), folder / "local"
    pattern: list[Victim] = ["driver", "worker", "worker"]
    victims = (pattern * LOCAL_KILLS)[:LOCAL_KILLS]
    count = fill_with_kills(atlas, CHECKPOINTS, victims, 0, lambda: start_add(atlas, names, "--workers", "2"))
    return compared("kills", count, LOCAL_KILLS, contents(atlas) == expected, time.perf_counter() - start)


def ray_kills(folder: Path) -> bool:
    """The same with processes of Ray."""
    names, expected = undisturbed(folder, CHECKPOINTS)
    start, atlas = time.perf_counter(), folder / "ray"
    pattern: list[Victim] = ["worker", "driver", "worker"]
    victims = (pattern * RAY_KILLS)[:RAY_KILLS]
    with RayCluster() as cluster:

        def add() -> subprocess.Popen[bytes]:
            return start_add(atlas, names, "--ray", cluster.address, environment=cluster.environment)

        count = fill_with_kills(atlas, CHECKPOINTS, victims, 1, add, cluster.pid)
    return compared("ray_kills", count, RAY_KILLS, contents(atlas) == expected, time.perf_counter() - start)


def compared(part: str, killed: int, wanted: int, same: bool, seconds: float) -> bool:
    """Print and return whether an atlas is that of an undisturbed run after so many kills."""
    files = "the same files, byte by byte" if same else "OTHER FILES"
    print(f"{part}: {killed} processes killed while {CHECKPOINTS} models were added: {files}, {seconds:.0f} s")
    return same and killed == wanted


def node(folder: Path) -> bool:
    """Kill one of two nodes of a Ray when a third of the models is done."""
    count = 120
    names, expected = undisturbed(folder, count)
    start = time.perf_counter()
    with RayCluster() as cluster:
        atlas = folder / "ray"
        process = start_add(atlas, names, "--ray", cluster.address, environment=cluster.environment)
        try:
            wait_until(lambda: finished(atlas) >= count // 3)
            done = finished(atlas)
            cluster.kill_node()
            code = process.wait()
        finally:
            process.kill()
    same = code == 0 and contents(atlas) == expected
    seconds = time.perf_counter() - start
    print(
        f"node: killed after {done} of {count} models: {'the same rows, bit for bit' if same else 'OTHER ROWS'}, "
        f"{seconds:.0f} s"
    )
    return same and done < count


def workers(folder: Path) -> bool:
    """Compare two worker processes with one, in turn, on the same models; other programs can only make a run slower."""
    models = make_models(folder / "models", 192, layers=4)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for number in range(5):
        for count, times in seconds.items():
            start = time.perf_counter()
            assert attngeo.Atlas(folder / f"{number}-{count}").add(models, workers=count).scored == len(models)
            times.append(time.perf_counter() - start)
    one, two = map(min, seconds.values())
    print(
        f"workers: {len(models)} models in {one:.2f} s with one worker, in {two:.2f} s with two: {one / two:.2f} × as "
        f"fast (at least {LEAST_SPEEDUP}), the shortest of 5 runs each, with the start of the workers"
    )
    return one / two >= LEAST_SPEEDUP


def overhead(folder: Path) -> bool:
    """Compare adding a model with scoring it, both on one core of this process."""
    models = make_models(folder / "models", 72, layers=4)
    atlas = attngeo.Atlas(folder / "atlas")
    atlas.add(models[:12], workers=0)
    store = Store(atlas.path)
    extra, scoring = [], []
    for model in models[12:]:
        start = time.perf_counter()
        with one_core():
            attngeo.score(model, folded=True)
        middle = time.perf_counter()
        assert ScoreTask(Reference.parse(model)).run(store).state == "scored"
        extra.append(time.perf_counter() - middle - (middle - start))
        scoring.append(middle - start)
    median = statistics.median(extra)
    print(
        f"overhead: {1e3 * median:.1f} ms per model (at most {1e3 * MOST_OVERHEAD:.0f}), median of {len(extra)}, "
        f"beside {1e3 * statistics.median(scoring):.1f} ms for scoring"
    )
    return median <= MOST_OVERHEAD


def memory(folder: Path) -> bool:
    """Add 5,000 copies of 12 models, and watch the memory of the process that hands out the work."""
    originals = make_models(folder / "originals", len(LAYOUTS))
    models = []
    for i in range(ENTRIES):
        copy = folder / "models" / f"{i:04}"
        copy.mkdir(parents=True)
        for file in originals[i % len(originals)].iterdir():
            (copy / file.name).hardlink_to(file)
        models.append(copy)
    resident: dict[int, int] = {}

    def watch(done: int, total: int) -> None:
        if done % (ENTRIES // 10) == 0:
            resident[done] = resident_bytes()

    atlas = attngeo.Atlas(folder / "atlas")
    start = time.perf_counter()
    added = atlas.add(models, workers=2, progress=watch)
    seconds = time.perf_counter() - start
    growth = resident[ENTRIES] - resident[ENTRIES // 10]
    print(
        f"memory: {resident[ENTRIES // 10] / 2**20:.1f} MiB after {ENTRIES // 10} models, "
        f"{resident[ENTRIES] / 2**20:.1f} MiB after {ENTRIES}: {growth / 2**20:+.1f} MiB (at most "
        f"{MOST_GROWTH / 2**20:.0f}); {added}; {1e3 * seconds / ENTRIES:.0f} ms per model with two workers"
    )
    return growth <= MOST_GROWTH and atlas.status().models == ENTRIES


def undisturbed(folder: Path, count: int) -> tuple[Path, dict[str, bytes]]:
    """Return a list of models, and the files of an atlas that one process filled with them."""
    models = make_models(folder / "models", count)
    names = folder / "models.txt"
    names.write_text("".join(f"{model}\n" for model in models))
    atlas = attngeo.Atlas(folder / "undisturbed")
    assert atlas.add(models, workers=2).scored == count
    return names, contents(atlas.path)


PARTS: dict[str, Callable[[Path], bool]] = {
    "workers": workers, "overhead": overhead, "hub": hub, "kills": kills, "ray_kills": ray_kills, "node": node,
    "memory": memory,
}  # fmt: skip


def main() -> int:
    met = True
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            met &= PARTS[name](Path(folder))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
