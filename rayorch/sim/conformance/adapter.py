"""From a case to a snapshot for the planner, and from its plan back to the pods.

A job is a workload. Its tasks of one leaf group and one request are the members of a role; so many of each leaf's first
tasks as its minimum make up the gang, the others are surplus. What the schema calls unlimited is an amount beyond any
cluster. What nobody deserves can be borrowed by all: a queue of its own lends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayorch.core.decisions import Plan, Reserve, Resize, Start, Stop
from rayorch.core.fair_share import UNLIMITED
from rayorch.core.sharing import GPU_DEVICES, GPU_MEMORY
from rayorch.core.slot import Slot
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    CPU,
    GPU,
    Allocation,
    Device,
    GroupSpec,
    Kind,
    Member,
    MemberPhase,
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
from rayorch.sim.conformance.cases import ROUNDS, GroupText, JobText, NodeText, QueueText, TopologyText
from rayorch.sim.conformance.pods import (
    BINDING,
    ENDED,
    PENDING,
    PIPELINED,
    RELEASING,
    RUNNING,
    STUCK,
    SUCCEEDED,
    Pod,
    World,
    gpus_of,
)

MEMORY = "memory"
LEGACY_MIG = "legacy-mig"
"""What a task that has its instances by an annotation asks for, and no node has."""
MIB = 1 << 20
DEFAULT_GPU_MIB = 100
SPARE = QueueId("~spare")
"""The queue that lends what no queue deserves."""

LEAVING = "~leaving"
NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Seats:
    """The roles of a job, and which of its pods are members of each, in order."""

    roles: tuple[Role, ...]
    pods: dict[str, list[Pod]]


# ---------------------------------------------------------------- what exists


def node_spec(node: NodeText, levels: Iterable[str]) -> NodeSpec:
    """The node with its devices; one whose GPUs are partitioned has no whole ones."""
    mixed = node.mig is not None and node.mig.strategy == "mixed"
    gpus = 0 if mixed else int(node.gpus)
    amounts: dict[str, float] = {GPU: gpus, CPU: node.cpus, MEMORY: node.memory_bytes}
    if node.mig is not None:
        amounts |= {_instances(name): count for name, count in node.mig.instances.items() if count}
    memory = (node.gpu_memory_mib or DEFAULT_GPU_MIB) * MIB
    return NodeSpec(
        id=NodeId(node.name),
        name=node.name,
        total=Resources.of(amounts),
        devices=tuple(Device(i, memory_bytes=memory) for i in range(gpus)),
        labels=tuple(sorted(node.labels.items())),
        topology=tuple((level, node.labels[level]) for level in levels if level in node.labels),
        exact=gpus > 0,
    )


def _instances(name: str) -> str:
    """Our name of MIG instances of a profile: theirs is nvidia.com/mig-1g.10gb."""
    return name.rpartition("/")[2]


def queue_paths(queues: Iterable[QueueText]) -> dict[str, QueueId]:
    """The path of each queue; the order in which they were created is the order of their ids."""
    known = {queue.name: queue for queue in queues}

    def path(name: str) -> str:
        queue = known[name]
        own = f"{queue.created_order:03d}-{name}"
        return f"{path(queue.parent)}/{own}" if queue.parent in known else own

    return {name: QueueId(path(name)) for name in known}


def queue_specs(queues: tuple[QueueText, ...]) -> tuple[QueueSpec, ...]:
    """All queues by path, and the one that lends what nobody deserves."""
    paths = queue_paths(queues)
    found = [_queue_spec(queue, paths[queue.name]) for queue in queues]
    spare = Resources.of_units({GPU: UNLIMITED, CPU: UNLIMITED, MEMORY: UNLIMITED})
    found.append(QueueSpec(SPARE, deserved=spare, weight=0))
    return tuple(sorted(found, key=lambda spec: spec.id))


def _queue_spec(queue: QueueText, path: QueueId) -> QueueSpec:
    deserved = {
        GPU: _units(queue.quota_gpus),
        CPU: _units(queue.quota_cpu_milli, 1000),
        MEMORY: _units(queue.quota_memory),
    }
    limits = {
        GPU: _units(queue.limit_gpus),
        CPU: _units(queue.limit_cpu_milli, 1000),
        MEMORY: _units(queue.limit_memory),
    }
    return QueueSpec(
        path,
        deserved=Resources.of_units(deserved),
        hard_cap=Resources.of_units({name: max(1, n) for name, n in limits.items() if n < UNLIMITED}),
        weight=max(0, int(queue.over_quota_weight)),
        weights=((CPU, 1), (MEMORY, 1)),  # the schema names those of GPUs; theirs is 1 for the others
        surplus_priority=queue.priority,
    )


def _units(amount: float, per: float = 1.0) -> int:
    return UNLIMITED if amount < 0 else round(amount / per * 10_000)


# ---------------------------------------------------------------- what is asked for


def bundle_of(pod: Pod) -> Resources:
    """What one task asks for."""
    job = pod.job
    amounts: dict[str, float] = {GPU: gpus_of(pod)}
    if not job.best_effort:
        amounts[CPU] = job.cpu_per_task if job.cpu_per_task is not None else 1
        amounts[MEMORY] = job.memory_per_task if job.memory_per_task is not None else 1e9
    if pod.task.mig:
        amounts[GPU] = 0
        amounts |= {_instances(name): count for name, count in pod.task.mig.items() if count}
    elif job.gpu_memory_mib is not None:
        amounts[GPU] = 0
        amounts[GPU_MEMORY] = job.gpu_memory_mib * (job.fraction_devices or 1)
    if job.fraction_devices and job.fraction_devices > 1:
        amounts[GPU_DEVICES] = job.fraction_devices
        amounts[GPU] *= job.fraction_devices
    if pod.task.legacy_mig:
        amounts[LEGACY_MIG] = 1
    return Resources.of(amounts)


def held_by(world: World, pod: Pod) -> Resources:
    """What a task holds on its node: a request by memory is a part of a GPU there."""
    bundle = bundle_of(pod)
    node = next((n for n in world.case.nodes if n.name == pod.node), None)
    if node is not None and node.mig is not None and pod.task.legacy_mig:  # which instances it has is not known
        return bundle + Resources.of({_instances(name): count for name, count in node.mig.instances.items()})
    return bundle if node is None else Slot.empty(node_spec(node, ())).realised(bundle, pod.devices)


def leaves(job: JobText) -> dict[str, tuple[int, str]]:
    """Each leaf group's minimum, and the group that its roles belong to."""
    if job.subgroups is None:
        return {"default": (job.min_available, "")}
    found: dict[str, tuple[int, str]] = {}

    def walk(group: GroupText, name: str) -> None:
        for podset in group.podsets:
            own = podset.name if podset.topology is not None else name
            found[podset.name] = (podset.min_available, own)
        for child in group.subgroups:
            walk(child, child.name)

    walk(job.subgroups, outermost(job.subgroups))
    return found


