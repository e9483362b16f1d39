"""The hub through its own client: listing a repository, small files, byte ranges; every failure one line."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from attngeo.errors import SourceError, first_line
from attngeo.io.cache import cache_dir, cache_file
from attngeo.weights.sources.discover import parse_json, stays_inside

TRIES = 5  # of one range, as long as nothing arrives
FIRST_WAIT = 0.5  # seconds, doubled at every try
_TRANSIENT = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class HubRef:
    """`org/name[/path][@revision]`: a model on the hub, or a file or folder of it."""

    repo: str
    path: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        named = f"{self.repo}/{self.path}" if self.path else self.repo
        return named if self.revision == "main" else f"{named}@{self.revision}"


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit: name → (size in bytes or None where unknown, content id)."""

    commit: str
    files: dict[str, tuple[int | None, str]]


class Incomplete(Exception):
    """A transfer that stopped early or came back wrong; worth another try."""


@contextmanager
def one_line(ref: HubRef, *, found: bool = True) -> Iterator[None]:
    """Turn whatever the client raises into a SourceError that says what to do; `found`: the model is known to exist."""
    from huggingface_hub import constants, errors

    where = "" if found else "no such folder here, "
    try:
        yield
    except errors.GatedRepoError as error:
        raise SourceError(
            f"{ref}: gated; ask for access at {constants.ENDPOINT}/{ref.repo} and set HF_TOKEN to a token that has it"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise SourceError(
            f"{ref}: no such folder here and no such model at {constants.ENDPOINT} (a private one needs HF_TOKEN)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SourceError(f"{ref}: model {ref.repo!r} has no revision {ref.revision!r}") from error
    except errors.HFValidationError as error:
        raise SourceError(f"{ref}: no such folder here, and not a hub id; a folder or `org/name` expected") from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        why = (
            "HF_HUB_OFFLINE forbids fetching it"
            if constants.is_offline_mode()
            else f"{constants.ENDPOINT} is out of reach"
        )
        raise SourceError(f"{ref}: {where}not in the cache, and {why}") from error
    except errors.EntryNotFoundError as error:
        raise SourceError(f"{ref}: a file of the model is missing ({first_line(error)})") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        hint = "; set HF_TOKEN" if status in (401, 403) else ""
        raise SourceError(f"{ref}: {constants.ENDPOINT} answered {status}{hint}") from error
    except Incomplete as error:
        raise SourceError(f"{ref}: {error}") from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # the transport's own: refused, reset, timed out
        raise SourceError(f"{ref}: {where}cannot reach {constants.ENDPOINT} ({first_line(error)})") from error
    except OSError as error:
        raise SourceError(f"{ref}: {first_line(error)}") from error


@contextmanager
def _no_bars() -> Iterator[None]:
    """No progress bar for a file that is here before it is drawn."""
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


class Hub:
    """One model on the hub, at one commit."""

    def __init__(self, ref: HubRef) -> None:
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

        self.ref = ref
        with one_line(ref, found=False):
            validate_repo_id(ref.repo)  # before it becomes part of a path
        if ".." in ref.revision:
            raise SourceError(f"{ref}: {ref.revision!r} is not a revision")
        self.home = cache_dir() / "hub" / f"models--{ref.repo.replace('/', '--')}"
        self.snapshot = self._resolve()
        self._direct: dict[str, str] = {}  # file → where the hub last redirected to: saves a hop a range

    @property
    def ranges(self) -> Path:
        """Folder of the ranges kept for this commit."""
        return self.home / self.snapshot.commit

    def cached(self, file: str) -> Path | None:
        """The whole file in the client's own cache, if it is there."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.ref.repo, file, revision=self.snapshot.commit)
        return Path(path) if isinstance(path, str) else None

    def size(self, file: str) -> int:
        """Bytes of the file, from the listing or, where that has none, from the file's own answer."""
        size, blob = self.snapshot.files[file]
        if size is None:
            from huggingface_hub import get_hf_file_metadata, hf_hub_url

            with one_line(self.ref):
                size = get_hf_file_metadata(hf_hub_url(self.ref.repo, file, revision=self.snapshot.commit)).size
            if size is None:
                raise SourceError(f"{self.ref}: {file!r} has no known size")
            self.snapshot.files[file] = (size, blob)
        return size

    def download(self, file: str, *, quiet: bool = False) -> Path:
        """The whole file, through the client's own cache."""
        from huggingface_hub import hf_hub_download

        with one_line(self.ref), _no_bars() if quiet else nullcontext():
            return Path(hf_hub_download(self.ref.repo, file, revision=self.snapshot.commit))

    def pieces(self, file: str, start: int, stop: int) -> Iterator[bytes]:
        """Bytes [start, stop) of a file; a broken transfer is taken up where it stopped."""
        from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

        position, failed = start, 0
        with one_line(self.ref):
            while position < stop:
                direct = self._direct.get(file)
                try:
                    for piece in self._request(file, position, stop, direct):
                        position += len(piece)
                        failed = 0
                        yield piece
                    if position < stop:
                        raise Incomplete(f"{file}: transfer stopped at byte {position} of {start} to {stop}")
                except (Incomplete, HTTPError) as error:
                    lasting = isinstance(error, HfHubHTTPError) and error.response.status_code not in _TRANSIENT
                    if direct is not None and self._direct.get(file) == direct:
                        self._direct.pop(file, None)  # signed addresses expire: ask the hub for a new one
                    failed += 1
                    if failed >= TRIES or (lasting and direct is None):
                        raise
                    if not lasting:
                        time.sleep(FIRST_WAIT * 2 ** (failed - 1))

    def _request(self, file: str, start: int, stop: int, direct: str | None) -> Iterator[bytes]:
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        own = hf_hub_url(self.ref.repo, file, revision=self.snapshot.commit)
        url = direct or own
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
            if not response.headers.get("Content-Range", "").startswith(expected):
                raise Incomplete(f"{file}: asked for {expected[:-1]}, got {response.headers.get('Content-Range')!r}")
            total = response.headers["Content-Range"].removeprefix(expected)
            if total.isdigit() and int(total) != size:
                raise Incomplete(f"{file}: has {total} bytes, {size} announced")
            self._direct[file] = str(response.url)
            left = stop - start
            for piece in response.iter_bytes():
                yield piece[:left]
                left -= len(piece)
                if left < 0:
                    raise Incomplete(f"{file}: more bytes than {expected[:-1]} came back")

    def _resolve(self) -> Snapshot:
        """The commit behind the revision and its files: from the hub, else from what the caches remember."""
        from huggingface_hub import HfApi, constants, errors

        with one_line(self.ref, found=False):
            try:
                info = HfApi().model_info(
                    self.ref.repo,
                    revision=None if self.ref.revision == "main" else self.ref.revision,
                    files_metadata=True,
                    timeout=constants.HF_HUB_ETAG_TIMEOUT,
                )
            except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:  # type: ignore[attr-defined]
                answered = isinstance(error, errors.HfHubHTTPError) and error.response.status_code not in _TRANSIENT
                if answered or (known := self._recall()) is None:
                    raise
                return known
            # what the server says becomes part of paths in the cache: nothing of it may lead out of there
            files = {
                file.rfilename: (file.size, str(file.blob_id))
                for file in info.siblings or []
                if stays_inside(file.rfilename)
            }
            if not re.fullmatch(r"\w+", str(info.sha)):
                raise SourceError(f"{self.ref}: {constants.ENDPOINT} names no commit for it")
            return self._remember(Snapshot(str(info.sha), files))

    def _remember(self, snapshot: Snapshot) -> Snapshot:
        """Record the listing and what the revision stands for, for the day without a network."""
        try:
            listing = self.home / snapshot.commit / "files.json"
            data = json.dumps(snapshot.files, sort_keys=True).encode()
            if listing.is_file() and listing.read_bytes() != data:
                shutil.rmtree(listing.parent, ignore_errors=True)  # another hub under the same commit id
            with cache_file(listing) as file:
                file.write(data)
            with cache_file(self.home / "refs" / quote(self.ref.revision, safe="")) as file:
                file.write(snapshot.commit.encode())
        except OSError:
            pass  # a cache that cannot be written is no reason to fail
        return snapshot

    def _recall(self) -> Snapshot | None:
        """The listing attngeo kept of the revision, else the files the client has of it."""
        from huggingface_hub import constants

        commit = _read_ref(self.home / "refs" / quote(self.ref.revision, safe="")) or self.ref.revision
        listing = self.home / commit / "files.json"
        if listing.is_file():
            known = parse_json(listing.read_bytes(), str(listing))
            return Snapshot(commit, {name: (size, blob) for name, (size, blob) in known.items()})
        theirs = Path(constants.HF_HUB_CACHE) / self.home.name
        commit = _read_ref(theirs / "refs" / self.ref.revision) or self.ref.revision
        folder = theirs / "snapshots" / commit
        paths = [path for path in folder.rglob("*") if path.is_file()]
        found: dict[str, tuple[int | None, str]] = {
            path.relative_to(folder).as_posix(): (path.stat().st_size, "") for path in paths
        }
        return Snapshot(commit, found) if found else None


def _read_ref(path: Path) -> str | None:
    return path.read_text().strip() if path.is_file() else None
