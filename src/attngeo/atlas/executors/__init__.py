"""Executors: who runs the tasks of one call of an atlas, and in which processes.

Executor         the interface: tasks in, outcomes out, in any order
Job              what the tasks of one call share
InProcess        one after the other in the calling process
LocalProcesses   several worker processes on this machine
RayTasks         tasks of Ray, on one machine or a cluster
WorkerLost       the error of a task that ends every process

The rows are the same whoever computes them: each task runs on one core, with single-threaded BLAS.
"""

from attngeo.atlas.executors.interface import Executor, InProcess, Job, WorkerLost
from attngeo.atlas.executors.processes import LocalProcesses
from attngeo.atlas.executors.ray_tasks import RayTasks

__all__ = ["Executor", "InProcess", "Job", "LocalProcesses", "RayTasks", "WorkerLost"]
