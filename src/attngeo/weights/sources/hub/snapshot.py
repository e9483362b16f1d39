"""The files of a model on the hub at one commit: from the hub, or from what the caches remember of it."""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from attngeo.errors import SourceError
from attngeo.io.files import cache_dir, cache_file
from attngeo.weights.sources.discover import is_relative_inside, parse_json_object
from attngeo.weights.sources.hub.errors import TRANSIENT, HubRef, hub_errors
from attngeo.weights.sources.hub.retry import retried

log = logging.getLogger("attngeo")


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit: name → (size in bytes, or None if unknown; content id)."""

    commit: str
    files: dict[str, tuple[int | None, str]]


def model_cache(ref: HubRef) -> Path:
    """Return the folder of attngeo's cache for one model."""
    return cache_dir() / "hub" / f"models--{ref.repo.replace('/', '--')}"


def find_snapshot(ref: HubRef) -> Snapshot:
    """Return the commit that the revision names and its files; from the caches if the hub does not answer."""
    from huggingface_hub import HfApi, constants, errors

    with hub_errors(ref, exists=False):
        try:
            info = retried(
                ref,
                lambda: HfApi().model_info(
                    ref.repo,
                    revision=None if ref.revision == "main" else ref.revision,
                    files_metadata=True,
                    timeout=constants.HF_HUB_ETAG_TIMEOUT,
                ),
            )
        except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:  # type: ignore[attr-defined]
            answered = isinstance(error, errors.HfHubHTTPError) and error.response.status_code not in TRANSIENT
            if answered or (known := _recall(ref)) is None:
                raise
            if not constants.is_offline_mode():  # the revision may name another commit by now
                log.warning(
                    "%s: %s does not answer, commit %s is read from the cache", ref, constants.ENDPOINT, known.commit
                )
            return known
        # The server's names become paths in the cache, and must not lead out of it.
        siblings = [file for file in info.siblings or [] if is_relative_inside(file.rfilename)]
        files = {file.rfilename: (file.size, str(file.blob_id)) for file in siblings}
        if not re.fullmatch(r"\w+", str(info.sha)):
            raise SourceError(f"{ref}: {constants.ENDPOINT} names no commit for it")
        return _remember(ref, Snapshot(str(info.sha), files))


def _remember(ref: HubRef, snapshot: Snapshot) -> Snapshot:
    """Keep the listing, and the commit that the revision names, for runs without a network."""
    home = model_cache(ref)
    try:
        listing = home / snapshot.commit / "files.json"
        data = json.dumps(snapshot.files, sort_keys=True).encode()
        if listing.is_file() and listing.read_bytes() != data:
            shutil.rmtree(listing.parent, ignore_errors=True)  # of another hub with the same commit id
        with cache_file(listing) as file:
            file.write(data)
        with cache_file(home / "refs" / quote(ref.revision, safe="")) as file:
            file.write(snapshot.commit.encode())
    except OSError:
        pass  # a cache that cannot be written is no reason to fail
    return snapshot


def _recall(ref: HubRef) -> Snapshot | None:
    """Return the listing that attngeo kept of the revision, else the files that the client has of it, else None."""
    from huggingface_hub import constants

    home = model_cache(ref)
    commit = _read_commit(home / "refs" / quote(ref.revision, safe="")) or ref.revision
    if (known := _read_listing(home / commit / "files.json")) is not None:
        return Snapshot(commit, known)
    client = Path(constants.HF_HUB_CACHE) / home.name
    commit = _read_commit(client / "refs" / ref.revision) or ref.revision
    folder = client / "snapshots" / commit
    paths = [path for path in folder.rglob("*") if path.is_file()]
    files: dict[str, tuple[int | None, str]] = {
        path.relative_to(folder).as_posix(): (path.stat().st_size, "") for path in paths
    }
    return Snapshot(commit, files) if files else None


def _read_listing(path: Path) -> dict[str, tuple[int | None, str]] | None:
    """Return the files of a listing in the cache; None if there is none, or if it is damaged."""
    try:
        listing = parse_json_object(path.read_bytes(), str(path))
        files = {name: (size, str(blob)) for name, (size, blob) in listing.items()}
    except (OSError, SourceError, ValueError, TypeError):
        return None
    sound = all(is_relative_inside(name) and (size is None or type(size) is int) for name, (size, _) in files.items())
    return files if sound else None


def _read_commit(path: Path) -> str | None:
    """Return the commit in a file of the cache, None if there is none or if it is damaged."""
    try:
        commit = path.read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
    return commit if re.fullmatch(r"\w+", commit) else None
