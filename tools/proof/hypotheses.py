"""What only the products of a live model decide about a type; each is tried where the names and shapes leave it open.

gated        the query projection holds the gates of the heads' outputs, too
window_keys  layers with a window have twice the key heads that the config declares
storage      the order of the heads in a tensor whose name means something else in every family
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from attngeo.weights.layout.facts import ends_with
from attngeo.weights.layout.storage import Blocks, Storage
from attngeo.weights.layout.table import STORAGES, TABLE
from tools.proof.verdict import Verdict, assume

_NOTHING: dict[str, Any] = {"gated": False, "window_keys": 1, "storage": {}}


def best_verdict(model_type: str, names: Collection[str], prove: Callable[[], Verdict]) -> Verdict:
    """Return the verdict under the first hypothesis that makes the type right, with the facts that it states.

    names: of the tensors of the model
    prove: compares the model with its forms, under the facts that attngeo assumes in this process
    """
    assume(model_type, **_NOTHING)
    best = prove()
    for facts in _hypotheses(best, names):
        assume(model_type, **_NOTHING | facts)
        verdict = prove()
        if verdict.status == "right" and (best.status != "right" or len(verdict.skip) < len(best.skip)):
            vars(verdict).update(facts)
            return verdict
    assume(model_type, **_NOTHING)
    return best


def _hypotheses(verdict: Verdict, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the facts to try where nothing but the table gave this verdict."""
    if verdict.status == "right" and not verdict.skip:
        return
    problem = f"{verdict.reason} {verdict.sites}"
    uncounted = "unknown layout" in problem  # the heads of no layer could be counted, or there are none
    if uncounted or "but the config declares size" in problem:
        yield {"gated": True}
    if uncounted or "key heads of size" in problem:
        yield {"window_keys": 2}
    for row in TABLE:
        # Of names with one usual order of heads, another is tried where the products disagree with it.
        open_order = row.storage is Storage or (row.storage is Blocks and "mismatch" in problem)
        if open_order and not row.diffusers and any(ends_with(name, row.query) for name in names):
            for kind in STORAGES:
                yield {"storage": {row.query: kind}}
