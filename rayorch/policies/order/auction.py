"""Partial auction: who is farthest behind its fair finish time bids for what is free, and pays for what it takes.

After Themis (Mahajan 2020). An app is all work of one owner in one queue. In each turn the `1 - auctionFairness` of the
apps that wait with the worst finish-time fairness (rho) bid for the free GPUs, at least one of them. A bid is worth
V(G) = 1 / rho(G) for each number of GPUs G beside those that the app holds. What is free is divided so that the product
of all values is as large as can be (proportional fairness), and each app keeps the part of its share that is left
after its hidden payment,

    c = product over the others of V(with it there) / V(if it were not),

so that overstating what it needs gains it nothing (Cole, Gkatzelis and Goel 2013). What the payments leave goes to all
others, the worst rho first, so that nothing stays idle.

`key`: priority, then work within what its app has won, then the worst rho of its app, then age. What it can't do: an
order does not see where seats will lie, so bids are for numbers of GPUs and not for sets of machines (Themis' S(G) is
1); there are no leases, so that what runs is not sold again; apps of whose remaining time nothing is known don't bid.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rayorch.core.history import AccountKey
from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.service import run_s
from rayorch.core.types import GPU, LIVE, UNIT, State, Workload, WorkloadId, total
from rayorch.policies.order.finish_time import fair_part
from rayorch.policies.order.remaining import forecast

MOST_BIDDERS = 32
"""Each bidder costs one more division of the pool."""

Value = Callable[[int], float]
"""GPUs beside those that the app holds -> what they are worth to it; concave, rising, 0 or more."""


@dataclass(frozen=True, slots=True)
class Bid:
    """One app's. `most`: it has no use for more GPUs than that."""

    name: str
    value: Value
    most: int


@dataclass(frozen=True, slots=True)
class Won:
    """`fair`: its share of the proportional fair division; `kept`: the part of it that is left after the payment."""

    fair: int
    kept: float

    @property
    def gpus(self) -> int:
        """Whole GPUs that it gets."""
        return math.floor(self.fair * self.kept + 1e-9)


def divide(bids: Sequence[Bid], pool: int) -> dict[str, int]:
    """The division that makes the product of the values as large as can be; O(pool log bids).

    GPU by GPU to whom it raises the logarithm of its value most, which is exact for concave values; of equals to the
    first by name. Who has nothing is worth 0, so that everybody gets one before anybody gets two.
    """
    given = {bid.name: 0 for bid in bids}
    heap = [(-_gain(bid, 0), bid.name, bid) for bid in bids if bid.most > 0]
    heapq.heapify(heap)
    left = pool
    while heap and left > 0:
        _, name, bid = heapq.heappop(heap)
        given[name] += 1
        left -= 1
        if given[name] < bid.most:
            heapq.heappush(heap, (-_gain(bid, given[name]), name, bid))
    return given


def _gain(bid: Bid, held: int) -> float:
    before, after = bid.value(held), bid.value(held + 1)
    if after <= 0:
        return 0.0
    return math.inf if before <= 0 else math.log(after) - math.log(before)


def auction(bids: Sequence[Bid], pool: int) -> dict[str, Won]:
    """Who wins what."""
    fair = divide(bids, pool)
    return {bid.name: Won(fair[bid.name], _kept(bid, bids, fair, pool)) for bid in bids}


def _kept(bid: Bid, bids: Sequence[Bid], fair: Mapping[str, int], pool: int) -> float:
    others = [other for other in bids if other is not bid]
    without = divide(others, pool)
    logs = 0.0
    for other in others:
        here, alone = other.value(fair[other.name]), other.value(without[other.name])
        if alone <= 0:
            continue
        if here <= 0:
            return 0.0
        logs += math.log(here) - math.log(alone)
    return min(1.0, math.exp(logs))


# ---------------------------------------------------------------- apps and their bids


