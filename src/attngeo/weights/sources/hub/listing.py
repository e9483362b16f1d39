"""Lists of the hub: the models of an organisation, and the revisions of a model."""

from __future__ import annotations

from attngeo.errors import InputError, SourceError
from attngeo.weights.sources.hub.errors import HubRef, hub_errors
from attngeo.weights.sources.hub.retry import retried


def list_models(organisation: str) -> list[str]:
    """Return the hub ids of all models of an organisation or a user, sorted."""
    from huggingface_hub import HfApi, constants

    if not organisation or "/" in organisation or not organisation.isprintable() or " " in organisation:
        raise InputError(f"{organisation!r}: not an organisation of the hub, expected a name without a slash")
    with hub_errors(HubRef(organisation)):
        # The client itself repeats requests for pages that fail.
        found = sorted(model.id for model in HfApi().list_models(author=organisation))
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
