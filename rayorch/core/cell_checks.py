"""What the queue owner checks of a start in cells: it knows queues and seats, and of the topology single nodes only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rayorch.core.errors import StalePlanError
from rayorch.core.topology import NODE_LEVEL
from rayorch.core.types import Kind, Member, NodeId, QueueId, QueueSpec, State, Workload, WorkloadSpec


def owner_of_cells(queue: QueueId, specs: Mapping[QueueId, QueueSpec]) -> QueueSpec | None:
    """The nearest queue of a path that has cells."""
    id: QueueId | None = queue
    while id is not None:
        spec = specs.get(id)
        if spec is None or spec.cells:
            return spec
        id = spec.parent
    return None


def check_cells(
    workload: Workload,
    level: str,
    placement: tuple[Member, ...],
    specs: Mapping[QueueId, QueueSpec],
    others: Iterable[Workload],
) -> None:
    """StalePlanError unless its queue has cells of the level and, for nodes, no more are bound with it than it has.

    Which nodes a domain has, and whether a cell is whole, the plan alone knows.
    """
    owner = owner_of_cells(workload.spec.queue, specs)
    count = sum(cell.count for cell in owner.cells if cell.level == level) if owner is not None else 0
    if owner is None or not count:
        raise StalePlanError(f"{workload.id} is to start in cells of level {level}, and its queue has none")
    if level != NODE_LEVEL:
        return
    wanted, bound = _nodes(workload.spec, placement), set[NodeId]()
    for other in others:
        if other.cell == level and other.state is State.RUNNING and owner_of_cells(other.spec.queue, specs) == owner:
            bound |= _nodes(other.spec, other.placement)
    if wanted - bound and len(wanted | bound) > count:  # where more are bound than there are by now, it may join them
        raise StalePlanError(
            f"{workload.id} would bind {len(wanted | bound)} nodes, and queue {owner.id} has {count} cells"
        )


def _nodes(spec: WorkloadSpec, members: tuple[Member, ...]) -> set[NodeId]:
    """Where the minimum lies; what is more than that may go at any time."""
    if spec.kind is not Kind.SERVE:
        return {member.node for member in members if not member.surplus}
    least = {role.name: role.min_count for role in spec.roles}
    return {member.node for member in members if member.index < least.get(member.role, 0)}
