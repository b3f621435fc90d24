"""Small builders: a cluster and its queue in a few words. State goes in, decisions come out, compared with ==."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rayorch.core.decisions import Plan, Reserve, Resize, Scale, Start, Stop, WaitReason
from rayorch.core.policy import DefragmentKnobs
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    MODEL_LABEL,
    Allocation,
    Demand,
    Device,
    Kind,
    Member,
    MemberPhase,
    NodeHealth,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    State,
    StopCause,
    StopOrder,
    TopologyRequest,
    Workload,
    WorkloadId,
    WorkloadSpec,
)

NOW = 1000.0
"""The time of every snapshot, unless it says otherwise."""
LIVELY = DefragmentKnobs(
    every_s=2.0,
    most=1.0,
    window_s=30.0,
    cooldown_s=3.0,
    most_lost_s=600.0,
    worth_s=1e6,
    least_gain=0.0,
    while_waiting=True,
)
"""Moves that come often."""


def gpus(amount: float, **others: float) -> Resources:
    """`gpus(1, CPU=4)`."""
    return Resources.of({"GPU": amount, **others})


def node(
    name: str,
    gpu: int = 8,
    rack: str | None = None,
    zone: str | None = None,
    cpu: float = 64,
    health: NodeHealth = NodeHealth.OK,
    model: str = "",
    **changes: Any,
) -> NodeSpec:
    """A node whose id is its name; its GPUs of one model, if one is named. Further fields of NodeSpec by keyword."""
    path = [(level, value) for level, value in (("zone", zone), ("rack", rack)) if value is not None]
    spec = NodeSpec(
        id=NodeId(name),
        name=name,
        total=Resources.of({"GPU": gpu, "CPU": cpu}),
        devices=tuple(Device(index, model) for index in range(gpu)),
        labels=((MODEL_LABEL, model),) if model else (),
        topology=tuple(path),
        health=health,
    )
    return replace(spec, **changes)


def queue(
    path: str, deserved: float = 0, borrow: float | None = None, lend: float | None = None, weight: int = 1
) -> QueueSpec:
    """A queue with a share of GPUs; without `deserved` and `borrow` it is unlimited."""
    return QueueSpec(
        QueueId(path),
        gpus(deserved),
        None if borrow is None else gpus(borrow),
        None if lend is None else gpus(lend),
        weight,
    )


def spec(
    id: str,
    members: int | tuple[int, int] = 1,
    gpu: float = 1,
    queue: str = "q",
    priority: int = 0,
    kind: Kind = Kind.TRAIN,
    rack: str = "",
    roles: tuple[Role, ...] = (),
    cpu: float = 0,
    **changes: Any,
) -> WorkloadSpec:
    """A workload of one role "worker"; `members=(2, 4)` makes it resizable. `rack`: "required" or "preferred"."""
    least, most = members if isinstance(members, tuple) else (members, members)
    topology = TopologyRequest(
        required="rack" if rack == "required" else None, preferred="rack" if rack == "preferred" else None
    )
    made = WorkloadSpec(
        id=WorkloadId(id),
        name=id,
        kind=kind,
        queue=QueueId(queue),
        roles=roles or (Role("worker", gpus(gpu, CPU=cpu), least, most),),
        priority=priority,
        resizable=most > least,
        topology=topology,
    )
    return replace(made, **changes)


def pending(id: str, members: int | tuple[int, int] = 1, submitted_s: float = 0.0, **asked: Any) -> Workload:
    """A workload that waits. Fields of the Workload that a test needs go in by `dataclasses.replace`."""
    return Workload(spec(id, members, **asked), State.PENDING, submitted_s)


def running(
    id: str,
    on: Sequence[str],
    members: int | tuple[int, int] | None = None,
    started_s: float = 0.0,
    submitted_s: float = 0.0,
    demand: tuple[int, int] | None = None,
    **asked: Any,
) -> tuple[Workload, Allocation]:
    """A workload whose members sit on these nodes, one per name; those above its minimum are surplus."""
    made = spec(id, members if members is not None else len(on), **asked)
    role = made.roles[0]
    serve = made.kind is Kind.SERVE
    seats = []
    for index, name in enumerate(on):
        surplus = index + 1 if serve else max(0, index - role.min_count + 1)
        bundle_index = 0 if surplus else index
        seats.append(
            Member(role.name, index, NodeId(name), role.bundle, surplus, bundle_index, MemberPhase.READY, f"g{surplus}")
        )
    workload = Workload(
        spec=made,
        state=State.RUNNING,
        submitted_s=submitted_s,
        attempt=1,
        size=((role.name, len(on)),),
        started_s=started_s,
        ready_s=started_s,
        lease_renewed_s=NOW,
        placement=tuple(seats),
        demand=None if demand is None else Demand(demand[0], demand[1], NOW),
    )
    gang = tuple(range(1, role.min_count + 1)) if serve else (0,)
    return workload, Allocation(made.id, 1, tuple(seats), started_s, started_s + 30.0, gang=gang)


def stopping(
    held: tuple[Workload, Allocation],
    beneficiary: str | None = None,
    deadline_s: float = NOW + 20,
    cause: StopCause = StopCause.PREEMPTED,
) -> tuple[Workload, Allocation]:
    """A running workload that has been ordered to stop."""
    workload, allocation = held
    order = StopOrder(cause, "asked to", NOW - 5, deadline_s, None if beneficiary is None else WorkloadId(beneficiary))
    return replace(workload, state=State.STOPPING, stop=order), allocation


def releasing(held: tuple[Workload, Allocation], *surplus: int, beneficiary: str = "") -> tuple[Workload, Allocation]:
    """A running workload that is leaving some surplus seats."""
    workload, allocation = held
    members = tuple(replace(m, phase=MemberPhase.RELEASING) if m.surplus in surplus else m for m in allocation.members)
    leaving = replace(workload, release_by_s=NOW + 20, release_for=WorkloadId(beneficiary) if beneficiary else None)
    return leaving, replace(allocation, members=members)


def snapshot(
    nodes: Iterable[NodeSpec],
    work: Iterable[object] = (),
    queues: Iterable[QueueSpec] = (),
    now_s: float = NOW,
    synced: bool = True,
    what_if_budget: int = 1000,
) -> Snapshot:
    """All of it together, sorted as a Snapshot is. `work`: workloads, or (workload, allocation) pairs.

    Without queues there is one unlimited queue "q".
    """
    workloads: list[Workload] = []
    allocations: list[Allocation] = []
    for item in work:
        for part in item if isinstance(item, tuple) else (item,):
            if isinstance(part, Workload):
                workloads.append(part)
            elif isinstance(part, Allocation):
                allocations.append(part)
            else:
                raise TypeError(f"neither a workload nor an allocation: {part!r}")
    return Snapshot(
        versions=Versions(1, 1, 1),
        now_s=now_s,
        queues=tuple(sorted(queues or (queue("q"),), key=lambda q: q.id)),
        workloads=tuple(sorted(workloads, key=lambda w: w.id)),
        nodes=tuple(sorted(nodes, key=lambda n: n.id)),
        allocations=tuple(sorted(allocations, key=lambda a: (a.workload, a.attempt))),
        synced=synced,
        what_if_budget=what_if_budget,
    )


# ---------------------------------------------------------------- what came out, in few words


def started(plan: Plan) -> dict[str, list[str]]:
    """Which workloads start, in order, and the nodes of their members."""
    return {d.workload: [m.node for m in d.members] for d in plan.decisions if isinstance(d, Start)}


def stopped(plan: Plan) -> dict[str, StopCause]:
    """Which workloads are stopped, and why."""
    return {d.workload: d.order.cause for d in plan.decisions if isinstance(d, Stop)}


def shrunk(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Which surplus seats are taken from whom."""
    return {d.workload: d.remove for d in plan.decisions if isinstance(d, Resize) and d.remove}


