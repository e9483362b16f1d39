"""References to many models of the hub at once: all models of an organisation, all revisions of one model."""

from __future__ import annotations

import os

from attngeo.atlas.budget import FileLedger, HubLimits
from attngeo.errors import InputError
from attngeo.weights.sources.hub.listing import list_models, list_revisions
from attngeo.weights.sources.hub.throttle import throttled
from attngeo.weights.sources.open import hub_reference, looks_like_path


def hub_models(organisation: str, limits: HubLimits | None = None) -> list[str]:
    """Return the hub ids of all models of an organisation or a user, for `Atlas.add`.

    limits: of the requests to the hub, which this call shares with all others
    """
    with throttled(FileLedger(limits or HubLimits())):
        return list_models(organisation)


def hub_revisions(ref: str, limits: HubLimits | None = None) -> list[str]:
    """Return references to all revisions of a model on the hub, `org/name@revision`, for `Atlas.add`.

    These are its branches and tags. If it has only the branch `main`, they are the commits of that branch.
    """
    if looks_like_path(ref) or os.path.exists(ref):
        raise InputError(f"{ref}: a path, expected a hub id org/name")
    model = hub_reference(ref)
    if model.revision != "main":
        raise InputError(f"{ref}: names one revision, expected a hub id without @{model.revision}")
    name = f"{model.repo}/{model.path}" if model.path else model.repo
    with throttled(FileLedger(limits or HubLimits())):
        return [f"{name}@{revision}" for revision in list_revisions(model)]
