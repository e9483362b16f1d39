"""Whole files and byte ranges of one model on the hub, through the hub's own client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

from attngeo.errors import SourceError
from attngeo.weights.sources.hub.errors import TRANSIENT, HubRef, IncompleteTransfer, hub_errors
from attngeo.weights.sources.hub.retry import TRIES, announced, retried, wait_after
from attngeo.weights.sources.hub.snapshot import find_snapshot, model_cache


class HubModel:
    """One model on the hub at one commit: its files, and their content."""

    def __init__(self, ref: HubRef) -> None:
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

        self.ref = ref
        with hub_errors(ref, exists=False):
            validate_repo_id(ref.repo)  # before it becomes part of a path
        if ".." in ref.revision:
            raise SourceError(f"{ref}: {ref.revision!r} is not a revision")
        self.snapshot = find_snapshot(ref)
        self._redirects: dict[str, str] = {}  # file → where the hub last redirected to, which saves a request per range

    @property
    def ranges(self) -> Path:
        """Folder for the ranges of this commit."""
        return model_cache(self.ref) / self.snapshot.commit

    def cached(self, file: str) -> Path | None:
        """Return the path of the whole file in the client's own cache, or None."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.ref.repo, file, revision=self.snapshot.commit)
        return Path(path) if isinstance(path, str) else None

    def size(self, file: str) -> int:
        """Return the bytes of a file, from the listing or, if that does not say, from the hub's answer for the file."""
        size, blob = self.snapshot.files[file]
        if size is None:
            from huggingface_hub import get_hf_file_metadata, hf_hub_url

            url = hf_hub_url(self.ref.repo, file, revision=self.snapshot.commit)
            with hub_errors(self.ref):
                size = retried(self.ref, lambda: get_hf_file_metadata(url)).size
            if size is None:
                raise SourceError(f"{self.ref}: the hub does not tell the size of {file!r}")
            self.snapshot.files[file] = (size, blob)
        return size

    def download(self, file: str, *, quiet: bool = False) -> Path:
        """Download a whole file through the client's own cache, and return its path.

        quiet: without a progress bar, for files that arrive before one is drawn
        """
        from huggingface_hub import hf_hub_download

        with hub_errors(self.ref), _no_progress_bars() if quiet else nullcontext():
            commit = self.snapshot.commit
            return Path(retried(self.ref, lambda: hf_hub_download(self.ref.repo, file, revision=commit)))

    def pieces(self, file: str, start: int, stop: int, closed: Event) -> Iterator[bytes]:
        """Yield bytes [start, stop) of a file; a broken transfer continues where it stopped.

        closed: when it is set, a transfer that is broken or waits to be repeated ends with SourceError
        """
        from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

        position, failed = start, 0
        with hub_errors(self.ref):
            while position < stop:
                redirect = self._redirects.get(file)
                try:
                    for piece in self._request(file, position, stop, redirect):
                        position += len(piece)
                        failed = 0
                        yield piece
                    if position < stop:
                        raise IncompleteTransfer(
                            f"{file}: the transfer of bytes {start} to {stop} stopped at byte {position}"
                        )
                except (IncompleteTransfer, HTTPError) as error:
                    lasting = isinstance(error, HfHubHTTPError) and error.response.status_code not in TRANSIENT
                    if redirect is not None and self._redirects.get(file) == redirect:
                        self._redirects.pop(file, None)  # signed addresses expire: the next request gets a new one
                    failed += 1
                    if failed >= TRIES or (lasting and redirect is None):
                        raise
                    if closed.wait(0 if lasting else announced(wait_after(error, failed), self.ref)):
                        raise SourceError(f"{self.ref}: the transfer of {file} was given up") from None

    def _request(self, file: str, start: int, stop: int, redirect: str | None) -> Iterator[bytes]:
        """Yield bytes [start, stop) of a file from one request, or fewer if the transfer ends early."""
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        own = hf_hub_url(self.ref.repo, file, revision=self.snapshot.commit)
        url = redirect or own
        headers = build_hf_headers(library_name="attngeo")
        if urlsplit(url)[:2] != urlsplit(own)[:2]:
            headers.pop("authorization", None)  # the token is for the hub, not for its storage
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            size = self.size(file)
            if response.status_code != 206:
                raise SourceError(f"{self.ref}: {urlsplit(url).netloc} does not serve byte ranges of {file!r}")
            expected = f"bytes {start}-{stop - 1}/"
            answered = response.headers.get("Content-Range", "")
            if not answered.startswith(expected):
                raise IncompleteTransfer(f"{file}: asked for {expected[:-1]}, received {answered!r}")
            total = answered.removeprefix(expected)
            if total.isdigit() and int(total) != size:
                raise IncompleteTransfer(f"{file}: has {total} bytes, but the listing says {size}")
            self._redirects[file] = str(response.url)
            left = stop - start
            for piece in response.iter_bytes():
                yield piece[:left]
                left -= len(piece)
                if left < 0:
                    raise IncompleteTransfer(f"{file}: received more than {expected[:-1]}")


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Switch the client's progress bars off inside the context, unless the user did already."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
