"""A Ray of two nodes on this machine, in a process of its own: `with RayCluster() as cluster:`.

As a script it starts the cluster, prints its address, kills the second node when it reads a line, and ends with stdin.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType

# A cluster of one machine: no reports, no tokens, and 127.0.0.1 means 127.0.0.1 (Ray would take the outer address).
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",  # as all other processes of a test
    "RAY_raylet_start_wait_time_s": "200",  # seconds; a machine may be busy
    "RAY_gcs_server_port_wait_time_s": "200",
    "OMP_NUM_THREADS": "1",
}
HOST = "127.0.0.1"


class RayCluster:
    """The cluster, as the process that uses it sees it."""

    def __enter__(self) -> RayCluster:
        self.environment = {**os.environ, **ENVIRONMENT}
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.address = self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # closes stdin

    @property
    def pid(self) -> int:
        """Return the process under which all processes of the cluster are found."""
        return self._process.pid

    def kill_node(self) -> None:
        """Kill all processes of the second node."""
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "Ray did not start"
        return line


def main() -> None:
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    node = {"num_cpus": 1, "node_ip_address": HOST, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    second = cluster.add_node(**node)
    print(cluster.address, file=answers, flush=True)
    for _ in sys.stdin:
        cluster.remove_node(second, allow_graceful=False)
        print("killed", file=answers, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
