"""References to models on the hub, and the exceptions of the hub's client as one line about a reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from attngeo.errors import AttngeoError, SourceError, disk_is_full, first_line, reason

TRANSIENT = (408, 429, 500, 502, 503, 504)  # HTTP status codes after which another try makes sense


@dataclass(frozen=True)
class HubRef:
    """`org/name[/path][@revision]`: a model on the hub, or a file or a folder in it."""

    repo: str
    path: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        named = f"{self.repo}/{self.path}" if self.path else self.repo
        return named if self.revision == "main" else f"{named}@{self.revision}"


class IncompleteTransfer(Exception):
    """A transfer stopped early or returned other bytes than were asked for; another try may succeed."""


@contextmanager
def hub_errors(ref: HubRef, *, exists: bool = True) -> Iterator[None]:
    """Turn whatever the client raises inside the context into a SourceError.

    exists: the model is known to exist; otherwise the message adds that `ref` is no local folder either
    """
    from huggingface_hub import constants, errors

    missing = "" if exists else "no such folder here, "
    endpoint = constants.ENDPOINT
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
