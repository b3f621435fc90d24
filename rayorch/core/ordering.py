"""What an order policy may look at, what it may be told by knobs, and how long the key that it gives holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar, cast

from rayorch.core.errors import SpecError
from rayorch.core.history import HALF_LIFE_S, History
from rayorch.core.marks import AnyPolicy, marked
from rayorch.core.quota import Quota
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import (
    CPU,
    GPU,
    Allocation,
    NodeHealth,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Workload,
    total,
)

SortKey = tuple[float | int | str, ...]

T = TypeVar("T")


class Basis(IntEnum):
    """What the key of a *pending* workload depends on, so that it need not be computed anew in every turn.

    In each case on the workload itself and on the knobs too. Of a running one (a replica that Serve lacks) no key is
    kept.
    """

    WORKLOAD = 0  # on nothing else: the key holds as long as the Workload is the same object
    HISTORY = 1  # on queues and finished work: it holds while `view.queues` and `view.history.classes` are the same
    TURN = 2  # on the time or the nodes: it holds for one turn


def based_on(basis: Basis) -> Callable[[AnyPolicy], AnyPolicy]:
    """Mark an order policy with its basis. One that has no mark is asked in every turn."""
    return marked(basis=basis)


def basis_of(policy: Callable[..., object]) -> Basis:
    """What an order policy's keys depend on."""
    basis = getattr(policy, "basis", Basis.TURN)
    return basis if isinstance(basis, Basis) else Basis.TURN


def by_class(policy: AnyPolicy) -> AnyPolicy:
    """Mark an order across queues that looks at nothing of a head but its queue, its resources, its priority and
    whether it borrows: while nothing is charged its key is the same for all such heads. Without the mark each head of a
    turn is asked about anew."""
    return marked(by_class=True)(policy)


def is_by_class(policy: Callable[..., object]) -> bool:
    """Whether an order across queues is so marked."""
    return bool(getattr(policy, "by_class", False))


def in_words(words: Callable[[Workload, OrderView], str]) -> Callable[[AnyPolicy], AnyPolicy]:
    """Let an order policy say what a workload's place comes from: "by priority 5, then by age"."""
    return marked(words=words)


def ranks(
    parts: int,
    changes_s: Callable[[Workload, OrderView], float | None] | None = None,
    takes_back: bool = False,
    rank: Callable[[Workload, OrderView], SortKey] | None = None,
) -> Callable[[AnyPolicy], AnyPolicy]:
    """Mark an order policy whose key says for running work too how much it is entitled to go on.

    The first `parts` of the key are its rank: where a profile evicts by order, whoever waits may take the room of who
    runs in the same queue with a larger rank. `changes_s`: when the rank of a running workload changes by itself.
    `rank`: the rank, where it changes with the time and the order of those that wait does not, so that their keys hold.
    `takes_back`: who had to make room may in its turn evict the one that it made room for, once it ranks before it.
    Only for policies that bound by themselves how often that can happen.
    """
    return marked(ranks=(parts, changes_s), takes_back=takes_back, rank=rank)


def takes_back(policy: Callable[..., object]) -> bool:
    """Whether work may evict by order the one that it made room for itself."""
    return bool(getattr(policy, "takes_back", False))


def rank_of(policy: Callable[..., SortKey], workload: Workload, view: OrderView) -> tuple[SortKey, SortKey] | None:
    """(rank, whole key) of a workload; None by a policy that ranks nobody."""
    parts, _ = getattr(policy, "ranks", (0, None))
    if not parts:
        return None
    key, rank = policy(workload, view), getattr(policy, "rank", None)
    return (rank(workload, view) if rank is not None else key[:parts]), key


def rank_changes_s(policy: Callable[..., object], workload: Workload, view: OrderView) -> float | None:
    """When the rank of a running workload will change by itself; None: not, or nobody knows."""
    _, changes_s = getattr(policy, "ranks", (0, None))
    found = changes_s(workload, view) if changes_s is not None else None
    return float(found) if found is not None else None


def order_words(policy: Callable[..., object], workload: Workload, view: OrderView) -> str:
    """What a waiting workload's place in its queue comes from, by the policy's own words; empty where it has none."""
    words = getattr(policy, "words", None)
    return str(words(workload, view)) if callable(words) else ""


