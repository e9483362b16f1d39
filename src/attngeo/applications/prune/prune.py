"""`prune`: take the heads of a plan out of a model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.applications.prune.plan import PrunePlan
from attngeo.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attngeo.applications.prune.removal.layers import PrunableLayer


def prune(model: PreTrainedModel, plan: PrunePlan, *, refit: bool = True) -> PreTrainedModel:
    """Return a new model without the heads of `plan`; the given one is unchanged."""
    from attngeo.applications.prune.removal.cut import keep_heads_
    from attngeo.applications.prune.removal.layers import prunable_layers
    from attngeo.applications.prune.removal.record import write_record

    layers = prunable_layers(model)
    check_fingerprint(model, plan, layers)
    kept = plan.kept_heads(layers)
    pruned = copy.deepcopy(model)
    keep_heads_(prunable_layers(pruned), kept)
    write_record(pruned.config, layers, kept, {"method": plan.method, "fingerprint": plan.fingerprint})
    return pruned


def check_fingerprint(model: PreTrainedModel, plan: PrunePlan, layers: Sequence[PrunableLayer]) -> None:
    """Raise InputError if `plan` was made for a model with other attention weights."""
    from attngeo.applications.prune.fingerprint import fingerprint

    found = fingerprint(model, layers)
    if found != plan.fingerprint:
        raise InputError(
            f"the plan was made for another model ({plan.model}): the attention weights of this one have the "
            f"fingerprint {found[:12]}, expected {plan.fingerprint[:12]}"
        )
