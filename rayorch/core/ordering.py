"""What an order policy may look at, what it may be told by knobs, and how long the key that it gives holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar, cast

from rayorch.core.history import HALF_LIFE_S, History
from rayorch.core.quota import Quota
from rayorch.core.types import NodeHealth, NodeSpec, QueueId, QueueSpec, Resources, Workload, total

SortKey = tuple[float | int | str, ...]

T = TypeVar("T")
AnyPolicy = TypeVar("AnyPolicy", bound=Callable[..., object])


class Basis(IntEnum):
    """What the key of a *pending* workload depends on, so that it need not be computed anew in every turn.

    In each case on the workload itself and on the knobs too. Of a running one (a replica that Serve lacks) no key is
    kept.
    """

    WORKLOAD = 0  # on nothing else: the key holds as long as the Workload is the same object
    HISTORY = 1  # on the queues and what was learned: it holds while `view.queues` and `view.history` are the same
    TURN = 2  # on the time or the nodes: it holds for one turn


def based_on(basis: Basis) -> Callable[[AnyPolicy], AnyPolicy]:
    """Mark an order policy with its basis. One that has no mark is asked in every turn."""

    def mark(policy: AnyPolicy) -> AnyPolicy:
        vars(policy)["basis"] = basis
        return policy

    return mark


def basis_of(policy: Callable[..., object]) -> Basis:
    """What an order policy's keys depend on."""
    basis = getattr(policy, "basis", Basis.TURN)
    return basis if isinstance(basis, Basis) else Basis.TURN


@dataclass(frozen=True, slots=True)
class OrderKnobs:
    """What a profile tells its order policies. Each knob names the policies that read it in docs/ordering.md.

    `strict_fifo`: the first workload of a queue that can't start keeps those behind it waiting, even where they
    would fit. A queue may say otherwise (`QueueSpec.strict`).
    `usage_half_life_s`: after so long, what was used counts half.
    """

    strict_fifo: bool = False
    usage_half_life_s: float = HALF_LIFE_S


@dataclass(frozen=True, slots=True)
class OrderView:
    """What an order policy sees besides the workload: the facts at the beginning of the turn.

    What the plan has given away since then is in `QueueHead.quota`, for the order across queues.
    """

    now_s: float
    knobs: OrderKnobs = OrderKnobs()
    queues: Mapping[QueueId, QueueSpec] = field(default_factory=dict)
    nodes: tuple[NodeSpec, ...] = ()
    history: History = field(default_factory=History)
    _memo: dict[object, object] = field(default_factory=dict, repr=False, compare=False)

    def once(self, make: Callable[[OrderView], T]) -> T:
        """What `make(view)` gives, made once a turn: for tables that every key of the turn reads."""
        if make not in self._memo:
            self._memo[make] = make(self)
        return cast(T, self._memo[make])

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


def _cluster(view: OrderView) -> Resources:
    return total(node.total for node in view.nodes if node.health is NodeHealth.OK)