def outermost(root: GroupText) -> str:
    """The group that stands for the whole job: the gang itself, unless it needs only some of its children."""
    return "" if root.min_subgroups is None else "~all"


def groups(job: JobText) -> tuple[GroupSpec, ...]:
    """The groups inside the job; the outermost is the gang itself."""
    found: list[GroupSpec] = []

    def walk(group: GroupText, name: str) -> None:
        for podset in group.podsets:
            if podset.topology is not None:
                found.append(GroupSpec(podset.name, name, None, _topology(podset.topology)))
        for child in group.subgroups:
            found.append(GroupSpec(child.name, name, child.min_subgroups, _topology(child.topology)))
            walk(child, child.name)

    if job.subgroups is not None:
        root = outermost(job.subgroups)
        if root:
            found.append(GroupSpec(root, "", job.subgroups.min_subgroups))
        walk(job.subgroups, root)
    return tuple(found)


def _topology(text: TopologyText | None) -> TopologyRequest:
    return TopologyRequest(text.required, text.preferred) if text is not None else TopologyRequest()


def seats_of(job: JobText, pods: list[Pod]) -> Seats:
    """The roles of a job. Which tasks make up a leaf's minimum: those that run, then in their order."""
    alive = [p for p in pods if p.status not in (*ENDED, RELEASING, STUCK)]
    roles: list[Role] = []
    members: dict[str, list[Pod]] = {}
    for leaf, (minimum, group) in leaves(job).items():
        ours = [p for p in alive if p.leaf == leaf]
        first = sorted(ours, key=lambda p: (p.status == PENDING, p.order))[:minimum]
        kinds: dict[Resources, list[Pod]] = {}
        if not ours:  # all of its tasks have ended
            kinds = {bundle_of(p): [] for p in pods if p.leaf == leaf}
        for pod in ours:
            kinds.setdefault(bundle_of(pod), []).append(pod)
        for number, (bundle, of_kind) in enumerate(kinds.items()):
            name = f"{leaf}.{number}"
            members[name] = of_kind
            least = sum(1 for p in first if p in of_kind)
            if not number:  # tasks that have ended are still part of the minimum
                least += max(0, minimum - len(first))
            roles.append(Role(name, bundle, least, max(least, len(of_kind)), group))
    return Seats(tuple(roles), members)


