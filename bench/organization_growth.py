"""Growth of the time and memory of `organize` with each axis: `python -m bench.organization_growth [FIGURE.png]`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from attngeo.organization import organize, planted
from attngeo.show.matplotlib import new_figure, save_figure
from bench._memory import peak_bytes, reset_peak, resident_bytes

AXES = ("queries", "keys", "heads")
SIZES = (64, 96, 128, 192, 256, 384, 512, 768)
OTHERS = 96  # length of the other two axes
RUNS = 5


def measure(shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the seconds of a call (the least of a few) and the megabytes beyond its tensor, in a separate process."""
    code = "import sys; from bench.organization_growth import report; report(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, json.dumps(shape)], check=True, capture_output=True, text=True)
    seconds, megabytes = json.loads(done.stdout)
    return seconds, megabytes


def report(shape: str) -> None:
    """Measure the calls for a shape given as JSON, and print the result as JSON."""
    organize(planted((24, 24, 12))[0].astype(np.float32))
    array = planted(json.loads(shape))[0].astype(np.float32)
    before = resident_bytes()
    reset_peak()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        organize(array)
        times.append(time.perf_counter() - start)
    print(json.dumps((min(times), (peak_bytes() - before) / 1e6)))


def slope(values: list[float]) -> float:
    """Return the exponent of growth over the upper half of the sizes."""
    half = len(SIZES) // 2
    return float(np.polyfit(np.log(SIZES[half:]), np.log(values[half:]), 1)[0])


def main() -> int:
    measured: dict[str, list[tuple[float, float]]] = {}
    for index, axis in enumerate(AXES):
        shapes = [tuple(size if a == index else OTHERS for a in range(3)) for size in SIZES]
        measured[axis] = [measure(shape) for shape in shapes]
        seconds, megabytes = ([pair[x] for pair in measured[axis]] for x in range(2))
        print(f"{axis} {SIZES[0]} … {SIZES[-1]}, other axes {OTHERS}:", end=" ")
        print(f"{seconds[-1] / seconds[0]:.1f} × the time, growing as n^{slope(seconds):.1f};", end=" ")
        print(
            f"{megabytes[0]:.0f} … {megabytes[-1]:.0f} MB beyond the tensor, growing as n^{slope(megabytes):.1f}",
            flush=True,
        )
    if len(sys.argv) > 1:
        draw(measured, sys.argv[1])
    return 0


def draw(measured: dict[str, list[tuple[float, float]]], path: str) -> None:
    """Write the figure of experiments/organization/RESULTS.md to `path`."""
    from matplotlib.ticker import LogLocator

    figure = new_figure(9.5, 3.8)
    left, right = figure.subplots(1, 2)
    for (axis, pairs), mark in zip(measured.items(), "osD", strict=True):
        for panel, index in ((left, 0), (right, 1)):
            values = [pair[index] for pair in pairs]
            unit = measured["queries"][0][0] if panel is left else 1.0
            panel.loglog(SIZES, np.divide(values, unit), f"{mark}-", ms=4, label=f"{axis}, n^{slope(values):.1f}")
    tensor = [4e-6 * size * OTHERS**2 for size in SIZES]
    right.loglog(SIZES, tensor, "--", color="0.5", lw=1, label="the tensor itself")
    relative = f"time divided by that of ({SIZES[0]}, {OTHERS}, {OTHERS})"
    for panel, name in ((left, relative), (right, "megabytes beyond the tensor")):
        panel.set_xlabel(f"length of one axis; the other two have {OTHERS}")
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