@dataclass(slots=True)
class _App:
    """What one owner has in a queue. Work in GPU-seconds: `left_gpu_s` of `whole_gpu_s`; None: not known."""

    since_s: float
    held: int = 0
    asked: int = 0
    left_gpu_s: float | None = 0.0
    whole_gpu_s: float = 0.0
    waiting: list[Workload] = field(default_factory=list)

    def rho(self, now_s: float, gpus: int, part: float) -> float:
        """Finish-time fairness with so many GPUs beside those it holds; `part`: its share of the cluster."""
        if self.left_gpu_s is None or self.whole_gpu_s <= 0:
            return math.nan
        rate = self.held + gpus
        if rate <= 0:
            return math.inf
        alone_s = self.whole_gpu_s / part
        return ((now_s - self.since_s) + self.left_gpu_s / rate) / alone_s


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Of a turn: who is within what its app won, and the rho of each app as it stands."""

    winners: frozenset[WorkloadId]
    rho: Mapping[AccountKey, float]


def _words(workload: Workload, view: OrderView) -> str:
    found = view.once(_outcome)
    rho = found.rho.get((workload.spec.queue, workload.spec.owner), math.nan)
    known = "not known" if math.isnan(rho) else f"{rho:.2f}"
    won = "it won its seats" if workload.id in found.winners else "it won nothing"
    return f"by priority ({workload.spec.priority}), then by auction ({won}; rho {known})"


@based_on(Basis.TURN)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    found = view.once(_outcome)
    rho = found.rho.get((workload.spec.queue, workload.spec.owner), math.nan)
    worst = 0.0 if math.isnan(rho) else -rho
    return (-workload.spec.priority, int(workload.id not in found.winners), worst, workload.submitted_s)


def _outcome(view: OrderView) -> _Outcome:
    apps = _apps(view)
    cluster = view.cluster.gpu_units / UNIT
    part = fair_part(cluster, len(apps))
    rho = {name: app.rho(view.now_s, 0, part) for name, app in apps.items()}
    known = sorted((-value, name) for name, value in rho.items() if apps[name].waiting and not math.isnan(value))
    count = min(MOST_BIDDERS, max(1, math.ceil((1.0 - view.knobs.auction_fairness) * len(known))))
    bidders = [name for _, name in known[:count]]
    free = int(cluster - total(allocation.held for allocation in view.allocations).gpu_units / UNIT)
    bids = [_bid(name, apps[name], view.now_s, part) for name in bidders]
    won = auction(bids, max(0, free))
    winners: set[WorkloadId] = set()
    for name in bidders:
        left = won[_name(name)].gpus
        for workload in sorted(apps[name].waiting, key=lambda w: (-w.spec.priority, w.submitted_s, w.id)):
            gpus = -(-workload.spec.least(GPU) // UNIT)
            if gpus <= left:
                left -= gpus
                winners.add(workload.id)
    return _Outcome(frozenset(winners), rho)


def _name(app: AccountKey) -> str:
    return f"{app[0]}/{app[1]}"


def _bid(name: AccountKey, app: _App, now_s: float, part: float) -> Bid:
    def value(gpus: int) -> float:
        found = app.rho(now_s, gpus, part)
        return 0.0 if math.isinf(found) else 1.0 / max(found, 1e-12)

    return Bid(_name(name), value, app.asked)


def _apps(view: OrderView) -> dict[AccountKey, _App]:
    """All that is there, by queue and owner. O(workloads)."""
    found: dict[AccountKey, _App] = {}
    remaining = view.once(forecast)
    for workload in view.work:
        spec = workload.spec
        app = found.setdefault((spec.queue, spec.owner), _App(workload.submitted_s))
        app.since_s = min(app.since_s, workload.submitted_s)
        gpus = -(-spec.least(GPU) // UNIT)
        if workload.state in LIVE:
            app.held += gpus
        elif workload.state is State.PENDING:
            app.asked += gpus
            app.waiting.append(workload)
        left = remaining.remaining(workload)
        if left is None:
            app.left_gpu_s = None
        elif app.left_gpu_s is not None:
            app.left_gpu_s += left[0] * gpus
            app.whole_gpu_s += (run_s(workload, view.now_s) + left[0]) * gpus
    return found
