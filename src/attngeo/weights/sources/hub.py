"""Models on the hub: which one a name means, its files at one commit, and their bytes, through the hub's own client.

HubRef                       `org/name[/path][@revision]`
is_address, parse_address    addresses of the hub's web pages, as pasted from a browser
HubModel                     a model at one commit: names and sizes of its files, whole files, byte ranges
list_models, list_revisions  the models of an organisation, the revisions of a model

Requests that fail for a passing reason are repeated, after the time that the hub asks for. Listings are kept in the
cache, so that what was read once can be read without a network.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from attngeo.errors import AttngeoError, InputError, SourceError, disk_is_full, first_line, reason
from attngeo.io.files import cache_dir, cache_file
from attngeo.weights.sources.folder import is_relative_inside, parse_json_object

Result = TypeVar("Result")
log = logging.getLogger("attngeo")


# ---- names


@dataclass(frozen=True)
class HubRef:
    """`org/name[/path][@revision]`: a model on the hub, or a file or a folder in it."""

    repo: str
    path: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        named = f"{self.repo}/{self.path}" if self.path else self.repo
        return named if self.revision == "main" else f"{named}@{self.revision}"


_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_VIEWS = ("tree", "blob", "resolve", "raw", "commit", "commits")  # pages of a model that name a revision
_NOT_MODELS = ("api", "blog", "collections", "datasets", "docs", "learn", "models", "papers", "spaces", "tasks")


def is_address(ref: str) -> bool:
    """Return whether `ref` is the address of a web page; that of the hub may lack its scheme.

    >>> [is_address(ref) for ref in ("https://huggingface.co/org/name", "hf.co/org/name", "org/name", "gpt2")]
    [True, True, False, False]
    """
    return bool(_SCHEME.match(ref)) or ref.lower().startswith(tuple(f"{host}/" for host in _HOSTS))


def parse_address(ref: str) -> HubRef:
    """Return the model, the revision and the file that the address of a page of the hub names.

    >>> str(parse_address("https://huggingface.co/org/name/tree/v1.0?library=transformers"))
    'org/name@v1.0'
    >>> str(parse_address("https://huggingface.co/gpt2/blob/main/model.safetensors"))
    'gpt2/model.safetensors'
    """
    from huggingface_hub import constants

    def wrong(what: str) -> SourceError:
        return SourceError(
            f"{ref}: {what}; expected the address of a model: https://huggingface.co/org/name or "
            "…/org/name/tree/REVISION"
        )

    try:
        scheme, host, path, *_ = urlsplit(ref if _SCHEME.match(ref) else f"https://{ref}")
    except ValueError as error:
        raise wrong(f"not an address ({error})") from error
    if scheme not in ("http", "https") or host.lower() not in (*_HOSTS, urlsplit(constants.ENDPOINT).netloc.lower()):
        raise wrong("not an address of the hub")
    words = [unquote(word) for word in path.split("/") if word]
    if not words or words[0] in _NOT_MODELS:
        raise wrong("not a page of a model")
    # The first models have no organisation, so that a view may follow their name directly.
    count = 1 if len(words) == 1 or words[1] in _VIEWS else 2
    repo, rest = "/".join(words[:count]), words[count:]
    if not rest:
        return HubRef(repo)
    if rest[0] not in _VIEWS or len(rest) < 2:
        raise wrong(f"a page {rest[0]!r} of model {repo!r} names no weights")
    return HubRef(repo, "/".join(rest[2:]), rest[1])


# ---- errors of the client, and repeated requests

TRANSIENT = (408, 429, 500, 502, 503, 504)  # HTTP status codes after which another try makes sense
TRIES = 5  # of one request, as long as nothing arrives
FIRST_WAIT = 0.5  # seconds before the second try; doubled at each further one
LONGEST_WAIT = 900.0  # seconds; no server is waited for longer
LONG = 10.0  # seconds; a longer wait is announced


class IncompleteTransfer(Exception):
    """A transfer stopped early; another try may succeed."""


@contextmanager
def hub_errors(ref: HubRef, *, exists: bool = True) -> Iterator[None]:
    """Turn whatever the client raises inside the context into a SourceError.

    exists: the model is known to exist; otherwise the message adds that `ref` is no local folder either
    """
    from huggingface_hub import constants, errors

    missing, endpoint = "" if exists else "no such folder here, ", constants.ENDPOINT
    try:
        yield
    except AttngeoError:
        raise
    except errors.GatedRepoError as error:
        raise SourceError(
            f"{ref}: is gated; ask for access at {endpoint}/{ref.repo} and set HF_TOKEN to a token that has it"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise SourceError(
            f"{ref}: no such folder here and no such model at {endpoint} (a private one needs HF_TOKEN)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SourceError(f"{ref}: model {ref.repo!r} has no revision {ref.revision!r}") from error
    except errors.HFValidationError as error:
        raise SourceError(f"{ref}: no such folder, and not a hub id; a folder or `org/name` expected") from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        offline = constants.is_offline_mode()
        why = "HF_HUB_OFFLINE forbids downloading it" if offline else f"{endpoint} cannot be reached"
        raise SourceError(f"{ref}: {missing}not in the cache, and {why}") from error
    except errors.EntryNotFoundError as error:
        raise SourceError(f"{ref}: a file of the model is missing ({first_line(error)})") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        hint = "; set HF_TOKEN" if status in (401, 403) else ""
        raise SourceError(f"{ref}: {endpoint} answered {status}{hint}") from error
    except IncompleteTransfer as error:
        raise SourceError(f"{ref}: {error}") from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # of the transport: refused, reset, timed out
        missing = missing and f"{missing}and "
        raise SourceError(f"{ref}: {missing}{endpoint} cannot be reached ({first_line(error)})") from error
    except OSError as error:
        # Nothing else is written to here.
        why = f"the cache cannot be written ({reason(error)})" if disk_is_full(error) else first_line(error)
        raise SourceError(f"{ref}: {why}") from error
    except (ValueError, TypeError, KeyError) as error:  # of the client, about an answer that it cannot read
        raise SourceError(f"{ref}: {endpoint} does not answer as a hub does ({first_line(error)})") from error


def retried(ref: HubRef, call: Callable[[], Result]) -> Result:
    """Return `call()`, tried again while it fails for a passing reason; a hub that cannot be reached is no such reason.

    >>> retried(HubRef("org/name"), lambda: "answer")
    'answer'
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    failed = 0
    while True:
        try:
            return call()
        except Exception as error:
            cause: BaseException = error
            if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
                cause = error.__cause__  # the error of the transport, for a file that is not in the client's cache
            failed += 1
            unreachable = type(cause).__name__ in ("ConnectError", "ConnectTimeout")
            if failed >= TRIES or unreachable or not _is_passing(cause):
                raise
            time.sleep(_wait_after(cause, failed, ref))


