"""References to many models of the hub at once: all models of an organisation, all revisions of one model."""

from __future__ import annotations

import os

from attngeo.errors import InputError
from attngeo.weights.sources.hub import list_models, list_revisions
from attngeo.weights.sources.open import hub_reference, looks_like_path


def hub_models(organisation: str) -> list[str]:
    """Return the hub ids of all models of an organisation or a user, for `Atlas.add`."""
    return list_models(organisation)


def hub_revisions(ref: str) -> list[str]:
    """Return references to all revisions of a model on the hub, `org/name@revision`, for `Atlas.add`.

    These are its branches and tags. If it has only the branch `main`, they are the commits of that branch.
    """
    if looks_like_path(ref) or os.path.exists(ref):
        raise InputError(f"{ref}: a path, expected a hub id org/name")
    model = hub_reference(ref)
    if model.revision != "main":
        raise InputError(f"{ref}: names one revision, expected a hub id without @{model.revision}")
    name = f"{model.repo}/{model.path}" if model.path else model.repo
    return [f"{name}@{revision}" for revision in list_revisions(model)]
