"""RayCluster and pods → node groups: what a group's nodes offer, and how far each of its machines has come.

Follows what KubeRay's operator does with the same fields, and what Ray's autoscaler reads from them: `resources` of the
group before `rayStartParams` before the limits of the first container.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ConfigDict, Field

from rayorch.adapters.kuberay.accelerators import GROUP_LABEL, accelerator_model, is_spot, start_labels
from rayorch.adapters.kuberay.instances import POD_GROUP, instances_of, is_worker
from rayorch.adapters.kuberay.models import Count, KubeObject, Pod, Quantity, RayCluster, WorkerGroup, parse
from rayorch.adapters.kuberay.quantity import whole
from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.device_binding import split_devices
from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.types import CPU, GPU, MODEL_LABEL, Resources

GROUPS_ANNOTATION = "rayorch.io/groups"
MEMORY = "memory"
TPU = "TPU"
SUSPENDED = "is suspended"


class GroupHints(KubeObject):
    """What the annotation says of one group, for which the CRD has no field."""

    model_config = ConfigDict(extra="forbid")

    spares: Count = Field(default=0, ge=0)
    idle_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    preference: Count | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """All groups of a cluster, sorted by name, and what was noticed about them, in sentences."""

    groups: tuple[NodeGroup, ...]
    notes: tuple[str, ...]


def node_groups(cluster: RayCluster, pods: Sequence[Pod] | None) -> GroupView:
    """The cluster's groups with their instances; `pods` None: they can't be read, and no group shows instances.

    Raises ClusterError, with the field, for what can't be understood: capacity is unknown then.
    """
    notes: list[str] = []
    names = [group.group_name for group in cluster.groups]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ClusterError(f"RayCluster {cluster.metadata.name}: two worker groups are named {', '.join(twice)}")
    hints = _hints(cluster, names, notes)
    by_group = _pods_by_group(pods or (), frozenset(names), notes)
    groups = [
        _group(cluster, index, group, hints.get(group.group_name, GroupHints()), by_group, notes)
        for index, group in enumerate(cluster.groups)
    ]
    return GroupView(tuple(sorted(groups, key=lambda group: group.name)), tuple(notes))


def _pods_by_group(pods: Iterable[Pod], names: frozenset[str], notes: list[str]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        if is_worker(pod):
            found.setdefault(pod.metadata.labels.get(POD_GROUP, ""), []).append(pod)
    for name in sorted(found.keys() - names):
        notes.append(f"{len(found[name])} pod(s) belong to group {name or '(none)'!r}, which the cluster does not have")
    return found


def _hints(cluster: RayCluster, names: list[str], notes: list[str]) -> dict[str, GroupHints]:
    text = cluster.metadata.annotations.get(GROUPS_ANNOTATION)
    if not text:
        return {}
    where = f"RayCluster {cluster.metadata.name}: annotation {GROUPS_ANNOTATION}"
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{where} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ClusterError(f"{where} must be an object of group names")
    for name in sorted(raw.keys() - set(names)):
        notes.append(f"annotation {GROUPS_ANNOTATION} names group {name[:80]!r}, which the cluster does not have")
    return {name: parse(GroupHints, hint, f"{where}, {name!r},") for name, hint in raw.items()}


def _group(
    cluster: RayCluster,
    index: int,
    group: WorkerGroup,
    hints: GroupHints,
    by_group: Mapping[str, list[Pod]],
    notes: list[str],
) -> NodeGroup:
    where = f"RayCluster {cluster.metadata.name}: spec.workerGroupSpecs[{index}] ({group.group_name})"
    try:
        resources, missing = offered(group)
        labels = node_labels(group)
    except (ValueError, SpecError) as error:
        raise ClusterError(f"{where}: {error}") from None
    if missing:
        notes.append(f"group {group.group_name} does not say its {' and '.join(missing)}: taken as none")
    low, high, why = limits(cluster, group)
    if why:
        notes.append(f"group {group.group_name} {why}")
    idle_s = float(group.idle_timeout_seconds) if group.idle_timeout_seconds is not None else None
    return NodeGroup(
        name=GroupName(group.group_name),
        total=resources,
        replicas=0 if cluster.spec.suspend else group.asked,
        min_replicas=low,
        max_replicas=high,
        hosts=group.hosts,
        labels=tuple(sorted(labels.items())),
        model=labels.get(MODEL_LABEL, ""),
        spot=is_spot(labels, group.template.spec.node_selector),
        spares=hints.spares,
        idle_s=idle_s if hints.idle_seconds is None else hints.idle_seconds,
        # KubeRay's priority is "the larger the sooner".
        preference=-(group.priority or 0) if hints.preference is None else hints.preference,
        instances=instances_of(group, by_group.get(group.group_name, ())),
        autoscaler_labels=tuple(sorted((group.labels or {}).items())),  # of all the places for labels it reads this one
    )


def limits(cluster: RayCluster, group: WorkerGroup) -> tuple[int, int, str]:
    """Fewest and most replicas, and why these are no range in which anything may be chosen (empty: they are one)."""
    if cluster.spec.suspend:
        return 0, 0, f"can't change: the cluster {SUSPENDED}"
    if group.suspend:
        return 0, 0, f"can't change: it {SUSPENDED}"
    if group.low > group.high:
        asked = group.asked
        return asked, asked, f"can't change: minReplicas {group.low} is above maxReplicas {group.high}"
    if group.replicas is not None and group.replicas < 0:
        return group.low, group.high, f"asks for {group.replicas} replicas, which the operator reads as {group.asked}"
    return group.low, group.high, ""


def node_labels(group: WorkerGroup) -> dict[str, str]:
    """Labels that each node of the group has: its own before `ray start`'s before the pods' node selector.

    A node selector is a fact about where the pods run, though no Ray label: whoever reads these must count them as
    the nodes' own.
    """
    params = group.ray_start_params or {}
    selector = group.template.spec.node_selector
    own = {**start_labels(params.get("labels", "")), **(group.labels or {})}
    labels = {**selector, **own, GROUP_LABEL: group.group_name}
    if model := accelerator_model(own, selector):
        labels[MODEL_LABEL] = model
    return labels


def offered(group: WorkerGroup) -> tuple[Resources, list[str]]:
    """What one node of the group offers Ray, and which of the usual resources it says nothing of.

    Raises ValueError or SpecError for an amount that is none.
    """
    params = group.ray_start_params or {}
    own = dict(group.resources or {})
    container = group.template.spec.containers[0].resources if group.template.spec.containers else None
    declared: dict[str, Quantity] = {}
    if container is not None:
        declared = {**container.requests, **container.limits}
    amounts: dict[str, float] = {name: float(whole(amount)) for name, amount in own.items()}
    if not own and "resources" in params:
        amounts.update(_start_resources(params["resources"]))
    for name, param, key in ((CPU, "num-cpus", "cpu"), (MEMORY, "memory", "memory")):
        if name not in own and (amount := params.get(param, declared.get(key))) is not None:
            amounts[name] = float(whole(amount))
    if GPU not in own and (gpus := params.get("num-gpus", _gpus(declared))) is not None:
        amounts[GPU] = float(whole(gpus))
    if TPU not in amounts and (tpus := declared.get("google.com/tpu")) is not None:
        amounts[TPU] = float(whole(tpus))
    missing = [name for name in (CPU,) if name not in amounts]
    return split_devices(Resources.of(amounts))[0], missing  # gpu0, gpu1, … stand for the GPUs that are counted


def _gpus(declared: Mapping[str, Quantity]) -> Quantity | None:
    """The first extended resource that is a GPU (nvidia.com/gpu, amd.com/gpu), as Ray's autoscaler reads it."""
    for key in sorted(declared):
        if key.endswith("gpu") and whole(declared[key]) > 0:
            return declared[key]
    return None


def _start_resources(text: str) -> dict[str, float]:
    """The custom resources of `ray start --resources`, written as JSON inside quotes with or without backslashes."""
    shown = text.strip()
    if len(shown) > 1 and shown[0] == shown[-1] and shown[0] in "\"'":
        shown = shown[1:-1]
    try:
        raw = json.loads(shown.replace("\\", ""))
    except (ValueError, RecursionError):
        raise ValueError(f"rayStartParams.resources is not JSON: {text[:80]!r}") from None
    if not isinstance(raw, dict) or any(isinstance(n, bool) or not isinstance(n, int | float) for n in raw.values()):
        raise ValueError("rayStartParams.resources must be an object of numbers")
    return {str(name): float(amount) for name, amount in raw.items()}
