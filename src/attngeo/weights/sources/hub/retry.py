"""Repeat requests to the hub that failed for a passing reason, after the time that the server asks for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TypeVar

from attngeo.weights.sources.hub.errors import TRANSIENT, IncompleteTransfer

TRIES = 5  # of one request, as long as nothing arrives
FIRST_WAIT = 0.5  # seconds before the second try; doubled at each further one
LONG = 10.0  # seconds; a longer wait is announced
LONGEST_WAIT = 900.0  # seconds; no server is waited for longer

Result = TypeVar("Result")
log = logging.getLogger("attngeo")


def retried(ref: object, call: Callable[[], Result]) -> Result:
    """Return `call()`, tried again while it fails for a passing reason; a hub that cannot be reached is no such reason.

    ref: what is asked for, for the message about a long wait

    >>> retried("org/name", lambda: "answer")
    'answer'
    """
    failed = 0
    while True:
        try:
            return call()
        except Exception as error:
            failed += 1
            if failed >= TRIES or not _is_passing(error):
                raise
            time.sleep(announced(wait_after(error, failed), ref))


def wait_after(error: Exception, failed: int) -> float:
    """Return the seconds to wait after `failed` failures in a row: what the server asks for, or longer each time."""
    response = getattr(_cause(error), "response", None)
    asked = None if response is None else asked_wait(response.headers)
    return FIRST_WAIT * 2 ** (failed - 1) if asked is None else asked


def announced(seconds: float, ref: object) -> float:
    """Return the seconds to wait, after a message where they are so many that one would ask what is going on."""
    if seconds >= LONG:
        log.info("%s: the hub asks to wait %.0f s", ref, seconds)
    return seconds


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which a server wants to be asked again, by the headers of its answer; None: at once.

    >>> asked_wait({"retry-after": "120"}), asked_wait({"ratelimit": '"api";r=0;t=55'}), asked_wait({})
    (120.0, 56.0, None)
    >>> asked_wait({"ratelimit": '"api";r=20;t=55'}) is None  # requests are left
    True
    """
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    waits = []
    if (limit := parse_ratelimit_headers(headers)) is not None and limit.remaining == 0:
        waits.append(limit.reset_in_seconds + 1.0)  # whole seconds, rounded down
    after = headers.get("retry-after") or headers.get("Retry-After") or ""
    if after.strip().isdecimal():
        waits.append(float(after))
    elif after:
        with suppress(ValueError):  # not a date
            waits.append(max(0.0, parsedate_to_datetime(after).timestamp() - time.time()))
    return min(max(waits), LONGEST_WAIT) if waits else None


def _is_passing(error: Exception) -> bool:
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    cause = _cause(error)
    if isinstance(cause, HfHubHTTPError):
        return cause.response.status_code in TRANSIENT
    # A hub to which no connection can be made will not be there a second later.
    unreachable = type(cause).__name__ in ("ConnectError", "ConnectTimeout")
    return isinstance(cause, IncompleteTransfer | HTTPError) and not unreachable


def _cause(error: BaseException) -> BaseException:
    """Return the error of the transport: the client reports it as the cause of a file that is not in its cache."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    return error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
