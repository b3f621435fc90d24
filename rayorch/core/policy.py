"""The extension points: small pure functions, named together in a Profile.

A profile on a live cluster names its functions by import string ("rayorch.policies.order.priority:key");
`config.py` turns the strings into the callables here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rayorch.core.decisions import GangDemand
from rayorch.core.eviction import DefragmentKnobs as DefragmentKnobs
from rayorch.core.eviction import EvictionKnobs as EvictionKnobs
from rayorch.core.eviction import PackingKnobs as PackingKnobs
from rayorch.core.marks import marked
from rayorch.core.model_choice import ModelKnobs as ModelKnobs
from rayorch.core.moves import MovesView as MovesView
from rayorch.core.moves import Step as Step
from rayorch.core.moves import moves_somebody as moves_somebody
from rayorch.core.ordering import OrderKnobs as OrderKnobs
from rayorch.core.ordering import OrderView as OrderView
from rayorch.core.ordering import QueueHead as QueueHead
from rayorch.core.ordering import SortKey as SortKey
from rayorch.core.placement import NodeView as NodeView
from rayorch.core.placement import PlacementKnobs as PlacementKnobs
from rayorch.core.placement import PlacementView as PlacementView
from rayorch.core.types import Allocation, Resources, StopCause, Workload

OrderPolicy = Callable[[Workload, OrderView], SortKey]
"""(workload, view) -> sort key; the smallest goes first within a queue, the planner ends ties by id. All keys of one
policy have the same form. `core.ordering.based_on` says for how long a key holds."""

QueueOrderPolicy = Callable[[QueueHead, OrderView], SortKey]
"""(head of a queue, view) -> sort key; the queue with the smallest goes first, ties by the head's own key. Asked again
whenever a queue has taken something: as a queue uses more, its key must not become smaller."""

ScorePolicy = Callable[[Resources, NodeView, PlacementView], SortKey]
"""(bundle, node with what is free there, view) -> sort key; the bundle goes to the smallest, of nodes that it fits on.
The planner ends ties by node id. `core.placement.scored_by` says what it depends on."""

DevicePolicy = Callable[[Resources, NodeView, PlacementView], int | None]
"""(share of a GPU, node, view) -> the position of the device that it goes to, None: the tightest that takes it. Asked
where devices can be chosen (`NodeSpec.exact`)."""

VictimPolicy = Callable[[Workload, Allocation, float], float]
"""(workload, its allocation, now_s) -> what stopping it now would cost, in GPU-seconds of lost work."""

SizePolicy = Callable[[Workload, float], int]
"""(workload, now_s) -> how many members its elastic role (`WorkloadSpec.elastic_role`) should have now, its minimum
included, before room and quota."""

RecoverPolicy = Callable[[Workload, Allocation, tuple[str, ...], float], StopCause | None]
"""(workload, its allocation, ids of lost nodes, now_s) -> why to end the attempt, None to let it live."""

MovesPolicy = Callable[[MovesView], tuple[Step, ...]]
"""(view) -> which seats of running gangs go elsewhere so that less of what is free is stranded (`core.moves`)."""

ScalePolicy = Callable[[tuple[GangDemand, ...]], tuple[GangDemand, ...]]
"""(gangs that no free room takes, in order, each within quota) -> those to ask new nodes for, each one whole."""


def tightest(bundle: Resources, node: NodeView, view: PlacementView) -> int | None:
    """The device that is left with least."""
    return None


@marked(nobody=True)
def stay(view: MovesView) -> tuple[Step, ...]:
    """Nobody is moved."""
    return ()


def ask_for_all(waiting: tuple[GangDemand, ...]) -> tuple[GangDemand, ...]:
    """Every gang that waits for room."""
    return waiting


@dataclass(frozen=True, slots=True)
class BackfillKnobs:
    """Who may use nodes that are held for a head before it needs them (docs/timing.md).

    `hold`: whether a head that finds no room holds nodes at all. Without that whoever fits starts, and a large gang may
    wait for as long as smaller work comes. `heads`: for how many heads, one of each queue, a time is worked out; 0:
    nobody is let in. `most_looks`, `most_tries`: how many of those that wait are looked at, and tried, in one turn
    (Slurm's bf_max_job_test). `lend`: whether idle room that a head holds for an unknown time is lent
    to what it may evict.
    """

    hold: bool = True
    heads: int = 8
    most_looks: int = 2_000
    most_tries: int = 100
    lend: bool = True


@dataclass(frozen=True, slots=True)
class ReservationKnobs:
    """`lead_s`: how long before its start a reservation begins to hold nodes. What runs longer than that, or nobody
    knows how long, may be in its way."""

    lead_s: float = 4 * 3600.0


REPAIR_HOLD_S = 60.0
"""How long a gang that lost a part goes before new work, where the profile says nothing else."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The policies and knobs in force.

    `start_deadline_s`: groups not ready by then are given up and their nodes blocked for `block_node_s`.
    `lease_s`, `lease_margin_s`: how long an attempt lives without contact, and what we wait beyond that.
    `grow_cooldown_s`: least time between two growths of one training gang (each costs a restart of its workers).
    `scale_down_delay_s`: how long a Serve application's demand must be low before a replica is taken.
    `retry_backoff_s`: wait before the first retry after an own failure, doubled each time up to `retry_backoff_max_s`.
    `failure_settle_s`: how long the non-zero exit of a gang on several nodes waits for news of a lost node before it
    counts as the work's own. Ray takes about 13 s to notice a dead node unless its health checks are set otherwise.
    `node_idle_s`: how long a node must have been idle before its group gives it back.
    `provision_s`: how long a new node is expected to take where nothing has been learned yet; an order is given up
    after `provision_deadline_factor` times the expected time, at least a minute late, and its group is left alone for
    `group_backoff_s`, doubled each time up to `group_backoff_max_s`.
    `device`: which GPU of its node a share goes to. `moves`: who changes its nodes so that less is stranded, as far as
    `defragment` lets it.
    `ordering`: the knobs of the order policies. `placement`: those of the score policies.
    `eviction`: those of stage 6. `models`: of which GPU model.
    `packing`: of those that share a GPU.
    `backfill`: who may use nodes that are held for others later on. `reservations`: when these begin to hold nodes.
    `repair_hold_s`: how long a gang that lost nodes goes before new work, and its other seats are kept for it.
    `even_growth`: elastic gangs of equal priority grow step by step, who has least of its minimum first; else the
    oldest takes all that it can use before the next.
    """

    name: str
    order: OrderPolicy
    queue_order: QueueOrderPolicy
    score: ScorePolicy
    victims: VictimPolicy
    train_size: SizePolicy
    serve_size: SizePolicy
    recover: RecoverPolicy
    scale: ScalePolicy = ask_for_all
    device: DevicePolicy = tightest
    moves: MovesPolicy = stay
    start_deadline_s: float = 30.0
    block_node_s: float = 30.0
    lease_s: float = 10.0
    lease_margin_s: float = 2.0
    grow_cooldown_s: float = 15.0
    scale_down_delay_s: float = 15.0
    retry_backoff_s: float = 5.0
    retry_backoff_max_s: float = 300.0
    failure_settle_s: float = 15.0
    node_idle_s: float = 300.0
    provision_s: float = 300.0
    provision_deadline_factor: float = 2.0
    group_backoff_s: float = 60.0
    group_backoff_max_s: float = 1800.0
    preemption: bool = True
    eviction: EvictionKnobs = EvictionKnobs()
    defragment: DefragmentKnobs = DefragmentKnobs()
    packing: PackingKnobs = PackingKnobs()
    models: ModelKnobs = ModelKnobs()
    even_growth: bool = False
    backfill: BackfillKnobs = BackfillKnobs()
    reservations: ReservationKnobs = ReservationKnobs()
    repair_hold_s: float = REPAIR_HOLD_S
    ordering: OrderKnobs = OrderKnobs()
    placement: PlacementKnobs = PlacementKnobs()
