"""Pods → instances: which of a group's machines exist, which replica each belongs to, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rayorch.adapters.kuberay.models import Pod, WorkerGroup
from rayorch.core.capacity import Instance, InstancePhase

POD_GROUP = "ray.io/group"
POD_KIND = "ray.io/node-type"
POD_REPLICA = "ray.io/worker-group-replica-name"  # KubeRay 1.5 and later, on groups of several hosts
WORKER = "worker"

REASON_CHARACTERS = 300
FIRST_READY_S = 900.0  # from a container's start to its first readiness, at most
ENDED = ("Failed", "Succeeded")


def is_worker(pod: Pod) -> bool:
    """Whether it is a worker's pod: neither the head nor one that cleans up Redis."""
    return pod.metadata.labels.get(POD_KIND) == WORKER


def instances_of(group: WorkerGroup, pods: Sequence[Pod]) -> tuple[Instance, ...]:
    """The group's machines, sorted by name, each with the replica that it shares with `hosts` - 1 others."""
    doomed = frozenset(group.to_delete)
    replicas = replica_names(group, pods)
    found = [_instance(pod, replicas[pod.metadata.name], pod.metadata.name in doomed) for pod in pods]
    return tuple(sorted(found, key=lambda instance: instance.name))


def replica_names(group: WorkerGroup, pods: Sequence[Pod]) -> dict[str, str]:
    """Pod → replica. Operators before 1.5 don't label the pods of one replica: then they are taken in order of age."""
    if group.hosts == 1:
        return {pod.metadata.name: pod.metadata.name for pod in pods}
    names = {pod.metadata.name: pod.metadata.labels.get(POD_REPLICA, "") for pod in pods}
    unlabelled = sorted(
        (pod for pod in pods if not names[pod.metadata.name]), key=lambda pod: (_created(pod), pod.metadata.name)
    )
    for start in range(0, len(unlabelled), group.hosts):
        together = unlabelled[start : start + group.hosts]
        for pod in together:
            names[pod.metadata.name] = f"{together[0].metadata.name}+{group.hosts}"
    return names


def pod_addresses(pods: Iterable[Pod]) -> tuple[tuple[str, str], ...]:
    """(pod, IP address) of each worker that has one: what joins a pod to its Ray node where no label does."""
    return tuple(sorted((pod.metadata.name, pod.status.pod_ip) for pod in pods if is_worker(pod) and pod.status.pod_ip))


def _instance(pod: Pod, replica: str, doomed: bool) -> Instance:
    phase, reason, ready_s = _phase(pod, doomed)
    return Instance(
        name=pod.metadata.name,
        replica=replica,
        phase=phase,
        created_s=_created(pod),
        ready_s=ready_s,
        reason=reason[:REASON_CHARACTERS],
    )


def _phase(pod: Pod, doomed: bool) -> tuple[InstancePhase, str, float | None]:
    status = pod.status
    ready_s = _ready_s(pod)
    if pod.metadata.deletion_timestamp is not None:
        return InstancePhase.LEAVING, "the pod is being deleted", ready_s
    if doomed:
        return InstancePhase.LEAVING, "named for deletion", ready_s
    if status.phase in ENDED or _ended(pod):
        return InstancePhase.FAILED, _why_ended(pod), ready_s
    if status.phase == "Running" and _is_ready(pod):
        return InstancePhase.RUNNING, "", ready_s
    return InstancePhase.PENDING, _why_pending(pod), None


def _is_ready(pod: Pod) -> bool:
    ready = pod.status.condition("Ready")
    return ready is not None and ready.status == "True"


def _ready_s(pod: Pod) -> float | None:
    """When the pod became ready for the first time, as far as it shows: how long a node takes is learned from it.

    Kubernetes keeps the last time only. Where that lies long after the start, readiness was lost in between.
    """
    ready = pod.status.condition("Ready")
    if ready is None or not _is_ready(pod):
        return None
    last_s, start_s = _seconds(ready.last_transition_time), _start_s(pod)
    if last_s is None or start_s is None or last_s - start_s <= FIRST_READY_S:
        return last_s
    return start_s


def _start_s(pod: Pod) -> float | None:
    """When Ray's container started, or the pod where it has restarted since; None when neither is shown."""
    name = pod.spec.containers[0].name if pod.spec.containers else ""
    for status in pod.status.container_statuses or ():
        if status.name == name and status.restart_count == 0 and status.state.running is not None:
            return _seconds(status.state.running.started_at)
    initialized = pod.status.condition("Initialized")
    return _seconds(initialized.last_transition_time) if initialized is not None else None


def _ended(pod: Pod) -> bool:
    """Whether Ray's container has ended for good in a pod that still runs; the operator replaces such a pod."""
    if pod.spec.restart_policy != "Never":
        return False
    name = pod.spec.containers[0].name if pod.spec.containers else ""
    return any(
        status.state.terminated is not None for status in pod.status.container_statuses or () if status.name == name
    )


def _why_ended(pod: Pod) -> str:
    """The pod's own reason (Evicted), or how a container ended (OOMKilled)."""
    if pod.status.reason or pod.status.message:
        return ": ".join(part for part in (pod.status.reason, pod.status.message) if part)
    for status in pod.status.container_statuses or ():
        if (ended := status.state.terminated) is not None:
            return f"{ended.reason or 'ended'} (container {status.name}, exit code {ended.exit_code})"
    return f"the pod has {pod.status.phase.lower()}"


def _why_pending(pod: Pod) -> str:
    """Why it has no machine (Unschedulable), or what its container waits for (ImagePullBackOff)."""
    scheduled = pod.status.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return ": ".join(part for part in (scheduled.reason, scheduled.message) if part) or "not scheduled"
    for status in pod.status.container_statuses or ():
        if (waiting := status.state.waiting) is not None and waiting.reason:
            return ": ".join(part for part in (waiting.reason, waiting.message) if part)
    return "not ready" if pod.status.phase == "Running" else ""


def _created(pod: Pod) -> float:
    return _seconds(pod.metadata.creation_timestamp) or 0.0


def _seconds(moment: datetime | None) -> float | None:
    """Seconds since the epoch; a time without a zone is UTC."""
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