def _is_passing(error: BaseException) -> bool:
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in TRANSIENT
    return isinstance(error, IncompleteTransfer | HTTPError)


def _wait_after(error: BaseException, failed: int, ref: HubRef) -> float:
    """Return the seconds to wait after `failed` failures in a row: what the hub asks for, or longer each time."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    headers = getattr(getattr(error, "response", None), "headers", {})
    limit, after = parse_ratelimit_headers(headers), str(headers.get("retry-after", ""))
    seconds = FIRST_WAIT * (1 << (failed - 1))
    if limit is not None and limit.remaining == 0:
        seconds = float(limit.reset_in_seconds + 1)  # whole seconds, rounded down
    elif after.isdecimal():
        seconds = float(after)
    if seconds >= LONG:
        log.info("%s: the hub asks to wait %.0f s", ref, seconds)
    return min(seconds, LONGEST_WAIT)


# ---- one model


class HubModel:
    """One model on the hub at one commit.

    commit: that the revision names
    files:  the names of its files, relative, with `/` between folders → their sizes in bytes
    cache:  the folder for byte ranges of this commit
    """

    def __init__(self, ref: HubRef) -> None:
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

        self.ref = ref
        with hub_errors(ref, exists=False):
            validate_repo_id(ref.repo)  # before it becomes part of a path
            self.commit, self.files = _listing(ref)
        self.cache = _model_cache(ref) / self.commit
        self._redirects: dict[str, str] = {}  # file → where the hub last redirected to, which saves a request per range

    def cached(self, file: str) -> Path | None:
        """Return the path of the whole file in the client's own cache, or None."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.ref.repo, file, revision=self.commit)
        return Path(path) if isinstance(path, str) else None

    def download(self, file: str, *, quiet: bool) -> Path:
        """Download a whole file into the client's own cache, and return its path.

        quiet: without a progress bar, for files that arrive before one is drawn
        """
        from huggingface_hub import hf_hub_download

        with hub_errors(self.ref), _no_progress_bars() if quiet else nullcontext():
            return Path(retried(self.ref, lambda: hf_hub_download(self.ref.repo, file, revision=self.commit)))

    def pieces(self, file: str, start: int, stop: int, closed: Event) -> Iterator[bytes]:
        """Yield bytes [start, stop) of a file; a broken transfer continues where it stopped.

        closed: when it is set, a transfer that is broken or waits to be repeated ends with SourceError
        """
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

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
                    failed += 1
                    expired = redirect is not None and not _is_passing(error)
                    if failed >= TRIES or not (expired or _is_passing(error)):
                        raise
                    if redirect is not None and self._redirects.get(file) == redirect:
                        self._redirects.pop(file, None)  # a signed address is valid for some time
                    if closed.wait(0 if expired else _wait_after(error, failed, self.ref)):
                        raise SourceError(f"{self.ref}: the transfer of {file} was given up") from None

    def _request(self, file: str, start: int, stop: int, redirect: str | None) -> Iterator[bytes]:
        """Yield bytes [start, stop) of a file from one request, or fewer if the transfer ends early."""
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        own = hf_hub_url(self.ref.repo, file, revision=self.commit)
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
            if response.status_code != 206:
                raise SourceError(f"{self.ref}: {urlsplit(url).netloc} does not serve byte ranges of {file!r}")
            self._redirects[file] = str(response.url)
            yield from response.iter_bytes()


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


