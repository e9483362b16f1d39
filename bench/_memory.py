"""Memory of this process as the kernel counts it, on Linux.

`ru_maxrss` of a new process would begin with the peak of its parent.
"""

from __future__ import annotations

from pathlib import Path


def resident_bytes() -> int:
    """Return the memory in use."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """Return the largest memory in use since the last `reset_peak`."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Start a new measurement of the peak."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
