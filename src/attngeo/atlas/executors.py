"""Executors: who runs the tasks of one call of an atlas, and in which processes.

Executor          the interface: tasks in, outcomes out, in any order
in_process        one after the other in the calling process
local_processes   several worker processes on this machine (`work` is what each of them does)
ray_tasks         tasks of Ray, on a cluster or on a Ray that is started on this machine for one call
WorkerLost        the error of a task that ends every process

The rows are the same whoever computes them: each task runs on one core, with single-threaded BLAS. The folder of the
atlas, and models that are not on the hub, must have the same paths on all nodes of a cluster.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from queue import SimpleQueue
from typing import Any

from attngeo.atlas.store import AtlasWriteError, Store
from attngeo.atlas.task import Outcome, Task
from attngeo.errors import AttngeoError, InputError, first_line
from attngeo.io.threads import core_count, next_item

TRIES = 5  # worker processes that one task may lose before it counts as failed
# One thread each, decided before any BLAS is loaded; bars of downloads would mix on the terminal.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1"),
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
# The import path of this process, and nothing from the user's script, which need not be importable.
START = "import sys; sys.path[:] = {path!r}; from attngeo.atlas.executors import work; work()"


# Runs the tasks and yields the outcome of each as soon as it is known; an AtlasWriteError ends the call.
Executor = Callable[[Store, Sequence[Task]], Generator[Outcome, None, None]]


class WorkerLost(AttngeoError):
    """The process of a task ended each time the task was tried."""


def in_process(store: Store, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
    """Run the tasks in the calling process, in order."""
    return (task.run(store) for task in tasks)


# ---- processes


def local_processes(store: Store, tasks: Sequence[Task], count: int) -> Generator[Outcome, None, None]:
    """Run the tasks in `count` worker processes on this machine, which end when this process ends, however it does."""
    left, outcomes = iter(tasks), SimpleQueue[Outcome | BaseException]()
    workers = [_Worker(store) for _ in range(min(count, len(tasks)))]
    threads = [threading.Thread(target=worker.serve, args=(left, outcomes), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for _ in tasks:
            outcome = next_item(outcomes)
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()


class _Worker:
    """One worker process at a time, replaced if it dies; a pickled task goes in, a pickled outcome comes out."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def serve(self, tasks: Iterator[Task], outcomes: SimpleQueue[Outcome | BaseException]) -> None:
        """Do tasks until none is left; several threads take from one iterator of a list, which is safe."""
        try:
            for task in tasks:
                if self._stopped:
                    break
                outcomes.put(self._outcome(task))
        except BaseException as error:
            outcomes.put(error)
        finally:
            self._finish()

    def stop(self) -> None:
        """End the process; what it was writing is left out of the atlas."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def _outcome(self, task: Task) -> Outcome:
        """Return the outcome of a task; another process tries again where one dies."""
        for _ in range(TRIES):
            reply = self._ask(task)
            if isinstance(reply, AtlasWriteError):
                raise reply
            if reply is not None:
                return reply
            code = self._finish()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if self._stopped:
                raise AttngeoError("the call has ended")
        lost = f"its worker process {how}, {TRIES} times; too little memory is a likely cause"
        return task.fail(self._store, WorkerLost(lost))

    def _ask(self, task: Task) -> Outcome | AtlasWriteError | None:
        """Return the answer of the process, which is started if there is none; None if it has died."""
        with self._lock:
            if self._process is None and not self._stopped:
                path = [os.path.abspath(entry) for entry in sys.path]
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", START.format(path=path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=os.environ | ENVIRONMENT,
                    start_new_session=True,  # Ctrl-C reaches only the driver, which ends its workers
                )
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            pickle.dump((self._store, task), process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)  # type: ignore[no-any-return]
        except (OSError, EOFError, pickle.UnpicklingError):
            return None

    def _finish(self) -> int:
        """Let the process end by itself, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # the process has died
                assert pipe is not None
                pipe.close()
        return process.wait()


