"""References to models: which model a line names, which state of it is meant, and lists of many references."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngeo.errors import AttngeoError, InputError
from attngeo.io.archive import digest
from attngeo.io.files import read_text
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.folder import file_state
from attngeo.weights.sources.open import hub_reference, looks_like_path, open_checkpoint

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Reference:
    """A model as an atlas names it.

    >>> Reference.parse("org/name@v1.0")
    Reference(model='org/name', revision='v1.0')
    """

    model: str  # `org/name[/path]` on the hub, or an absolute path
    revision: str | None  # on the hub: as it was asked for; None: files on this machine

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> Reference:
        """Return the reference that a user typed; a path that exists wins over a hub id of the same name."""
        name = os.fspath(text)
        path = os.path.expanduser(name)
        if name and (os.path.exists(path) or looks_like_path(name)):
            return cls(os.path.abspath(path), None)
        try:
            ref = hub_reference(name)
        except AttngeoError as error:
            raise InputError(str(error)) from None
        return cls(f"{ref.repo}/{ref.path}" if ref.path else ref.repo, ref.revision)

    def __str__(self) -> str:
        return self.model if self.revision in (None, "main") else f"{self.model}@{self.revision}"

    def state(self) -> str | None:
        """Return what `locate` will return as the state, where that needs no request to the hub; else None."""
        if self.revision is not None:
            return self.revision if _COMMIT.fullmatch(self.revision) else None
        path = Path(self.model)
        # What lies beside a file of weights may be its config, or another part of the weights.
        state = file_state(path if path.is_dir() else path.parent) if path.exists() else None
        return None if state is None else digest(os.path.realpath(path), *state)

    def size(self) -> int | None:
        """Return the bytes of the files on this machine; None if the model is on the hub or cannot be found."""
        if self.revision is not None:
            return None
        path = Path(self.model)
        try:
            return sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
        except OSError:
            return None

    def locate(self) -> Located:
        """Find the model. On the hub this costs one request; no weights are read."""
        if self.revision is None:
            return Located(None, self.state() or "", lambda: open_checkpoint(self.model))
        from attngeo.weights.sources.hub import HubModel
        from attngeo.weights.sources.hub_files import hub_checkpoint

        found = HubModel(hub_reference(str(self)))
        commit = found.commit
        return Located(commit, commit, lambda: hub_checkpoint(found, None))


@dataclass(frozen=True)
class Located:
    """One state of a model: its commit on the hub, or the present content of its files."""

    commit: str | None  # None: files on this machine
    state: str
    open: Callable[[], Checkpoint]


def row_name(reference: Reference, state: str, *about: Any) -> str:
    """Return the name of the file with the row about one state of a model, in two parts.

    On the hub: a commit, then the revision that asked for it. Of files on this machine only the present content counts:
    the model, then the state of its files, so that rows of earlier states are found by the first part.
    """
    if reference.revision is None:
        return f"{digest(reference.model, *about)}-{digest(state)[:16]}"
    return f"{digest(reference.model, state, *about)}-{digest(reference.revision)[:8]}"


def references(refs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Reference]:
    """Return each of one or several references once."""
    names = [refs] if isinstance(refs, str | os.PathLike) else refs
    return list(dict.fromkeys(map(Reference.parse, names)))


def read_list(path: str | os.PathLike[str]) -> list[str]:
    """Return the references in a text file, one per line; empty lines and what follows a # are left out."""
    found = []
    for number, line in enumerate(read_text(Path(path)).splitlines(), 1):
        # A # inside a name is part of it.
        name = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()
        if not name:
            continue
        try:
            Reference.parse(name)
        except InputError as error:
            raise InputError(f"{path}: line {number}: {error}") from None
        found.append(name)
    if not found:
        raise InputError(f"{path}: no references, expected one per line")
    return found


def hub_models(organisation: str) -> list[str]:
    """Return the hub ids of all models of an organisation or a user, for `Atlas.add`."""
    from attngeo.weights.sources.hub import list_models

    return list_models(organisation)


def hub_revisions(ref: str) -> list[str]:
    """Return references to all revisions of a model on the hub, `org/name@revision`, for `Atlas.add`.

    These are its branches and tags. If it has only the branch `main`, they are the commits of that branch.
    """
    from attngeo.weights.sources.hub import list_revisions

    model = hub_reference(ref)
    if model.revision != "main":
        raise InputError(f"{ref}: names one revision, expected a hub id without @{model.revision}")
    name = f"{model.repo}/{model.path}" if model.path else model.repo
    return [f"{name}@{revision}" for revision in list_revisions(model)]
