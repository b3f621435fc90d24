"""What a scenario expects at a moment, held against what is: one finding for each thing that is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rayorch.core.capacity import GroupName
from rayorch.core.events import Event, Started, StopOrdered
from rayorch.core.types import GPU, UNIT, QueueId, StopCause, Workload, WorkloadId
from rayorch.sim.cluster import SimCluster
from rayorch.sim.scenario_text import Text

EVICTIONS = (StopCause.PREEMPTED, StopCause.RECLAIMED)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `subject` should be `expected` and is `seen`."""

    subject: str
    expected: str
    seen: str
    holds: bool

    def __str__(self) -> str:
        return f"{self.subject}: expected {self.expected}, seen {self.seen}"


class OneOf(Text):
    """`count` of the workloads `of` are in `state`; which of them is left open."""

    of: list[str]
    state: str = "RUNNING"
    count: int


class Expect(Text):
    """What must be true. Only what is named is looked at.

    Of workloads: `states`, `attempts`, `preemptions`, `failures`, `node_losses`, `start_failures`; `causes`: why its
    last attempt was ended by us; `sizes`: members that the attempt has. `waits`: reasons that must be among a
    workload's. `not_waits`: reasons that must not. `says`: text in the detail of one of its waits, or in its reason
    once it has ended. `on`: the group on whose nodes all its members are. `nodes_of`: the nodes that its members are
    on, each once. `within`: the topology level of which all its members share one value. `apart`: two workloads that
    share no node. `unknown_workloads`: ids that nobody has heard of. `one_of`: see OneOf.
    Of the whole: `running`: how many run. `started`: who began an attempt so far, in this order. `evicted`: who was
    evicted at least once. `evictions`: how many evictions there were, at most. `charged`: GPUs by queue (or amounts by
    resource). `held`: GPUs in the allocator's books.
    Of groups: `replicas`, `nodes`: asked for and up; `machines`: ever made; `patches`: of ours, at most; `ordered`:
    those with an open order; `backed_off`: those left alone; `unknown`: whether the provider can't be read.
    """

    states: dict[str, str] = {}
    attempts: dict[str, int] = {}
    preemptions: dict[str, int] = {}
    failures: dict[str, int] = {}
    node_losses: dict[str, int] = {}
    start_failures: dict[str, int] = {}
    causes: dict[str, str] = {}
    sizes: dict[str, int] = {}
    waits: dict[str, list[str]] = {}
    not_waits: dict[str, list[str]] = {}
    says: dict[str, str] = {}
    on: dict[str, str] = {}
    nodes_of: dict[str, list[str]] = {}
    within: dict[str, str] = {}
    apart: list[tuple[str, str]] = []
    unknown_workloads: list[str] = []
    one_of: list[OneOf] = []
    running: int | None = None
    started: list[str] | None = None
    evicted: list[str] | None = None
    evictions: int | None = None
    charged: dict[str, float | dict[str, float]] = {}
    held: float | None = None
    replicas: dict[str, int] = {}
    nodes: dict[str, int] = {}
    machines: dict[str, int] = {}
    patches: dict[str, int] = {}
    ordered: list[str] | None = None
    backed_off: list[str] | None = None
    unknown: bool | None = None


def findings(cluster: SimCluster, expect: Expect) -> list[Finding]:
    """Everything that was looked at."""
    return [
        *_workloads(cluster, expect),
        *_places(cluster, expect),
        *_waits(cluster, expect),
        *_whole(cluster, expect),
        *_groups(cluster, expect),
    ]


def check(cluster: SimCluster, expect: Expect) -> list[str]:
    """What is not as it should be."""
    return [str(finding) for finding in findings(cluster, expect) if not finding.holds]


def _equal(subject: str, expected: object, seen: object) -> Finding:
    return Finding(subject, str(expected), str(seen), expected == seen)


def _of(cluster: SimCluster, id: str) -> Workload | None:
    return cluster.tree.workloads.get(WorkloadId(id))


def _workloads(cluster: SimCluster, expect: Expect) -> Iterator[Finding]:
    counts: dict[str, Mapping[str, int]] = {
        "attempt": expect.attempts,
        "preemptions": expect.preemptions,
        "failures": expect.failures,
        "node_losses": expect.node_losses,
        "start_failures": expect.start_failures,
    }
    for id, state in expect.states.items():
        found = _of(cluster, id)
        yield _equal(f"state of {id}", state, found.state.value if found is not None else "unknown")
    for field, wanted in counts.items():
        for id, number in wanted.items():
            yield _equal(f"{field} of {id}", number, getattr(_of(cluster, id), field, None))
    for id, cause in expect.causes.items():
        found = _of(cluster, id)
        last = found.last_cause if found is not None else None
        yield _equal(f"cause of {id}'s last end", cause, last.value if last is not None else None)
    for id, number in expect.sizes.items():
        found = _of(cluster, id)
        yield _equal(f"members of {id}", number, len(found.placement) if found is not None else None)
    for id in expect.unknown_workloads:
        yield Finding(id, "unknown", "known", _of(cluster, id) is None)
    for one in expect.one_of:
        there = [id for id in one.of if (w := _of(cluster, id)) is not None and w.state.value == one.state]
        subject = f"{one.state} among {', '.join(one.of)}"
        yield Finding(subject, str(one.count), f"{len(there)} ({', '.join(there)})", len(there) == one.count)


