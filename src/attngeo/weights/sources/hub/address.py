"""Addresses of the hub's web pages, as pasted from a browser."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from attngeo.errors import SourceError
from attngeo.weights.sources.hub.errors import HubRef

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_VIEWS = ("tree", "blob", "resolve", "raw", "commit", "commits")  # pages of a model that name a revision
_NOT_MODELS = ("api", "blog", "collections", "datasets", "docs", "learn", "models", "papers", "spaces", "tasks")
_EXPECTED = "expected the address of a model: https://huggingface.co/org/name or …/org/name/tree/REVISION"


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
    address = ref if _SCHEME.match(ref) else f"https://{ref}"
    try:
        scheme, host, path, *_ = urlsplit(address)
    except ValueError as error:
        raise SourceError(f"{ref}: not an address ({error}); {_EXPECTED}") from error
    if scheme not in ("http", "https") or host.lower() not in (*_HOSTS, _endpoint_host()):
        raise SourceError(f"{ref}: not an address of the hub; {_EXPECTED}")
    words = [unquote(word) for word in path.split("/") if word]
    if not words or words[0] in _NOT_MODELS:
        raise SourceError(f"{ref}: not a page of a model; {_EXPECTED}")
    # The first models have no organisation, so that a view may follow their name directly.
    count = 1 if len(words) == 1 or words[1] in _VIEWS else 2
    repo, rest = "/".join(words[:count]), words[count:]
    if not rest:
        return HubRef(repo)
    if rest[0] not in _VIEWS or len(rest) < 2:
        raise SourceError(f"{ref}: a page {rest[0]!r} of model {repo!r} names no weights; {_EXPECTED}")
    return HubRef(repo, "/".join(rest[2:]), rest[1])


def _endpoint_host() -> str:
    """Return the host of the hub that the client uses."""
    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT).netloc.lower()
