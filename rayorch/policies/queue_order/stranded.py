"""Shares that count what a queue strands: beside what it holds, what nobody can use because of how it lies.

The fragmentation of a node is what of its free GPUs the typical next seat can't use (FGD, Weng 2023). What it rose by
when seats were taken is charged to the queue that took them, and what it fell by is credited: seats by age, so that all
charges on a node add up to what its fragmentation is beyond that of the empty node.
A queue that holds little and breaks whole nodes goes behind one that holds as much and fills gaps. Below nothing no
queue is charged. What is typical is what is there, waiting and running, by the GPUs of one member.

What it can't do: seats that went are forgotten with what they did; the planner decides where seats lie, so a queue
pays for its sizes and times, not for a choice. For a queue that deserves no GPUs a stranded one is a whole share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rayorch.core.fragmentation import Fragmentation, typical
from rayorch.core.ordering import OrderView, QueueHead, SortKey, by_class
from rayorch.core.placement import TaskClass, class_of
from rayorch.core.types import CPU, UNIT, Member, NodeId, NodeSpec, QueueId


@by_class
def key(head: QueueHead, view: OrderView) -> SortKey:
    """The smallest key goes first: who stays within its share, priced so, then priority, then the priced share."""
    priced = priced_share(head, view)
    borrows = head.borrows or priced > 1.0
    surplus = head.quota.surplus_priority(head.queue, head.resources) if borrows else 0
    return (int(borrows), -surplus, -head.priority, priced)


def priced_share(head: QueueHead, view: OrderView) -> float:
    """The queue's dominant share, and what it strands over what it deserves."""
    units = view.once(stranded).get(head.queue, 0.0)
    if units <= 0:
        return head.quota.share(head.queue)
    spec = view.queues.get(head.queue)
    deserved = spec.deserved.gpu_units if spec is not None else 0
    return head.quota.share(head.queue) + units / max(deserved, UNIT)


def stranded(view: OrderView) -> Mapping[QueueId, float]:
    """GPU units that each queue strands now; O(seats) a turn."""
    found = caused(view)
    return {queue: max(0.0, units) for queue, units in found.items()}


def caused(view: OrderView) -> Mapping[QueueId, float]:
    """The same with credits for gaps that were filled: all of it adds up to what fragmentation is there."""
    shapes = shapes_of(view)
    if not shapes.total:
        return {}
    queues = {workload.id: workload.spec.queue for workload in view.workloads}
    on: dict[NodeId, list[tuple[QueueId, Member]]] = {}
    for held in sorted(view.allocations, key=lambda a: (a.reserved_s, a.workload, a.attempt)):
        for member in held.members:
            if held.workload in queues:
                on.setdefault(member.node, []).append((queues[held.workload], member))
    found: dict[QueueId, float] = {}
    for node in view.nodes:
        for queue, units in _on_node(node, on.get(node.id, []), shapes):
            found[queue] = found.get(queue, 0.0) + units
    return found


def shapes_of(view: OrderView) -> Fragmentation:
    """What counts as fragmented, by what is typically asked for."""
    return Fragmentation(typical(_classes(view)))


def _classes(view: OrderView) -> list[TaskClass]:
    counts = Counter(
        (role.bundle, workload.spec.accelerators) for workload in view.work for role in workload.spec.roles
    )
    return [class_of(bundle, models, weight) for (bundle, models), weight in counts.items() if bundle.gpu_units]


def _on_node(node: NodeSpec, seats: list[tuple[QueueId, Member]], shapes: Fragmentation) -> list[tuple[QueueId, float]]:
    """What each seat changed of the node's fragmentation [GPU units], one after the other."""
    if not seats:
        return []
    cpu, devices = node.total.units(CPU), [UNIT] * (node.total.gpu_units // UNIT)
    before = shapes.of(node.model, cpu, tuple(devices))
    found: list[tuple[QueueId, float]] = []
    for queue, member in seats:
        cpu -= member.bundle.units(CPU)
        _take(devices, member)
        after = shapes.of(node.model, cpu, tuple(devices))
        found.append((queue, (after - before) / shapes.total))
        before = after
    return found


def _take(devices: list[int], member: Member) -> None:
    """Take the member's GPUs: those that it is bound to, else the first that have room."""
    left = member.bundle.gpu_units
    first = [index for index in member.devices if index < len(devices)]
    for index in (*first, *range(len(devices))):
        part = min(left, UNIT, devices[index])
        whole = left < UNIT or part == UNIT  # a seat of several GPUs has them whole
        if part and whole:
            devices[index] -= part
            left -= part
        if not left:
            return
