"""Fair Tree: Slurm's fair-share factor. The queue tree's owners in one list, from the least served to the most.

On each level of the tree the level fair-share of a queue is LF = S / U: its weight over its siblings' weights, through
its usage over theirs (decayed; an unused one's is infinite). Owners are the leaves of their queue, with equal shares.
Siblings are ranked by LF, and depth first: no owner below a queue comes before one below a better ranked sibling. The
factor is the rank over the number of owners, 1 for the first. Owners of equal LF have the same rank; the children of
equal queues are ranked as one list; of an owner and a queue that are equal the owner comes first.

After Cox and Morrison (2014); slurm.schedmd.com/fair_tree.html.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from rayorch.core.history import AccountKey
from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.types import QueueId, Workload


def _words(workload: Workload, view: OrderView) -> str:
    return f"by the fair-share factor of {workload.spec.owner or 'nobody'}: {factor(workload, view):.3f}, then by age"


@based_on(Basis.TURN)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first: the least served owner's, the oldest of theirs."""
    return (-factor(workload, view), workload.submitted_s)


def factor(workload: Workload, view: OrderView) -> float:
    """The fair-share factor of the workload's owner, from 0 (exclusive) to 1."""
    return view.once(factors).get((workload.spec.queue, workload.spec.owner), 1.0)


@dataclass(frozen=True, slots=True)
class _Child:
    """A queue, or (with `owner`) one owner of its parent, with the level fair-share."""

    queue: QueueId
    owner: str | None
    level: float


def factors(view: OrderView) -> Mapping[AccountKey, float]:
    """The factor of everyone who waits, runs or has used something, by queue and owner. O(owners)."""
    usage = {key: used_by(view, key) for key in view.history.accounts if key[0] in view.queues}
    for workload in view.workloads:
        if workload.spec.queue in view.queues:
            usage.setdefault((workload.spec.queue, workload.spec.owner), 0.0)
    return ranked(usage, {id: spec.weight for id, spec in view.queues.items()})


def used_by(view: OrderView, key: AccountKey) -> float:
    """What an owner has used in a queue, decayed, in GPU-seconds; CPUs count by `usage_cpu_weight`."""
    gpu_s, cpu_s = view.history.accounts[key].used(view.now_s, view.history.half_life_s)
    return gpu_s + view.knobs.usage_cpu_weight * cpu_s


def ranked(usage: Mapping[AccountKey, float], weights: Mapping[QueueId, int]) -> dict[AccountKey, float]:
    """Factors from each owner's usage, in a tree of these queues with these weights."""
    below: dict[QueueId, float] = dict.fromkeys(weights, 0.0)
    populated: set[QueueId] = set()
    for (queue, _), amount in usage.items():
        for above in _path(queue):
            below[above] = below.get(above, 0.0) + amount
            populated.add(above)
    children: dict[QueueId | None, list[tuple[QueueId, str | None]]] = {}
    for queue in sorted(populated):
        children.setdefault(_parent(queue), []).append((queue, None))
    for queue, owner in sorted(usage):
        children.setdefault(queue, []).append((queue, owner))
    ranking = _Ranking(children, usage, below, weights, len(usage))
    ranking.descend((None,))
    return ranking.factors


@dataclass(slots=True)
class _Ranking:
    """The walk down the tree. `left`: how many owners have no rank yet."""

    children: Mapping[QueueId | None, list[tuple[QueueId, str | None]]]
    usage: Mapping[AccountKey, float]
    below: Mapping[QueueId, float]
    weights: Mapping[QueueId, int]
    left: int
    factors: dict[AccountKey, float] = field(default_factory=dict)

    def descend(self, parents: tuple[QueueId | None, ...]) -> None:
        """Rank the owners below these queues, which are equal, as one list."""
        level = [child for parent in parents for child in self._level(self.children.get(parent, []))]
        level.sort(key=lambda child: -child.level)
        for _, group in groupby(level, key=lambda child: child.level):
            equals = list(group)
            owners = [(child.queue, child.owner) for child in equals if child.owner is not None]
            self.factors.update(dict.fromkeys(owners, self.left / len(self.usage)))
            self.left -= len(owners)
            queues = tuple(child.queue for child in equals if child.owner is None)
            if queues:
                self.descend(queues)

    def _level(self, siblings: list[tuple[QueueId, str | None]]) -> list[_Child]:
        used = [self.below[queue] if owner is None else self.usage[queue, owner] for queue, owner in siblings]
        shares = [self.weights.get(queue, 1) if owner is None else 1 for queue, owner in siblings]
        all_used, all_shares = sum(used), sum(shares)
        return [
            _Child(queue, owner, share * all_used / (all_shares * amount) if amount > 0 else math.inf)
            for (queue, owner), amount, share in zip(siblings, used, shares, strict=True)
        ]


def _parent(queue: QueueId) -> QueueId | None:
    head, slash, _ = queue.rpartition("/")
    return QueueId(head) if slash else None


def _path(queue: QueueId) -> list[QueueId]:
    found: list[QueueId] = []
    at: QueueId | None = queue
    while at is not None:
        found.append(at)
        at = _parent(at)
    return found
