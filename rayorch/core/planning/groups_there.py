"""Whether the groups and segments of a gang find their domains on nodes that would be added for it.

Node groups are reckoned with by how many pieces their nodes take (`stock.py`). Whether a gang's parts then also lie
together is looked at here, once for each shape and number of new nodes, so that nothing is ordered that would not help.
"""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.planning.claims import Shape
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.seats import Search, find
from rayorch.core.planning.stock import Trial
from rayorch.core.policy import SortKey
from rayorch.core.slot import Slot
from rayorch.core.topology import Domain, Topology
from rayorch.core.types import NodeId, NodeSpec, Resources


def holds_together(draft: Draft, shape: Shape, trial: Trial) -> bool:
    """Whether the shape finds a place on all that is free, is on its way and would be added by the trial."""
    if shape.layout is None:
        return True
    added = tuple(sorted((source.standing.name, count * source.hosts) for source, count in trial.new.items()))
    key = (shape, added)
    known = draft.together.get(key)
    if known is None:
        blanks = {source.standing.name: source.standing.blank for source in trial.new}
        fresh = [replace(blanks[name], id=NodeId(f"{name}/?{n}")) for name, count in added for n in range(count)]
        known = draft.together[key] = find(shape, _search(draft, fresh)) is not None
    return known


def _search(draft: Draft, fresh: list[NodeSpec]) -> Search:
    room = draft.soon.room.joined_by(fresh)
    there = [node for id, node in draft.facts.nodes.items() if id in draft.facts.horizon.paths]

    def least_free(bundle: Resources, node: NodeId, slot: Slot) -> SortKey:
        return (slot.gpu_units,)

    def fullest(domain: Domain) -> SortKey:
        return (sum(room.gpu_units(node) for node in domain.nodes),)

    return Search((room,), Topology.of((*there, *fresh)), least_free, fullest, frozenset(draft.closed))
