"""What node groups give back: nodes that have not come and nobody needs at once, idle ones after a delay.

A node goes only with its whole replica, when nothing is on it, nobody is promised a seat there, no waiting gang counts
on it and it has been idle for long enough; spares stay, and so does the minimum. What has not come yet goes only by the
name of its machine: a lower count alone would let the provider choose, perhaps one that has just become a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayorch.core.capacity import GroupName, Instance, InstancePhase, NodeGroup
from rayorch.core.decisions import GroupChange
from rayorch.core.planning.arrivals import Standing, idle_after_s
from rayorch.core.planning.claims import Claim
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.provision import Stock
from rayorch.core.planning.reseat import reseated
from rayorch.core.types import NodeHealth, NodeId, NodeSpec


@dataclass(frozen=True, slots=True)
class _Replica:
    """Machines that go together. `idle_since_s`: since when all their nodes have been free to go."""

    instances: tuple[Instance, ...]
    nodes: tuple[NodeSpec, ...] = ()
    idle_since_s: float = 0.0

    @property
    def names(self) -> list[str]:
        """The machines' names."""
        return [instance.name for instance in self.instances]


def release(
    draft: Draft, stock: Stock, growing: frozenset[GroupName], asking: Sequence[Claim], placeless: Sequence[Claim]
) -> dict[GroupName, GroupChange]:
    """The shrinks, by group; none for groups that grow in this plan or are shrinking already.

    `asking`, `placeless`: who waits for nodes, and who of them found no place in `stock`.
    """
    found = _shrinks(draft, stock, growing, None)
    if found and (other := reseated(draft, asking, placeless)) is not None:
        found = _shrinks(draft, stock, growing, other)
    return found


def _shrinks(
    draft: Draft, stock: Stock, growing: frozenset[GroupName], other: Stock | None
) -> dict[GroupName, GroupChange]:
    """What nobody counts on, neither in `stock` nor, if there are such, in the `other` books."""
    occupied = _occupied(draft) | stock.needed | (other.needed if other is not None else frozenset())
    found: dict[GroupName, GroupChange] = {}
    for name, source in stock.sources.items():
        state = source.standing.state
        settled = state.group.replicas == source.standing.replicas
        if name in growing or state.shrinks_to is not None or not settled:
            continue
        unneeded = stock.unneeded(source)
        if other is not None:
            unneeded = min(unneeded, other.unneeded(other.sources[name]))
        change = _shrink(draft, source.standing, occupied, unneeded)
        if change is not None:
            found[name] = change
    return found


def _occupied(draft: Draft) -> set[NodeId]:
    """Nodes where somebody holds, gets or is promised a seat, and those that are held for a head."""
    found = {member.node for allocation in draft.facts.snapshot.allocations for member in allocation.members}
    found.update(draft.closed)
    if draft.cells is not None:
        found.update(draft.cells.keep)
    found.update(member.node for start in draft.starts.values() for member in start.members)
    found.update(member.node for members in draft.added.values() for member in members)
    found.update(member.node for reserve in draft.reserves for member in reserve.members)
    return found


def _shrink(draft: Draft, standing: Standing, occupied: set[NodeId], unneeded: int) -> GroupChange | None:
    group, now_s = standing.state.group, draft.facts.now_s
    replicas = _replicas(group, standing)
    idle = _idle(replicas, standing, occupied, now_s)
    may_go = group.replicas - group.min_replicas
    late = _not_come(replicas, standing, unneeded // group.hosts, spare=max(0, group.spares - len(idle)))
    late = late[: max(0, may_go)]
    due: list[_Replica] = []
    if standing.state.order is None:
        after_s = idle_after_s(standing, draft.facts.profile)
        due = [replica for replica in idle if now_s - replica.idle_since_s >= after_s]
        due = due[: max(0, min(len(idle) - group.spares, may_go - len(late)))]
    going = [*late, *due]
    if not going:
        return None
    return GroupChange(
        group=group.name,
        from_replicas=group.replicas,
        to_replicas=group.replicas - len(going),
        reason=_reason(standing, late, due, now_s),
        beneficiaries=standing.state.order.beneficiaries if standing.state.order is not None else (),
        instances=tuple(sorted(name for replica in going for name in replica.names)),
        nodes=tuple(sorted(node.id for replica in going for node in replica.nodes)),
    )


def _reason(standing: Standing, late: list[_Replica], due: list[_Replica], now_s: float) -> str:
    parts = []
    back_off = standing.state.back_off
    if late and standing.resting_s and back_off is not None:
        parts.append(f"{len(late)} replicas did not come: {back_off.reason}")
    elif late and standing.state.order is None:
        parts.append(f"{len(late)} replicas did not come in time, and others have")
    elif late:
        parts.append(f"{len(late)} replicas that have not come yet are not needed any more")
    if due:
        since_s = now_s - max(replica.idle_since_s for replica in due)
        parts.append(f"{len(due)} replicas have been idle for {since_s:.0f} s and more")
    return "; ".join(parts)


def _replicas(group: NodeGroup, standing: Standing) -> list[tuple[Instance, ...]]:
    """The group's machines by replica; a node whose machine isn't listed is none that could be named."""
    found: dict[str, list[Instance]] = {}
    for instance in group.instances:
        found.setdefault(instance.replica, []).append(instance)
    return [tuple(found[name]) for name in sorted(found)]


def _idle(
    replicas: list[tuple[Instance, ...]], standing: Standing, occupied: set[NodeId], now_s: float
) -> list[_Replica]:
    """Whole replicas that are free to go, the longest idle first."""
    nodes = {node.instance: node for node in standing.nodes}
    found: list[_Replica] = []
    for instances in replicas:
        if len(instances) != standing.state.group.hosts or any(i.name in standing.state.stays for i in instances):
            continue
        there = [nodes[i.name] for i in instances if i.name in nodes and i.phase is InstancePhase.RUNNING]
        since = [node.idle_since_s for node in there if node.idle_since_s is not None and _free(node, occupied, now_s)]
        if len(since) == len(instances):
            found.append(_Replica(instances, tuple(there), max(since)))
    return sorted(found, key=lambda r: (r.idle_since_s, r.names))


def _free(node: NodeSpec, occupied: set[NodeId], now_s: float) -> bool:
    healthy = node.health is NodeHealth.OK and node.blocked_until_s <= now_s
    return healthy and node.id not in occupied and not node.foreign


def _not_come(replicas: list[tuple[Instance, ...]], standing: Standing, unneeded: int, spare: int) -> list[_Replica]:
    """Machines that are not nodes yet and that nobody counts on: those that failed first, then the newest.

    Of what an order of ours is for, or what did not come in time. What somebody else asked for may come; it is given
    back when it is idle, so that no two fight about one count.
    """
    order = standing.state.order
    states: Mapping[InstancePhase, int] = {InstancePhase.FAILED: 0, InstancePhase.PENDING: 1}
    waiting = [
        _Replica(instances)
        for instances in replicas
        if all(i.phase in states and i.name not in standing.state.stays for i in instances)
    ]
    waiting.sort(key=lambda r: (states[r.instances[0].phase], -r.instances[0].created_s, r.names))
    if standing.resting_s:
        return waiting
    if order is None:  # others have come instead of those that were given up, which are the oldest
        waiting.sort(key=lambda r: (states[r.instances[0].phase], r.instances[0].created_s, r.names))
        return waiting[: standing.state.given_up // standing.state.group.hosts]
    if not order.beneficiaries:
        return []
    others = max(0, standing.state.group.replicas - order.to_replicas)
    return waiting[: max(0, unneeded - others - spare)]