def is_ready(job: JobText, pods: list[Pod]) -> bool:
    """Whether enough tasks exist for the minimum; otherwise the job is not looked at."""
    alive = [p for p in pods if p.status not in ENDED]

    def enough(group: GroupText) -> bool:
        able = [sum(1 for p in alive if p.leaf == podset.name) >= podset.min_available for podset in group.podsets] + [
            enough(child) for child in group.subgroups
        ]
        least = group.min_subgroups if group.min_subgroups is not None else len(able)
        return sum(able) >= least

    if job.subgroups is not None:
        return enough(job.subgroups)
    return len(alive) >= job.min_available


def _spec(job: JobText, queue: QueueId, seats: Seats) -> WorkloadSpec:
    root = job.subgroups.topology if job.subgroups is not None else None
    return WorkloadSpec(
        id=WorkloadId(job.name),
        name=job.name,
        kind=Kind.JOB,
        queue=queue,
        roles=seats.roles,
        priority=job.priority,
        preemptible=job.preemptibility == "preemptible",
        resizable=True,
        topology=_topology(root),
        groups=groups(job),
        preemption_delay_s=job.preemption_delay_s or 0.0,
        stale_grace_s=job.staleness_grace_s,
    )


# ---------------------------------------------------------------- the snapshot


def snapshot_of(world: World) -> Snapshot:
    """All that the planner may know of the case at this moment."""
    case = world.case
    levels = tuple(dict.fromkeys(level for topology in case.topologies for level in topology.levels))
    paths = queue_paths(case.queues)
    workloads: list[Workload] = []
    allocations: list[Allocation] = []
    for job in case.jobs:
        pods = world.of_job(job.name)
        queue = paths.get(job.queue, QueueId("~unknown"))
        for workload, allocation in (*_present(world, job, queue, pods), *_leaving(world, job, queue, pods)):
            workloads.append(workload)
            if allocation is not None:
                allocations.append(allocation)
    return Snapshot(
        versions=Versions(),
        now_s=world.now_s,
        queues=queue_specs(case.queues),
        workloads=tuple(sorted(workloads, key=lambda w: w.id)),
        nodes=tuple(sorted((node_spec(node, levels) for node in case.nodes), key=lambda n: n.id)),
        allocations=tuple(sorted(allocations, key=lambda a: a.workload)),
        what_if_budget=10_000,
    )


def _present(
    world: World, job: JobText, queue: QueueId, pods: list[Pod]
) -> Iterable[tuple[Workload, Allocation | None]]:
    """The job itself, if any of its tasks runs or waits."""
    seats = seats_of(job, pods)
    running = [p for p in pods if p.status == RUNNING]
    if not running and not any(p.status == PENDING for p in pods):
        return
    history = world.histories[job.name]
    submitted_s = world.now_s - job.age_minutes * 60.0
    spec = _spec(job, queue, seats)
    not_before_s = 0.0 if is_ready(job, pods) else world.now_s + NEVER_S
    if not running:
        yield (
            Workload(
                spec,
                State.PENDING,
                submitted_s,
                attempt=history.attempt,
                not_before_s=not_before_s,
                requeued_s=history.requeued_s,
                yielded_to=history.yielded_to,
            ),
            None,
        )
        return
    members = tuple(_members(world, seats))
    yield (
        Workload(
            spec,
            State.RUNNING,
            submitted_s,
            attempt=history.attempt,
            size=tuple((role.name, sum(1 for m in members if m.role == role.name)) for role in spec.roles),
            started_s=history.started_s,
            ready_s=history.started_s,
            short_since_s=_short_since_s(world, job, pods),
            lease_renewed_s=world.now_s,
            not_before_s=not_before_s,
            requeued_s=history.requeued_s,
            yielded_to=history.yielded_to,
        ),
        Allocation(WorkloadId(job.name), history.attempt, members, world.now_s - 60.0, world.now_s),
    )


def _short_since_s(world: World, job: JobText, pods: list[Pod]) -> float | None:
    """Since when the gang has been below its minimum; never where one of its tasks has succeeded.

    In rounds the time is measured from when the rounds began.
    """
    if any(p.status == SUCCEEDED for p in pods):
        return None
    if job.stale_for_s is not None:
        return world.now_s - job.stale_for_s
    return world.began_s if world.case.mode == ROUNDS else None


