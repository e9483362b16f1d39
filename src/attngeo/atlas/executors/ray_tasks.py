"""`RayTasks`: each task as a task of Ray, on a cluster or on a Ray that is started on this machine for one call.

The folder of the atlas, and models that are not on the hub, must have the same paths on all nodes.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import inf
from typing import Any

from attngeo.atlas.executors.interface import Job, WorkerLost
from attngeo.atlas.outcome import Outcome
from attngeo.atlas.store import AtlasWriteError
from attngeo.errors import AttngeoError, InputError, first_line
from attngeo.io.threads import core_count

TRIES = 20  # processes that one task may lose on nodes that live on; a lost node is never the fault of a model
AHEAD = 2  # tasks per core that Ray knows of, so that a core that becomes free need not wait for the driver
CONNECT_SECONDS = 10
LOOK_SECONDS = 10.0  # between two looks at the nodes of a cluster
LEAST_OBJECT_STORE = 80 << 20  # bytes, the least that Ray allows; a task and its outcome need a few kB
# Settings of Ray, unless the user has others.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0"}  # no reports about its usage
# To give up within seconds, with no messages but the error, where no Ray answers; by default it takes 40 s.
ONE_TRY = {
    "RAY_gcs_server_port_wait_time_s": "1",
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_py_gcs_connect_timeout_s": "5",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
# Which hub is meant must not depend on the node. Tokens stay out: a cluster shows these settings to all its users.
PASSED_ON = ("HF_ENDPOINT",)


class RayTasks:
    """Tasks on the Ray cluster at `address`; None: on a Ray of this machine that ends with the call.

    workers: number of tasks at a time, by default one per core of the cluster
    """

    def __init__(self, address: str | None, workers: int | None) -> None:
        self._address, self._workers = address, workers
        if address is not None:
            _check_address(address)
        _import(SETTINGS if address is None else SETTINGS | ONE_TRY)

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Outcome]:
        if tasks:
            with _connected(self._address, self._workers) as ray:
                yield from self._outcomes(ray, job, tasks)

    def _outcomes(self, ray: Any, job: Job, tasks: Sequence[Any]) -> Iterator[Outcome]:
        # Lost tasks are started again below, where a model that ends every process can be told from a lost node.
        remote = ray.remote(num_cpus=1, max_retries=0)(run_task)
        shared, left = ray.put(job), iter(tasks)
        again: list[_Try] = []  # tasks whose process was lost
        running: dict[Any, _Try] = {}
        looked = -inf
        try:
            while True:
                if time.monotonic() - looked > LOOK_SECONDS:  # nodes may join a cluster, or leave it
                    most, memory = _capacity(ray)
                    most, looked = self._workers or most, time.monotonic()
                for next_try in islice(chain(_drain(again), map(_Try, left)), max(0, most - len(running))):
                    needed = min(job.memory(next_try.task), memory)
                    running[remote.options(memory=needed).remote(shared, next_try.task)] = next_try
                if not running:
                    return
                [finished], _ = ray.wait(list(running), num_returns=1)
                outcome = _result(ray, finished, running.pop(finished))
                if isinstance(outcome, _Try) and outcome.lost >= TRIES:
                    why = f"its process on Ray ended, {outcome.lost} times; too little memory is a likely cause"
                    outcome = job.lose(outcome.task, WorkerLost(why))
                if isinstance(outcome, _Try):
                    again.append(outcome)
                else:
                    yield outcome
        finally:
            for reference in running:  # after an error, or if the caller wants no more
                ray.cancel(reference, force=True)


@dataclass(frozen=True)
class _Try:
    task: Any
    lost: int = 0  # processes that ended during this task, on nodes that live on


def run_task(job: Job, task: Any) -> Outcome | AtlasWriteError:
    """Do one task in a process of Ray; an error is returned, because Ray wraps those that are raised."""
    try:
        return job.run(task)
    except AtlasWriteError as error:
        return error


def _result(ray: Any, finished: Any, last: _Try) -> Outcome | _Try:
    """Return the outcome of a task, or its next try if its process was lost."""
    try:
        outcome = ray.get(finished)
    except (ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError):
        return last  # any number of nodes may be lost
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
        return replace(last, lost=last.lost + 1)
    except ray.exceptions.RayError as error:  # such as another version of attngeo on a node
        raise AttngeoError(f"Ray: {first_line(error)}") from error
    if isinstance(outcome, AtlasWriteError):
        raise outcome
    assert isinstance(outcome, Outcome)
    return outcome


def _drain(tries: list[_Try]) -> Iterator[_Try]:
    while tries:
        yield tries.pop()


def _capacity(ray: Any) -> tuple[int, int]:
    """Return how many tasks Ray should know of at a time, and the memory of the largest node, in bytes.

    A task that asks for more memory than any node has would wait forever.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = sum(int(node.get("CPU", 0)) for node in nodes)
    return AHEAD * max(1, cores), int(max((node.get("memory", 0) for node in nodes), default=0))


@contextmanager
def _connected(address: str | None, workers: int | None) -> Iterator[Any]:
    """Yield the module ray, connected; a Ray that the caller has connected already is used and left as it is."""
    _import(SETTINGS)
    import ray

    if ray.is_initialized():
        if address is not None:
            raise InputError(f"--ray {address}: this process is connected to a Ray already")
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"address": "local", "num_cpus": workers or core_count(), "include_dashboard": False}
        options["object_store_memory"] = LEAST_OBJECT_STORE
    else:
        options["address"] = address
        if passed := {name: os.environ[name] for name in PASSED_ON if name in os.environ}:
            options["runtime_env"] = {"env_vars": passed}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # where it fails, the error says enough
            ray.init(**options)
    except Exception as error:
        where = f"no Ray answers at {address}" if address else "no Ray could be started on this machine"
        why = first_line(error).partition(". ")[0]  # then follows how other programs name the address
        tokens = "RAY_AUTH_MODE" in os.environ or address in (None, "auto")
        hint = "" if tokens else "; a cluster that asks for tokens needs RAY_AUTH_MODE=token"
        raise InputError(f"{where} ({why}){hint}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _import(settings: dict[str, str]) -> None:
    """Import ray, which reads its settings from the environment."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: F401
    except ImportError:
        raise InputError("Ray is not installed: pip install 'attngeo[cluster]'") from None


def _check_address(address: str) -> None:
    """Raise unless something listens at `host:port`; whether it is a Ray, connecting will show."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal():
        raise InputError(f"{address}: not the address of a Ray, expected HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray answers at {address} ({getattr(error, 'strerror', None) or error})") from error
