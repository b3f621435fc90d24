"""What a turn knows before it decides anything: the snapshot with its indexes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rayorch.core.budgets import BudgetUse
from rayorch.core.capacity import GroupName
from rayorch.core.placement import ScoreBasis, score_basis
from rayorch.core.planning.arrivals import Standing
from rayorch.core.planning.index import NodeScore
from rayorch.core.planning.takings import Leaving
from rayorch.core.policy import NodeView, PlacementView, Profile, SortKey
from rayorch.core.slot import Slot
from rayorch.core.snapshot import Snapshot
from rayorch.core.topology import Topology
from rayorch.core.types import (
    Allocation,
    NodeId,
    NodeSpec,
    QueueId,
    Resources,
    Workload,
    WorkloadId,
)


@dataclass(frozen=True, slots=True)
class Facts:
    """The snapshot with its indexes. `Memory.see` makes it.

    `held`: the allocation of each live attempt; `charged`: what it counts for against quota; `live_ids`: of whom, in
    order. `leaving`: see Leaving. `owed`: for whom room is being freed, or was a moment ago; of them, `shrunk_for`:
    by shrinks that are over alone, `repairs`: those that lost a part of their seats. `standings`: the node groups,
    where we run them. `arriving`: the group of each node that is on its way; `nodes` and `horizon` know these,
    `topology` doesn't.
    `orders`: the groups with an open order for some gang: for which, and on how many of its nodes each counts.
    `strictness`: what each queue says of its order (see `QueueSpec.strict`). `live_in`: the live attempts that hold
    seats, by queue. Of these, by id: `uneasy`, whom stage 2 could have something to say about; `asking`, who may ask
    for more seats; `growing`, who may take surplus ones. `joint`: all, waiting ones too, that are parts of joint gangs.
    `saved`: live attempts of workloads with a checkpoint. `sharing`: those whose pace matters, where the profile
    looks at it. `placement`: what scores may look at beside a node.
    `lowest_priority`: of all live attempts that may be evicted as far as they themselves say, 2**63 without any.
    """

    snapshot: Snapshot
    profile: Profile
    nodes: Mapping[NodeId, NodeSpec]
    workloads: Mapping[WorkloadId, Workload]
    held: Mapping[WorkloadId, Allocation]
    charged: Mapping[WorkloadId, tuple[Workload, Resources]]
    leaving: tuple[Leaving, ...]
    topology: Topology
    owed: frozenset[WorkloadId]
    shrunk_for: frozenset[WorkloadId]
    repairs: frozenset[WorkloadId]
    standings: Mapping[GroupName, Standing]
    arriving: Mapping[NodeId, GroupName]
    horizon: Topology
    orders: Mapping[str, Mapping[WorkloadId, int]]
    strictness: Mapping[QueueId, bool | None]
    live_in: Mapping[QueueId, Collection[Workload]]
    budgets: Mapping[QueueId, BudgetUse]
    live_ids: Sequence[WorkloadId]
    uneasy: Sequence[WorkloadId]
    asking: Sequence[WorkloadId]
    growing: Sequence[WorkloadId]
    joint: Sequence[WorkloadId]
    saved: Collection[WorkloadId]
    sharing: Sequence[WorkloadId]
    placement: PlacementView
    lowest_priority: int
    _live: list[tuple[Workload, Allocation]] = field(default_factory=list, repr=False, compare=False)

    def strict(self, queue: QueueId) -> bool:
        """Whether the first of the queue that can't start keeps those behind it waiting."""
        own = self.strictness.get(queue)
        return self.profile.ordering.strict_fifo if own is None else own

    @property
    def now_s(self) -> float:
        """The snapshot's time."""
        return self.snapshot.now_s

    def ordered_for(self, id: WorkloadId) -> bool:
        """Whether an open order is for this gang."""
        return any(id in gangs for gangs in self.orders.values())

    def score(self, bundle: Resources, node: NodeId, slot: Slot) -> SortKey:
        """The profile's score for a node of which so much is free."""
        return self.profile.score(bundle, self.node_view(node, slot), self.placement)

    def score_for(self, claim: WorkloadId) -> NodeScore:
        """The same for one who asks."""
        asked = self.placement_for(claim)
        return lambda bundle, node, slot: self.profile.score(bundle, self.node_view(node, slot), asked)

    def placement_for(self, claim: WorkloadId) -> PlacementView:
        """What scores may look at for one who asks, where the profile's depend on that."""
        by_claim = score_basis(self.profile.score) is ScoreBasis.CLAIM
        return replace(self.placement, claim=claim) if by_claim else self.placement

    def node_view(self, node: NodeId, slot: Slot) -> NodeView:
        """A node of which so much is free, as policies see it."""
        return NodeView(self.nodes[node], slot, self.horizon.models.get(node, ""))

    def live(self) -> list[tuple[Workload, Allocation]]:
        """Live attempts that hold seats, by id."""
        if not self._live:
            workloads, held = self.workloads, self.held
            self._live.extend((workloads[id], held[id]) for id in self.live_ids)
        return self._live

    @property
    def holdings(self) -> list[tuple[Workload, Resources]]:
        """Live attempts and what each is charged for, by id."""
        return [(workload, allocation.charge) for workload, allocation in self.live()]