def _members(world: World, seats: Seats) -> Iterable[Member]:
    """Seats of the running tasks: the first of each role make up the gang, the later ones are surplus."""
    minimum = {role.name: role.min_count for role in seats.roles}
    surplus = 0
    bundle_index = 0
    for name, pods in seats.pods.items():
        running = [(index, p) for index, p in enumerate(pods) if p.status == RUNNING]
        for nth, (index, pod) in enumerate(running):
            inside = nth < minimum[name]
            surplus += 0 if inside else 1
            yield Member(
                role=name,
                index=index,
                node=NodeId(pod.node or ""),
                bundle=held_by(world, pod),
                surplus=0 if inside else surplus,
                bundle_index=bundle_index if inside else 0,
                phase=MemberPhase.READY,
                devices=pod.devices,
            )
            bundle_index += int(inside)


def _leaving(
    world: World, job: JobText, queue: QueueId, pods: list[Pod]
) -> Iterable[tuple[Workload, Allocation | None]]:
    """Tasks that are being released, as an attempt of their own that is ending; a stuck one as one that stays."""
    for status in (RELEASING, STUCK):
        gone = [p for p in pods if p.status == status]
        if not gone:
            continue
        id = WorkloadId(f"{job.name}{LEAVING}")
        roles = tuple(Role(f"r{i}", bundle_of(p), 1, 1) for i, p in enumerate(gone))
        spec = WorkloadSpec(id, id, Kind.JOB, queue, roles, priority=job.priority, preemptible=False)
        order = StopOrder(StopCause.PREEMPTED, "is leaving", world.now_s, world.now_s + 30.0)
        leaving = status == RELEASING
        workload = Workload(
            spec,
            State.STOPPING if leaving else State.RUNNING,
            world.now_s - job.age_minutes * 60.0,
            attempt=1,
            started_s=world.now_s - 60.0,
            lease_renewed_s=world.now_s,
            stop=order if leaving else None,
        )
        members = tuple(
            Member(f"r{i}", 0, NodeId(p.node or ""), held_by(world, p), 0, i, MemberPhase.READY, devices=p.devices)
            for i, p in enumerate(gone)
        )
        yield workload, Allocation(id, 1, members, world.now_s - 60.0, world.now_s)


# ---------------------------------------------------------------- the plan


def apply(world: World, plan: Plan) -> None:
    """What the plan makes of the pods: bound, nominated, evicted or moved."""
    stops = {d.workload: d for d in plan.decisions if isinstance(d, Stop)}
    removals = {d.workload: set(d.remove) for d in plan.decisions if isinstance(d, Resize) and d.remove}
    beneficiaries = {d.workload: d.beneficiary for d in plan.decisions if isinstance(d, Resize) and d.remove}
    beneficiaries |= {id: stop.order.beneficiary for id, stop in stops.items()}
    for job in world.case.jobs:
        id = WorkloadId(job.name)
        pods = world.of_job(job.name)
        seats = seats_of(job, pods)
        if id in stops or id in removals:
            numbers = {(m.role, m.index): m.surplus for m in _members(world, seats)}
            for name, of_role in seats.pods.items():
                for index, pod in enumerate(of_role):
                    if pod.status == RUNNING and (id in stops or numbers[name, index] in removals[id]):
                        pod.status = RELEASING
            history = world.histories[job.name]
            history.requeued_s, history.yielded_to = world.now_s, beneficiaries[id]
        for decision in plan.decisions:
            match decision:
                case Start(workload=found, members=members) if found == id:
                    _seat(seats, members, BINDING)
                    world.histories[job.name].started_s = world.now_s
                    world.histories[job.name].attempt += 1
                case Resize(workload=found, add=members) if found == id:
                    _seat(seats, members, BINDING)
                case Reserve(workload=found, members=members, from_release=True) if found == id:
                    _seat(seats, members, PIPELINED, moved=id in stops or id in removals)
                case _:
                    pass


def _seat(seats: Seats, members: tuple[Member, ...], status: str, moved: bool = False) -> None:
    """Give the members to the pods of their roles that wait (that were just stopped, where they are moved)."""
    waiting = RELEASING if moved else PENDING
    for member in sorted(members, key=lambda m: (m.role, m.index)):
        pod = next((p for p in seats.pods.get(member.role, ()) if p.status == waiting), None)
        if pod is not None:
            pod.status, pod.node, pod.devices = status, member.node, member.devices
