"""The part of KubeRay's objects (ray.io/v1) and of pods that is read here, checked when it comes in.

Unknown fields are ignored: the objects are KubeRay's and grow with it. A known field of the wrong form is an error that
names it, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from rayorch.core.errors import ClusterError

Parsed = TypeVar("Parsed", bound="KubeObject")

Quantity = str | int | float
Count = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
MAX_REPLICAS = 2**31 - 1  # what the CRD fills in where no maximum is given: none
CLUSTER_LABEL = "ray.io/cluster"
ERRORS_SHOWN = 3


class KubeObject(BaseModel):
    """Base of all of them: camelCase in the text, frozen, no conversion of types."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Metadata(KubeObject):
    """What every object says of itself."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: Count = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, str] = Field(default_factory=dict)


class ContainerResources(KubeObject):
    """What a container asks for and may use."""

    limits: Mapping[str, Quantity] = Field(default_factory=dict)
    requests: Mapping[str, Quantity] = Field(default_factory=dict)


class Container(KubeObject):
    """The first of a pod is Ray's."""

    name: str = ""
    resources: ContainerResources = ContainerResources()


class PodSpec(KubeObject):
    """Of a pod, or of the template that a group's pods are made from."""

    containers: tuple[Container, ...] = ()
    restart_policy: str = "Always"
    node_selector: Mapping[str, str] = Field(default_factory=dict)


class PodTemplate(KubeObject):
    """What a group's pods are made from."""

    spec: PodSpec = PodSpec()


class ScaleStrategy(KubeObject):
    """The pods that the operator is to delete."""

    workers_to_delete: tuple[str, ...] | None = None


class WorkerGroup(KubeObject):
    """One entry of workerGroupSpecs; None where the CRD's default was not filled in."""

    group_name: str
    replicas: Count | None = None
    min_replicas: Count | None = None
    max_replicas: Count | None = None
    num_of_hosts: Count | None = None
    idle_timeout_seconds: Count | None = None
    priority: Count | None = None
    suspend: Flag | None = None
    labels: Mapping[str, str] | None = None
    resources: Mapping[str, Quantity] | None = None
    ray_start_params: Mapping[str, str] | None = None
    scale_strategy: ScaleStrategy | None = None
    template: PodTemplate = PodTemplate()

    @property
    def hosts(self) -> int:
        """Pods of one replica, at least one."""
        return max(1, self.num_of_hosts or 1)

    @property
    def low(self) -> int:
        """The fewest replicas that the operator keeps."""
        return max(0, self.min_replicas or 0)

    @property
    def high(self) -> int:
        """The most replicas that the operator makes."""
        return MAX_REPLICAS if self.max_replicas is None else max(0, self.max_replicas)

    @property
    def asked(self) -> int:
        """How many replicas the operator aims at: within the limits, the minimum where none are given, 0 suspended."""
        if self.suspend:
            return 0
        return min(self.high, max(self.low, self.low if self.replicas is None else self.replicas))

    @property
    def to_delete(self) -> tuple[str, ...]:
        """Pods that were named for deletion; names of pods that are gone stay until someone takes them out."""
        return (self.scale_strategy.workers_to_delete or ()) if self.scale_strategy else ()


class ClusterSpec(KubeObject):
    """Of a RayCluster."""

    enable_in_tree_autoscaling: Flag | None = None
    suspend: Flag | None = None
    managed_by: str | None = None
    worker_group_specs: tuple[WorkerGroup, ...] | None = None


class ClusterStatus(KubeObject):
    """Of a RayCluster, as far as it was written."""

    state: str = ""
    reason: str = ""
    available_worker_replicas: Count = 0
    desired_worker_replicas: Count = 0


class RayCluster(KubeObject):
    """A RayCluster."""

    metadata: Metadata
    spec: ClusterSpec
    status: ClusterStatus = ClusterStatus()

    @property
    def groups(self) -> tuple[WorkerGroup, ...]:
        """Its worker groups, in the object's order (which patches count by)."""
        return self.spec.worker_group_specs or ()


class Condition(KubeObject):
    """One of a pod's conditions."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Waiting(KubeObject):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Terminated(KubeObject):
    """How a container ended."""

    reason: str = ""
    message: str = ""
    exit_code: Count = 0


class Running(KubeObject):
    """Since when a container runs."""

    started_at: datetime | None = None


class ContainerState(KubeObject):
    """One of the three, or none yet."""

    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(KubeObject):
    """Of one container of a pod."""

    name: str
    restart_count: Count = 0
    state: ContainerState = ContainerState()


class PodStatus(KubeObject):
    """Of a pod."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = Field(default="", alias="podIP")
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, None when it was not written yet."""
        for condition in self.conditions or ():
            if condition.type == kind:
                return condition
        return None


class Pod(KubeObject):
    """A pod of the cluster."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class JobSpec(KubeObject):
    """Of a RayJob."""

    job_id: str = ""
    cluster_selector: Mapping[str, str] = Field(default_factory=dict)


class JobStatus(KubeObject):
    """Of a RayJob, as far as it was written."""

    job_id: str = ""
    ray_cluster_name: str = ""


class RayJob(KubeObject):
    """A RayJob."""

    metadata: Metadata
    spec: JobSpec
    status: JobStatus = JobStatus()

    @property
    def submission(self) -> str:
        """Ray's submission id, empty before the operator has chosen it."""
        return self.status.job_id or self.spec.job_id

    def runs_on(self, cluster: str) -> bool:
        """Whether it was given to that RayCluster, or selects it."""
        return cluster in (self.status.ray_cluster_name, self.spec.cluster_selector.get(CLUSTER_LABEL))


def parse(model: type[Parsed], raw: Any, what: str) -> Parsed:
    """A typed object from what the API server answered; ClusterError names the fields that are wrong."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc']) or 'the object'}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False)
        ]
        more = f" and {len(faults) - ERRORS_SHOWN} more" if len(faults) > ERRORS_SHOWN else ""
        raise ClusterError(f"{what} is malformed: {'; '.join(faults[:ERRORS_SHOWN])}{more}") from None