def _places(cluster: SimCluster, expect: Expect) -> Iterator[Finding]:
    nodes = cluster.inventory.nodes

    def on(id: str) -> set[str]:
        found = _of(cluster, id)
        return {m.node for m in found.placement} if found is not None else set()

    for id, group in expect.on.items():
        yield _equal(f"groups of {id}", [group], sorted({nodes[n].group for n in nodes if n in on(id)}))
    for id, wanted in expect.nodes_of.items():
        yield _equal(f"nodes of {id}", sorted(wanted), sorted(on(id)))
    for id, level in expect.within.items():
        values = sorted({str(nodes[n].domain(level)) for n in nodes if n in on(id)})
        yield Finding(f"{level} of {id}", "one", str(values), len(values) == 1 and values != ["None"])
    for one, other in expect.apart:
        yield _equal(f"nodes that {one} and {other} share", [], sorted(on(one) & on(other)))


def _waits(cluster: SimCluster, expect: Expect) -> Iterator[Finding]:
    plan = cluster.controller.plans[-1][1] if cluster.controller.plans else None
    for id in sorted({*expect.waits, *expect.not_waits, *expect.says}):
        waits = plan.waits.get(WorkloadId(id), ()) if plan is not None else ()
        reasons = [wait.reason.value for wait in waits]
        found = _of(cluster, id)
        details = [wait.detail for wait in waits] or [found.reason if found is not None else "unknown"]
        seen = f"{reasons}: {details}"
        wanted, unwanted = expect.waits.get(id, []), expect.not_waits.get(id, [])
        if wanted:
            yield Finding(f"why {id} waits", f"{wanted} among it", seen, set(wanted) <= set(reasons))
        if unwanted:
            yield Finding(f"why {id} waits", f"{unwanted} not among it", seen, not set(unwanted) & set(reasons))
        text = expect.says.get(id, "")
        if text:
            yield Finding(f"what {id} says", repr(text), str(details), any(text in detail for detail in details))


def _whole(cluster: SimCluster, expect: Expect) -> Iterator[Finding]:
    if expect.running is not None:
        running = sorted(w.id for w in cluster.tree.workloads.values() if w.state.value == "RUNNING")
        seen = f"{len(running)} ({', '.join(running[:10])})"
        yield Finding("how many run", str(expect.running), seen, len(running) == expect.running)
    if expect.started is not None:
        yield _equal("who started, in order", expect.started, list(starts(cluster.history)))
    evictions = [event.workload for event in evictions_in(cluster.history)]
    if expect.evicted is not None:
        yield _equal("who was evicted", sorted(expect.evicted), sorted(set(evictions)))
    if expect.evictions is not None:
        seen = f"{len(evictions)} ({', '.join(evictions[:10])})"
        yield Finding("evictions", f"at most {expect.evictions}", seen, len(evictions) <= expect.evictions)
    for queue, amount in expect.charged.items():
        used = cluster.tree.used(QueueId(queue))
        for name, wanted in (amount if isinstance(amount, dict) else {GPU: amount}).items():
            yield _equal(f"{name} charged to {queue}", wanted, used.units(name) / UNIT)
    if expect.held is not None:
        held = sum(a.held.gpu_units for a in cluster.books.allocations.values()) / UNIT
        yield _equal("GPUs held", expect.held, held)


def starts(history: Iterable[Event]) -> Iterator[str]:
    """Whose attempts began, in order."""
    return (event.workload for event in history if isinstance(event, Started))


def evictions_in(history: Iterable[Event]) -> Iterator[StopOrdered]:
    """The stops that were ordered for somebody else's sake."""
    return (event for event in history if isinstance(event, StopOrdered) and event.order.cause in EVICTIONS)


def _groups(cluster: SimCluster, expect: Expect) -> Iterator[Finding]:
    scaling = cluster.scaling
    if scaling is None:
        return
    provider = scaling.provider
    capacity = scaling.capacity()
    up = [node.group for node in cluster.world.nodes.values()]
    patches = [patch.group for patch in provider.patches if patch.ours]
    for name, count in expect.replicas.items():
        yield _equal(f"replicas of {name}", count, provider.groups[GroupName(name)].replicas)
    for name, count in expect.nodes.items():
        yield _equal(f"nodes of {name}", count, up.count(name))
    for name, count in expect.machines.items():
        yield _equal(f"machines of {name} ever made", count, provider.made(GroupName(name)))
    for name, count in expect.patches.items():
        made = patches.count(GroupName(name))
        yield Finding(f"patches of {name}", f"at most {count}", str(made), made <= count)
    if expect.ordered is not None:
        ordered: list[str] = [s.group.name for s in capacity.groups if s.order is not None]
        yield _equal("groups with an open order", sorted(expect.ordered), ordered)
    if expect.backed_off is not None:
        off: list[str] = [s.group.name for s in capacity.groups if s.back_off and s.back_off.until_s > cluster.now_s]
        yield _equal("groups that are backed off", sorted(expect.backed_off), off)
    if expect.unknown is not None:
        yield _equal("whether capacity is unknown", expect.unknown, bool(capacity.error))