@dataclass(frozen=True, slots=True)
class OrderKnobs:
    """What a profile tells its order policies. Each knob names the policies that read it in docs/ordering.md.

    `strict_fifo`: the first workload of a queue that can't start keeps those behind it waiting, even where they
    would fit. A queue may say otherwise (`QueueSpec.strict`).
    `usage_half_life_s`: after so long, what was used counts half; 0: never. `usage_penalty_s`: what is held counts as
    if it had been held for so much longer, so that a start counts at once. `usage_cpu_weight`: what a CPU-second counts
    beside a GPU-second.
    `share_by_usage`: how much that lowers a queue's weight when a surplus is divided (KAI's k); 0: not at all.
    `fair_resources`: of these the dominant one is looked for; what nobody is short of belongs in no share.
    `points_per_hour`: by how much an hour of waiting raises a priority (ageing).
    `age_max_s`, `weight_*`, `favor_small`, `priority_max`: Slurm's multifactor priority: when the age counts in full,
    what each factor (0 to 1) counts, whether small work goes first, and the priority whose factor is 1.
    `las_thresholds_gpu_s`: attained service at which work goes one level down, rising; empty: learned. `las_promote`:
    back to the top after waiting this many times as long as it has run; 0: never.
    `gittins_delta_gpu_s`: the quantum of service that is looked ahead; 0: the best one.
    `rho_max`: work whose finish-time fairness would be worse goes to the front of its priority. `auction_fairness`:
    what part of the apps that wait does not bid, 0 to 1 (Themis' f): near 1 only the one that is farthest behind does.
    `slice_s`: how long a turn is where work takes turns (Gandiva).
    """

    strict_fifo: bool = False
    usage_half_life_s: float = HALF_LIFE_S
    usage_penalty_s: float = 300.0
    usage_cpu_weight: float = 0.0
    share_by_usage: float = 0.0
    fair_resources: tuple[str, ...] = (GPU, CPU, "memory")
    points_per_hour: float = 1.0
    age_max_s: float = 7 * 24 * 3600.0
    weight_age: float = 0.0
    weight_fair_share: float = 0.0
    weight_size: float = 0.0
    weight_queue: float = 0.0
    weight_priority: float = 0.0
    weight_resources: tuple[tuple[str, float], ...] = ()
    favor_small: bool = False
    priority_max: int = 100
    las_thresholds_gpu_s: tuple[float, ...] = ()
    las_promote: float = 0.0
    gittins_delta_gpu_s: float = 0.0
    rho_max: float = 2.0
    auction_fairness: float = 0.8
    slice_s: float = 600.0

    def __post_init__(self) -> None:
        """SpecError for a length of turns that is none: time is divided by it."""
        slice_s = self.slice_s
        if isinstance(slice_s, bool) or not isinstance(slice_s, int | float) or not 0 < slice_s < math.inf:
            raise SpecError("slice_s", f"must be a finite number of seconds above 0, got {slice_s!r}")


@dataclass(frozen=True, slots=True)
class OrderView:
    """What an order policy sees besides the workload: the facts at the beginning of the turn.

    `workloads`: all that have not ended; `allocations`: what is held. To look at them for each key would take for ever:
    make a table, `once`.
    What the plan has given away since then is in `QueueHead.quota`, for the order across queues.
    """

    now_s: float
    knobs: OrderKnobs = OrderKnobs()
    queues: Mapping[QueueId, QueueSpec] = field(default_factory=dict)
    nodes: tuple[NodeSpec, ...] = ()
    history: History = field(default_factory=History)
    workloads: tuple[Workload, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    _memo: dict[object, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    @staticmethod
    def of(snapshot: Snapshot, knobs: OrderKnobs) -> OrderView:
        """The facts of a snapshot."""
        queues = {spec.id: spec for spec in snapshot.queues}
        past, work = snapshot.history, (snapshot.workloads, snapshot.allocations)
        return OrderView(snapshot.now_s, knobs, queues, snapshot.nodes, past, *work)

    def once(self, make: Callable[[OrderView], T]) -> T:
        """What `make(view)` gives, made once a turn: for tables that every key of the turn reads."""
        if make not in self._memo:
            self._memo[make] = make(self)
        return cast(T, self._memo[make])

    @property
    def work(self) -> tuple[Workload, ...]:
        """The workloads that wait for seats or hold some: all but arrays, whose entries are there too."""
        return self.once(_work)

    @property
    def cluster(self) -> Resources:
        """What the nodes that take new work have in all."""
        return self.once(_cluster)


@dataclass(frozen=True, slots=True)
class QueueHead:
    """The first of a queue, as it is compared with the heads of other queues.

    `resources`: what it asks for. `borrows`: with it the queue, or one above it, would hold more than it deserves
    (False for a head that can't start anyway). `quota`: who uses what, with what this plan has given so far.
    """

    workload: Workload
    resources: Resources
    borrows: bool
    quota: Quota

    @property
    def queue(self) -> QueueId:
        """Its queue."""
        return self.workload.spec.queue

    @property
    def priority(self) -> int:
        """Its priority."""
        return self.workload.spec.priority


def _work(view: OrderView) -> tuple[Workload, ...]:
    return tuple(workload for workload in view.workloads if workload.spec.array is None)


def _cluster(view: OrderView) -> Resources:
    return total(node.total for node in view.nodes if node.health is NodeHealth.OK)