def grown(plan: Plan) -> dict[str, list[str]]:
    """The nodes of the seats that running workloads gain."""
    return {d.workload: [m.node for m in d.add] for d in plan.decisions if isinstance(d, Resize) and d.add}


def resizes(plan: Plan) -> list[Resize]:
    """The resizes themselves."""
    return [d for d in plan.decisions if isinstance(d, Resize)]


def reserved(plan: Plan) -> dict[str, list[str]]:
    """The nodes of the seats that are promised in room that comes free."""
    return {
        d.workload: [m.node for m in d.members] for d in plan.decisions if isinstance(d, Reserve) and d.from_release
    }


def held_for(plan: Plan) -> dict[str, list[str]]:
    """The nodes that are held for heads of queues."""
    return {
        d.workload: [m.node for m in d.members] for d in plan.decisions if isinstance(d, Reserve) and not d.from_release
    }


def wanted(plan: Plan) -> list[str]:
    """For which workloads new nodes are asked."""
    return [gang.workload for d in plan.decisions if isinstance(d, Scale) for gang in d.wanted]


def reasons(plan: Plan, id: str) -> list[WaitReason]:
    """Why a workload waits."""
    return [wait.reason for wait in plan.waits.get(WorkloadId(id), ())]


def changes(plan: Plan) -> list[Start | Stop | Resize]:
    """Decisions that change something: no reservations, no demand for nodes."""
    return [d for d in plan.decisions if isinstance(d, Start | Stop | Resize)]
