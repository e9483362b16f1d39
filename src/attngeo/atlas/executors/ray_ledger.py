"""`ActorLedger`: the budget of requests to the hub, kept by one actor of Ray for the tasks on all nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attngeo.weights.sources.hub.throttle import Kind


@dataclass(frozen=True)
class ActorLedger:
    """Asks the actor that keeps the ledger of a call."""

    actor: Any

    def reserve(self, kind: Kind) -> float:
        return float(self._ask("reserve", kind))

    def pause(self, kind: Kind, seconds: float) -> None:
        self._ask("pause", kind, seconds)

    def paused(self, kind: Kind) -> float:
        return float(self._ask("paused", kind))

    def _ask(self, method: str, *arguments: object) -> Any:
        import ray

        return ray.get(getattr(self.actor, method).remote(*arguments))


def with_shared_ledger(ray: Any, job: Any) -> Any:
    """Return the job with a ledger that all nodes reach; a job without one reads nothing from the hub.

    The actor lives on the node of the driver, and keeps the ledger in the files of that machine.
    """
    ledger = getattr(job, "ledger", None)
    if ledger is None:
        return job
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
    return replace(job, ledger=ActorLedger(ray.remote(type(ledger)).options(**options).remote(ledger.limits)))
