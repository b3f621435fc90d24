"""Where nodes come from: groups that can grow and shrink, what is under way in each, and how long that takes.

A group is a KubeRay worker group, or what another provider calls a pool. One replica of it is `hosts` nodes that come
and go together. All of this is a dated copy: the groups' owner is whoever runs them, and what is under way is kept by
`core.node_groups.NodeGroups`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from rayorch.core.types import NodeId, Resources, WorkloadId

GroupName = NewType("GroupName", str)  # unique within the cluster: "h100-workers"


class Provider(StrEnum):
    """Who adds and removes nodes."""

    NONE = "none"  # nobody: the nodes that exist are all there will be
    OURS = "ours"  # we do, by the groups' replica counts
    RAY = "ray"  # Ray's autoscaler does; we only state our demand


class InstancePhase(StrEnum):
    """How far one node of a group has come."""

    PENDING = "pending"  # asked for; not a Ray node yet
    RUNNING = "running"  # a Ray node
    LEAVING = "leaving"  # being taken away
    FAILED = "failed"  # it will not become a node; `reason` says why


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine (pod) of a group.

    `replica`: shared by the `hosts` instances that come and go together; equal to `name` where there is one.
    `node`: the Ray node that it became, None before that and when it is not known. `created_s`, `ready_s`: seconds
    since the epoch; `ready_s` None before it was a Ray node. `reason`: why it is pending or failed, in the provider's
    words ("Unschedulable: 0/12 nodes are available").
    """

    name: str
    replica: str
    phase: InstancePhase
    created_s: float
    ready_s: float | None = None
    node: NodeId | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A group as its provider shows it.

    `total`: what one node offers. `labels`: of each of its nodes, topology levels among them. `model`: the
    accelerator type, empty without GPUs. `replicas`: how many are asked for now. `spot`: nodes may be taken away at
    any time, after a notice. `spares`: idle replicas that are kept. `idle_s`: how long a node must be idle before it
    goes, None for the profile's value. `preference`: the smallest is grown first among groups that would do.
    `autoscaler_labels`: those by which Ray's autoscaler knows the group's nodes; it can't be asked for others.
    """

    name: GroupName
    total: Resources
    replicas: int
    min_replicas: int = 0
    max_replicas: int = 0
    hosts: int = 1
    labels: tuple[tuple[str, str], ...] = ()
    model: str = ""
    spot: bool = False
    spares: int = 0
    idle_s: float | None = None
    preference: int = 0
    instances: tuple[Instance, ...] = ()
    autoscaler_labels: tuple[tuple[str, str], ...] = ()

    def label(self, key: str) -> str | None:
        """The value that each of its nodes has for a label (a topology level), None without it."""
        for name, value in self.labels:
            if name == key:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Order:
    """A growth that was asked of a group and is not complete yet: it takes no other decision meanwhile.

    `beneficiaries`: the gangs that need it, and in `shares` how many of its nodes each. `expected_s`: when the nodes
    should be there, by what was learned. `deadline_s`: when it is given up.
    """

    group: GroupName
    from_replicas: int
    to_replicas: int
    ordered_s: float
    expected_s: float
    deadline_s: float
    beneficiaries: tuple[WorkloadId, ...]
    reason: str
    shares: tuple[tuple[WorkloadId, int], ...] = ()


LEAST_LATENESS_S = 60.0
"""An order may always be so late: quick nodes teach an estimate of seconds, and the next one may have to wait for a
machine that is still being taken away."""


def order_deadline_s(now_s: float, provision_s: float, factor: float) -> float:
    """When an order for nodes that are expected after `provision_s` is given up."""
    return now_s + max(factor * provision_s, provision_s + LEAST_LATENESS_S)


@dataclass(frozen=True, slots=True)
class BackOff:
    """A group that refused, or had nothing to give, is not asked again before `until_s`."""

    until_s: float
    reason: str
    strikes: int


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group with what is under way in it.

    `provision_s`: how long a node is expected to take from order to join. `shrinks_to`: the count of a shrink that is
    under way; what it takes is LEAVING. `stays`: instances that could not be taken away a moment ago. `given_up`: nodes
    that did not come in time and could not be cancelled, for the minimum asks for them: nobody waits for them any more.
    """

    group: NodeGroup
    order: Order | None = None
    back_off: BackOff | None = None
    provision_s: float = 300.0
    shrinks_to: int | None = None
    stays: tuple[str, ...] = ()
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is known of where nodes come from. All tuples are sorted by name.

    `error`: why the provider could not be read the last time, empty while all is well; what is shown is then as old as
    `observed_s`, and nothing is decided on it. `fixed`: nobody listens who could add a node, so that no demand for
    nodes is worked out at all.
    """

    provider: Provider = Provider.NONE
    groups: tuple[GroupState, ...] = field(default=())
    observed_s: float = 0.0
    error: str = ""
    fixed: bool = False

    @property
    def decides(self) -> bool:
        """Whether we may change replica counts now."""
        return self.provider is Provider.OURS and not self.error
