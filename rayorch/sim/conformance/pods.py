"""The state of a case: each pod's status as the harness counts it, and how it changes between rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayorch.core.types import WorkloadId
from rayorch.sim.conformance.cases import Case, JobText, TaskText

PENDING, RUNNING, BINDING, PIPELINED = "Pending", "Running", "Binding", "Pipelined"
RELEASING, STUCK, FAILED, SUCCEEDED = "Releasing", "StuckInReleasing", "Failed", "Succeeded"
PLACED = (RUNNING, BINDING, PIPELINED)
ENDED = (FAILED, SUCCEEDED)


@dataclass(slots=True)
class Pod:
    """One task. `devices`: the GPUs that it holds on its node. `ran`: it was running when the case began."""

    task: TaskText
    job: JobText
    status: str
    node: str | None
    devices: tuple[int, ...] = ()
    ran: bool = False

    @property
    def order(self) -> tuple[int, int, str]:
        """The place among the tasks of its job: what comes last is evicted first."""
        _, _, tail = self.task.id.rpartition("-")
        return (-(self.task.task_priority or 0), int(tail) if tail.isdigit() else 0, self.task.id)

    @property
    def leaf(self) -> str:
        """The leaf group that it belongs to."""
        return self.task.subgroup or "default"


@dataclass(slots=True)
class History:
    """What happened to a job during the case. `started_s`: of its present run; `requeued_s`, `yielded_to`: when it was
    last evicted and for whom."""

    started_s: float | None = None
    requeued_s: float | None = None
    yielded_to: WorkloadId | None = None
    attempt: int = 1


@dataclass(slots=True)
class World:
    """All pods of a case, in the order of the file, and the time."""

    case: Case
    now_s: float
    pods: list[Pod]
    histories: dict[str, History] = field(default_factory=dict)
    began_s: float = 0.0

    @staticmethod
    def of(case: Case, now_s: float) -> World:
        """As the case describes it; running jobs started a minute ago."""
        pods = [
            Pod(task, job, PENDING if task.state == PIPELINED else task.state, task.node, ran=task.state == RUNNING)
            for job in case.jobs
            for task in job.tasks
        ]
        world = World(case, now_s, pods, began_s=now_s)
        for job in case.jobs:
            world.histories[job.name] = History(started_s=now_s - 60.0)
        _bind_devices(case, pods)
        return world

    def of_job(self, name: str) -> list[Pod]:
        """The job's pods in their order."""
        return sorted((p for p in self.pods if p.job.name == name), key=lambda p: p.order)

    def settle(self, seconds: float) -> None:
        """What happens between two rounds: evicted pods wait again, nominated ones lose it, bound ones run."""
        self.now_s += seconds
        for pod in self.pods:
            if pod.status == PIPELINED or (pod.status == RELEASING and not pod.job.deleted_in_test):
                pod.status, pod.node, pod.devices = PENDING, None, ()
            elif pod.status == BINDING:
                pod.status = RUNNING


def gpus_of(pod: Pod) -> float:
    """GPUs that the task asks for by number; requests by memory and by partition are not among them."""
    return pod.task.gpus if pod.task.gpus is not None else pod.job.gpus_per_task


def _bind_devices(case: Case, pods: list[Pod]) -> None:
    """Which GPUs running pods hold: those of one group share one; whole ones lie on the others."""
    for node in case.nodes:
        free = list(range(int(node.gpus)))
        groups: dict[str, int] = {}
        here = [p for p in pods if p.node == node.name and p.status in (RUNNING, RELEASING, STUCK)]
        for pod in here:
            for group in pod.task.gpu_groups:
                if group not in groups and free:
                    groups[group] = free.pop(0)
            pod.devices = tuple(groups[g] for g in pod.task.gpu_groups if g in groups)
        for pod in here:
            wanted = int(gpus_of(pod))
            if not pod.devices and wanted and wanted == gpus_of(pod):
                pod.devices, free = tuple(free[:wanted]), free[wanted:]
