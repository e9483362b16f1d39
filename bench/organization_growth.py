"""How time and memory of organising grow with each axis. `python -m bench.organization_growth [FIGURE.png]`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from attngeo.organization import organize, planted
from attngeo.show.canvas import new_figure, save_figure
from bench._memory import forget_peak, peak_bytes, resident_bytes

AXES = ("queries", "keys", "heads")
SIZES = (64, 96, 128, 192, 256, 384, 512, 768)
OTHERS = 96  # length of the two axes that stay
RUNS = 5


def one(shape: tuple[int, ...]) -> tuple[float, float]:
    """Seconds of a call (the least of a few) and megabytes it needed beyond its tensor, in a process of its own."""
    code = "import sys; from bench.organization_growth import report; report(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, json.dumps(shape)], check=True, capture_output=True, text=True)
    seconds, megabytes = json.loads(done.stdout)
    return seconds, megabytes


def report(shape: str) -> None:
    organize(planted((24, 24, 12))[0].astype(np.float32))
    array = planted(json.loads(shape))[0].astype(np.float32)
    before = resident_bytes()
    forget_peak()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        organize(array)
        times.append(time.perf_counter() - start)
    print(json.dumps((min(times), (peak_bytes() - before) / 1e6)))


def slope(values: list[float]) -> float:
    """Exponent of the growth over the upper half of the sizes."""
    half = len(SIZES) // 2
    return float(np.polyfit(np.log(SIZES[half:]), np.log(values[half:]), 1)[0])


def main() -> int:
    found: dict[str, list[tuple[float, float]]] = {}
    for place, axis in enumerate(AXES):
        shapes = [tuple(size if a == place else OTHERS for a in range(3)) for size in SIZES]
        found[axis] = [one(shape) for shape in shapes]
        seconds, megabytes = ([pair[x] for pair in found[axis]] for x in range(2))
        print(f"{axis} {SIZES[0]} … {SIZES[-1]}, other axes {OTHERS}:", end=" ")
        print(f"{seconds[-1] / seconds[0]:.1f} × the time, at last as n^{slope(seconds):.1f};", end=" ")
        print(f"{megabytes[0]:.0f} … {megabytes[-1]:.0f} MB beyond the tensor, as n^{slope(megabytes):.1f}", flush=True)
    if len(sys.argv) > 1:
        draw(found, sys.argv[1])
    return 0


def draw(found: dict[str, list[tuple[float, float]]], path: str) -> None:
    from matplotlib.ticker import LogLocator

    figure = new_figure(9.5, 3.8)
    left, right = figure.subplots(1, 2)
    for (axis, pairs), mark in zip(found.items(), "osD", strict=True):
        for panel, place in ((left, 0), (right, 1)):
            values = [pair[place] for pair in pairs]
            unit = found["queries"][0][0] if panel is left else 1.0
            panel.loglog(SIZES, np.divide(values, unit), f"{mark}-", ms=4, label=f"{axis}, n^{slope(values):.1f}")
    tensor = [4e-6 * size * OTHERS**2 for size in SIZES]
    right.loglog(SIZES, tensor, "--", color="0.5", lw=1, label="the tensor itself")
    least = f"time over that of ({SIZES[0]}, {OTHERS}, {OTHERS})"
    for panel, name in ((left, least), (right, "megabytes beyond the tensor")):
        panel.set_xlabel(f"length of one axis, the other two {OTHERS}")
        panel.set_ylabel(name)
        panel.set_xticks(SIZES, [str(size) for size in SIZES])
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    save_figure(figure, Path(path))


if __name__ == "__main__":
    sys.exit(main())
