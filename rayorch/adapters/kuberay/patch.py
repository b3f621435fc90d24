"""A change of a group as one JSON patch that applies only to the facts on which it was decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayorch.adapters.kuberay.groups import SUSPENDED
from rayorch.adapters.kuberay.instances import POD_GROUP, is_worker, replica_names
from rayorch.adapters.kuberay.models import Pod, RayCluster, WorkerGroup
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, StalePlanError

Operation = dict[str, Any]
OWN_OPERATOR = "ray.io/kuberay-operator"
REMEMBERED_DELETIONS = 1000  # names kept in workersToDelete where it can't be seen which pods are gone


def patch_of(change: GroupChange, cluster: RayCluster, pods: Sequence[Pod] | None) -> list[Operation]:
    """The operations that carry out a change on the cluster as it is; `pods` None: they can't be read.

    They test the cluster's identity, the group's name at its place in the list and the old count, so that the patch
    fails when any of these has changed meanwhile. Raises AdmissionError for what this cluster refuses, StalePlanError
    when the decision was made on other facts.
    """
    index, group = _find(change, cluster)
    _check_counts(change, group)
    path = f"/spec/workerGroupSpecs/{index}"
    tests = [
        _test("/metadata/uid", cluster.metadata.uid),
        _test(f"{path}/groupName", group.group_name),
        _test(f"{path}/replicas", group.replicas)
        if group.replicas is not None
        # A test of a field that is absent fails on some servers: the whole object must be unchanged then.
        else _test("/metadata/resourceVersion", cluster.metadata.resource_version),
    ]
    if cluster.spec.enable_in_tree_autoscaling is not None:
        tests.append(_test("/spec/enableInTreeAutoscaling", False))
    doomed = _doomed(change, group, pods)
    writes: list[Operation] = [{"op": "add", "path": f"{path}/replicas", "value": change.to_replicas}]
    if doomed != list(group.to_delete):
        writes.append({"op": "add", "path": f"{path}/scaleStrategy", "value": {"workersToDelete": doomed}})
    return [*tests, *writes]


def applied(change: GroupChange, cluster: RayCluster) -> bool:
    """Whether the cluster is as the change would have it: how a patch whose answer was lost is recognised."""
    for group in cluster.groups:
        if group.group_name == change.group:
            return group.replicas == change.to_replicas and set(change.instances) <= set(group.to_delete)
    return False


def _test(path: str, value: object) -> Operation:
    return {"op": "test", "path": path, "value": value}


def _find(change: GroupChange, cluster: RayCluster) -> tuple[int, WorkerGroup]:
    """The group's place in the list; AdmissionError when nobody but others may change it."""
    name = cluster.metadata.name
    if cluster.spec.enable_in_tree_autoscaling:
        raise AdmissionError(
            "spec.enableInTreeAutoscaling", f"Ray's autoscaler changes the replicas of RayCluster {name}, not rayorch"
        )
    if cluster.spec.managed_by not in (None, "", OWN_OPERATOR):
        raise AdmissionError("spec.managedBy", f"RayCluster {name} is run by {cluster.spec.managed_by}")
    if cluster.spec.suspend:
        raise AdmissionError("spec.suspend", f"RayCluster {name} {SUSPENDED}")
    for index, group in enumerate(cluster.groups):
        if group.group_name == change.group:
            if group.suspend:
                raise AdmissionError(f"spec.workerGroupSpecs[{index}].suspend", f"group {change.group} {SUSPENDED}")
            if group.low > group.high:
                raise AdmissionError(
                    f"spec.workerGroupSpecs[{index}].minReplicas", f"{group.low} is above maxReplicas {group.high}"
                )
            return index, group
    raise AdmissionError("spec.workerGroupSpecs", f"RayCluster {name} has no group {change.group} any more")


def _check_counts(change: GroupChange, group: WorkerGroup) -> None:
    if change.to_replicas == change.from_replicas:
        raise AdmissionError("to_replicas", f"is what group {change.group} has: {change.to_replicas}")
    if group.asked != change.from_replicas:
        raise StalePlanError(
            f"group {change.group} asks for {group.asked} replicas, the decision was made on {change.from_replicas}"
        )
    if not group.low <= change.to_replicas <= group.high:
        raise StalePlanError(
            f"group {change.group} may have {group.low} to {group.high} replicas, the decision wants "
            f"{change.to_replicas}"
        )


def _doomed(change: GroupChange, group: WorkerGroup, pods: Sequence[Pod] | None) -> list[str]:
    """The pods to name for deletion: those of this change, after those of earlier ones that the operator has not taken.

    The operator removes pods of its own choice when a count falls without enough names, and it deletes a named pod
    whatever it is: so names must be exact. Raises AdmissionError or StalePlanError where they are not.
    """
    if len(set(change.instances)) != len(change.instances):
        raise AdmissionError("instances", "names a pod twice")
    if change.to_replicas > change.from_replicas and change.instances:
        raise AdmissionError("instances", "a growth names no pods")
    surplus = max(0, change.from_replicas - change.to_replicas) * group.hosts
    if len(change.instances) > surplus:
        raise AdmissionError("instances", f"names {len(change.instances)} pods where {surplus} go")
    if pods is None:
        if len(change.instances) != surplus:
            raise AdmissionError(
                "instances", f"names {len(change.instances)} pods where {surplus} go, and the pods can't be read"
            )
        kept = [name for name in group.to_delete if name not in change.instances][-REMEMBERED_DELETIONS:]
        return [*kept, *change.instances]
    return _doomed_of(change, group, pods)


def _doomed_of(change: GroupChange, group: WorkerGroup, pods: Sequence[Pod]) -> list[str]:
    own = [pod for pod in pods if is_worker(pod) and pod.metadata.labels.get(POD_GROUP) == group.group_name]
    # A pod that is ending still counts for the operator, unless it is named: names stay as long as their pods.
    present = {pod.metadata.name for pod in own}
    if gone := [name for name in change.instances if name not in present]:
        raise StalePlanError(f"group {group.group_name} has no pods {', '.join(gone[:5])}, or not any more")
    earlier = [name for name in group.to_delete if name in present and name not in change.instances]
    if change.to_replicas < change.from_replicas:
        _check_whole(change, group, own)
        left = len(present) - len(earlier) - len(change.instances)
        if left > change.to_replicas * group.hosts:
            raise AdmissionError(
                "instances",
                f"{left} pods of group {group.group_name} would be left for {change.to_replicas * group.hosts}, and "
                "the operator would choose which of them go",
            )
    return [*earlier, *change.instances]


def _check_whole(change: GroupChange, group: WorkerGroup, own: Sequence[Pod]) -> None:
    """Every replica goes whole: the operator takes all pods of a replica when one is named."""
    replicas = replica_names(group, own)
    named = {replicas[name] for name in change.instances}
    ending = {pod.metadata.name for pod in own if pod.metadata.deletion_timestamp is not None}
    left = {pod for pod, replica in replicas.items() if replica in named} - ending - set(change.instances)
    if left:
        raise AdmissionError("instances", f"names replicas without their pods {', '.join(sorted(left)[:5])}")