def work() -> None:
    """Do tasks in a worker process, until stdin ends, that is also when the process that started it is killed.

    Messages are pickles: the store and a task, which are answered by the outcome, or by an AtlasWriteError.
    """
    # Whatever a library prints goes to stderr: stdout is for outcomes.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(EOFError, pickle.UnpicklingError):  # the driver is done, or was killed while it wrote
        while True:
            answer = run_task(*pickle.load(sys.stdin.buffer))
            try:
                pickle.dump(answer, answers)
                answers.flush()
            except BrokenPipeError:  # nobody waits for the answer; the rows are in the atlas
                os._exit(0)


def run_task(store: Store, task: Task) -> Outcome | AtlasWriteError:
    """Do one task in another process; an AtlasWriteError is returned, because Ray wraps those that are raised."""
    try:
        return task.run(store)
    except AtlasWriteError as error:
        return error


# ---- Ray

RAY_TRIES = 20  # processes that one task may lose before it counts as failed; nodes may be lost with them
AHEAD = 2  # tasks per core that Ray knows of, so that a core that becomes free need not wait for the driver
CONNECT_SECONDS = 10
LEAST_OBJECT_STORE = 80 << 20  # bytes, the least that Ray allows; a task and its outcome need a few kB
# Settings of Ray, unless the user has others.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no reports about its usage
    "RAY_task_oom_retries": str(RAY_TRIES - 1),  # by default without end
}
# To give up within seconds where no Ray answers; by default it takes 40 s.
ONE_TRY = {
    "RAY_gcs_server_port_wait_time_s": "1",
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_py_gcs_connect_timeout_s": "5",
}
# Which hub is meant must not depend on the node. Tokens stay out: a cluster shows these settings to all its users.
PASSED_ON = ("HF_ENDPOINT",)


def ray_tasks(
    store: Store, tasks: Sequence[Task], address: str | None, workers: int | None
) -> Generator[Outcome, None, None]:
    """Run the tasks on the Ray cluster at `address`; None: on a Ray of this machine that ends with the call.

    workers: number of tasks at a time, by default one per core of the cluster
    """
    if not tasks:
        return
    with _connected(address, workers) as ray:
        remote = ray.remote(num_cpus=1, max_retries=RAY_TRIES - 1)(run_task)
        shared, left = ray.put(store), iter(tasks)
        running: dict[Any, Task] = {}
        try:
            while True:
                most, memory = _capacity(ray)  # nodes may join a cluster, or leave it
                for task in islice(left, max(0, (workers or most) - len(running))):
                    running[remote.options(memory=min(task.memory(), memory)).remote(shared, task)] = task
                if not running:
                    return
                [finished], _ = ray.wait(list(running), num_returns=1)
                yield _ray_outcome(ray, finished, running.pop(finished), store)
        finally:
            for reference in running:  # after an error, or if the caller wants no more
                ray.cancel(reference, force=True)


def _ray_outcome(ray: Any, finished: Any, task: Task, store: Store) -> Outcome:
    """Return the outcome of a task that Ray has ended, or given up."""
    lost = ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError
    try:
        outcome = ray.get(finished)
    except lost:
        why = f"its process on Ray ended, {RAY_TRIES} times; too little memory is a likely cause"
        return task.fail(store, WorkerLost(why))
    except ray.exceptions.RayError as error:  # such as another version of attngeo on a node
        raise AttngeoError(f"Ray: {first_line(error)}") from error
    if isinstance(outcome, AtlasWriteError):
        raise outcome
    assert isinstance(outcome, Outcome)
    return outcome


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
    _import_ray(SETTINGS)
    import ray

    if ray.is_initialized():
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
        with _silent():
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


@contextmanager
def _silent() -> Iterator[None]:
    """Hide the warnings of Ray, and what it writes about failed attempts past Python: the error says enough."""
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)


def _import_ray(settings: dict[str, str]) -> None:
    """Import ray, which reads its settings from the environment."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: F401
    except ImportError:
        raise InputError("Ray is not installed: pip install 'attngeo[cluster]'") from None


def check_ray(address: str | None) -> None:
    """Raise unless Ray is installed and something listens at the address, `host:port`.

    Whether it is a Ray, connecting will show.
    """
    if address not in (None, "auto"):
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"{address}: not the address of a Ray, expected HOST:PORT, ray://HOST:PORT or auto")
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"no Ray answers at {address} ({getattr(error, 'strerror', None) or error})") from error
    _import_ray(SETTINGS if address is None else SETTINGS | ONE_TRY)
