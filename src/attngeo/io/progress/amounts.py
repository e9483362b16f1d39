"""Amounts in words: parts that are done, the time that is left, bytes."""

from __future__ import annotations


def parts_done(done: int, total: int | None, detail: str = "") -> str:
    """Return how many parts are done, out of how many where that is known, and what else there is to say.

    >>> parts_done(2, 3), parts_done(2, None), parts_done(2, 3, "1 failed")
    ('2 of 3', '2', '2 of 3, 1 failed')
    """
    counts = str(done) if total is None else f"{done} of {total}"
    return f"{counts}, {detail}" if detail else counts


def time_left(seconds: float, done: int, total: int) -> str:
    """Return in words how long the rest takes, if it goes on as in the `seconds` so far.

    >>> time_left(60, 100, 250), time_left(1, 0, 5), time_left(7200, 1, 3)
    ('2 min left', 'time left unknown', '4.0 h left')
    """
    if not done:
        return "time left unknown"
    left = seconds / done * (total - done)
    if left < 90:
        return f"{left:.0f} s left"
    return f"{left / 60:.0f} min left" if left < 5400 else f"{left / 3600:.1f} h left"


def byte_text(count: float) -> str:
    """Return a number of bytes for people.

    >>> byte_text(999), byte_text(3_400_000), byte_text(2.5e12)
    ('999 bytes', '3.4 MB', '2500.0 GB')
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    size, unit = next(((size, unit) for size, unit in ((1e3, "kB"), (1e6, "MB")) if count < 1e3 * size), (1e9, "GB"))
    return f"{count / size:.1f} {unit}"