# ---- listings


def _model_cache(ref: HubRef) -> Path:
    return cache_dir() / "hub" / f"models--{ref.repo.replace('/', '--')}"


def _listing(ref: HubRef) -> tuple[str, dict[str, int]]:
    """Return the commit that the revision names, and its files; from the caches if the hub does not answer."""
    from huggingface_hub import HfApi, constants, errors

    timeout = constants.HF_HUB_ETAG_TIMEOUT
    try:
        info = retried(
            ref,
            lambda: HfApi().model_info(ref.repo, revision=ref.revision, files_metadata=True, timeout=timeout),
        )
    except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:  # type: ignore[attr-defined]
        answered = isinstance(error, errors.HfHubHTTPError) and error.response.status_code not in TRANSIENT
        if answered or (known := _known_listing(ref)) is None:
            raise
        if not constants.is_offline_mode():  # the revision may name another commit by now
            log.warning("%s: %s does not answer, commit %s is read from the cache", ref, constants.ENDPOINT, known[0])
        return known
    commit = str(info.sha)
    # The server's names become paths in the cache, and must not lead out of it.
    found = [file for file in info.siblings or [] if is_relative_inside(file.rfilename)]
    files = {file.rfilename: file.size for file in found if file.size is not None}
    if not re.fullmatch(r"\w+", commit) or len(files) < len(found):
        raise SourceError(f"{ref}: {constants.ENDPOINT} names no commit for it, or no sizes of its files")
    for name in {ref.revision, commit}:
        try:
            with cache_file(_listing_file(ref, name)) as file:
                file.write(json.dumps({"commit": commit, "files": files}).encode())
        except OSError:
            continue  # a cache that cannot be written is no reason to fail
    return commit, files


def _listing_file(ref: HubRef, revision: str) -> Path:
    return _model_cache(ref) / "listings" / f"{quote(revision, safe='')}.json"


def _known_listing(ref: HubRef) -> tuple[str, dict[str, int]] | None:
    """Return the listing that attngeo kept of the revision, else the files that the client has of it, else None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    path = _listing_file(ref, ref.revision)
    try:
        listing = parse_json_object(path.read_bytes(), str(path))
        return listing["commit"], listing["files"]
    except (OSError, SourceError, KeyError):
        pass  # none, or a damaged one
    try:
        folder = Path(snapshot_download(ref.repo, revision=ref.revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return folder.name, {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def list_models(organisation: str) -> list[str]:
    """Return the hub ids of all models of an organisation or a user, sorted."""
    from huggingface_hub import HfApi, constants

    if not organisation or "/" in organisation:
        raise InputError(f"{organisation!r}: not an organisation of the hub, expected a name without a slash")
    ref = HubRef(organisation)
    with hub_errors(ref):
        found = retried(ref, lambda: sorted(model.id for model in HfApi().list_models(author=organisation)))
    if not found:
        raise SourceError(f"{organisation}: has no models at {constants.ENDPOINT}")
    return found


def list_revisions(ref: HubRef) -> list[str]:
    """Return the names of all revisions of a model: branches and tags; if there is only `main`, its commits in order.

    Training runs keep their checkpoints as branches (step1000, …), as tags, or as commits.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with hub_errors(ref):
        refs = retried(ref, lambda: api.list_repo_refs(ref.repo))
        names = [branch.name for branch in refs.branches] + [tag.name for tag in refs.tags]
        if names != ["main"]:
            return list(dict.fromkeys(names))
        commits = retried(ref, lambda: api.list_repo_commits(ref.repo))
    return [commit.commit_id for commit in commits[::-1]]
