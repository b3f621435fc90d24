"""What queues are entitled to by their fair shares, and whether one may take from another: the rules of KAI.

A queue may *reclaim* while it stays within its fair share, and for work that can't be preempted only while all such
work stays within what the queue deserves. It takes from a queue that, where the two paths part, holds more than it may
have (its fair share, or what it deserves if that is more), or, while its own side stays within what it deserves, from
one that holds more than that. Afterwards it may not be further beyond its fair share than the siblings that it took
from: so nobody takes back in the next turn what was taken from it in this one. After KAI's proportion plugin; differs
in that amounts are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rayorch.core.fair_share import UNLIMITED, fair_shares, managed
from rayorch.core.planning.claims import Claim
from rayorch.core.planning.draft import Draft
from rayorch.core.policy import SortKey
from rayorch.core.quota import Quota
from rayorch.core.sharing import counted
from rayorch.core.types import UNIT, NodeHealth, QueueId, QueueSpec, Resources, State, WorkloadSpec, charge_of, total
from rayorch.core.usage_weights import weighted_by_usage

NO_SHARE_FACTOR = 1000
"""What a resource of which a queue may have nothing weighs in its dominant share."""


@dataclass(slots=True)
class Entitlements:
    """The fair shares of one turn. `firm`: what work that can't be preempted holds in each queue's subtree."""

    specs: Mapping[QueueId, QueueSpec]
    names: tuple[str, ...]
    cluster: Resources
    fair: Mapping[QueueId, Mapping[str, int]]
    saturation: float
    firm: dict[QueueId, Resources] = field(default_factory=dict)

    @staticmethod
    def of(draft: Draft) -> Entitlements:
        """As things stand before this turn decides anything."""
        snapshot = draft.facts.snapshot
        specs = {spec.id: spec for spec in snapshot.queues}
        there = total(node.total - node.foreign for node in snapshot.nodes if node.health is not NodeHealth.LOST)
        cluster = counted(there)
        found = Entitlements(
            specs,
            managed(snapshot.queues),
            cluster,
            fair_shares(_weighted(draft, cluster), cluster, _asked(draft)),
            draft.facts.profile.eviction.saturation,
        )
        for workload, _ in draft.facts.live():
            if not workload.spec.preemptible:
                kept = draft.staying(workload.id)
                found.hold_firmly(draft.soon.quota, workload.spec, charge_of(kept))
        return found

    def hold_firmly(self, quota: Quota, spec: WorkloadSpec, amount: Resources) -> None:
        """Count what work holds that can't be preempted; nothing for other work."""
        if spec.preemptible:
            return
        for queue in quota.path(spec.queue):
            self.firm[queue.id] = self.firm.get(queue.id, Resources()) + amount

    # ------------------------------------------------------------ one queue

    def allocatable(self, queue: QueueId, name: str) -> int:
        """The most that the queue may hold before others may take of it: its fair share, or what it deserves."""
        spec = self.specs[queue]
        most = max(spec.deserved.units(name), self.fair[queue].get(name, 0))
        cap = spec.hard_cap.units(name) if spec.hard_cap is not None else 0
        return min(cap, most) if cap else most

    def over_fair_share(self, held: Mapping[str, int], queue: QueueId) -> bool:
        """Whether such holdings are more than the queue's fair share of some resource."""
        return any(held[name] > self.fair[queue].get(name, 0) for name in self.names)

    def over_allocatable(self, held: Mapping[str, int], queue: QueueId) -> bool:
        """Whether such holdings are more than the queue may have of some resource."""
        return any(held[name] > self.allocatable(queue, name) for name in self.names)

    def over_deserved(self, held: Mapping[str, int], queue: QueueId) -> bool:
        """Whether such holdings are more than the queue deserves of some resource."""
        deserved = self.specs[queue].deserved
        return any(held[name] > deserved.units(name) for name in self.names)

    def held(self, quota: Quota, queue: QueueId, more: Resources = Resources()) -> dict[str, int]:
        """What the queue's subtree holds of the managed resources, with `more`."""
        return {name: quota.used_of(queue, name) + more.units(name) for name in self.names}

    def dominant(self, held: Mapping[str, int], queue: QueueId) -> float:
        """The largest part that the queue holds of what it may have of a resource."""
        found = 0.0
        for name in self.names:
            most = self.allocatable(queue, name)
            if most >= UNLIMITED:
                most = self.cluster.units(name)
            found = max(found, held[name] / most if most else float(held[name] * NO_SHARE_FACTOR))
        return found

    # ------------------------------------------------------------ whose turn it is

    def rank(self, quota: Quota, queue: QueueId, head: Resources, victims: Resources) -> SortKey:
        """Among siblings the queue with the smallest goes first, and the one with the largest gives first.

        Who is within its fair share, then who stays within what it deserves with its `head`, then priority, then who
        has a share at all, then the smaller dominant share with the head (and without the victims chosen so far), then
        the smaller one without, then who may have less; then the id.
        """
        plain = self.held(quota, queue)
        ahead = self.held(quota, queue, head)
        after = {name: n - victims.units(name) for name, n in ahead.items()}
        shares = [self.allocatable(queue, name) for name in self.names]
        no_share = any(most == 0 and ahead[name] > 0 for name, most in zip(self.names, shares, strict=True))
        return (
            int(self.over_fair_share(plain, queue)),
            int(self.over_deserved(ahead, queue)),
            -self.specs[queue].surplus_priority,
            int(no_share),
            self.dominant(after, queue),
            self.dominant(plain, queue),
            *shares,
            queue,
        )

    # ------------------------------------------------------------ what a claim may do

    def stays_firm(self, quota: Quota, claim: Claim) -> bool:
        """Whether work that can't be preempted stays, with the claim, within what each queue above it deserves."""
        if claim.workload.spec.preemptible:
            return True
        return all(
            self.firm.get(queue.id, Resources()).units(name) + n <= queue.deserved.units(name)
            for queue in quota.path(claim.queue)
            for name, n in claim.resources
            if name in self.names and n
        )

    def may_reclaim(self, quota: Quota, claim: Claim) -> bool:
        """Whether the claim's own queue stays within its share by it."""
        if claim.queue not in self.specs or self.over_fair_share(
            self.held(quota, claim.queue, claim.resources), claim.queue
        ):
            return False
        if claim.workload.spec.preemptible:
            return True
        firm = self.firm.get(claim.queue, Resources())
        deserved = self.specs[claim.queue].deserved
        return all(firm.units(name) + claim.resources.units(name) <= deserved.units(name) for name in self.names)

    def may_give(self, quota: Quota, claim: Claim, queue: QueueId) -> bool:
        """A first look at a queue: whether anything of it could be reclaimed for the claim at all."""
        parting = self._parting(quota, claim.queue, queue)
        if parting is None:
            return False
        ours, theirs = parting
        if self.over_deserved(self.held(quota, ours, claim.resources), ours):
            return self.over_allocatable(self.held(quota, theirs), theirs)
        deserved, below = self.specs[theirs].deserved, False
        for name, n in claim.resources:
            if n <= 0 or name not in self.names:
                continue
            used, due = quota.used_of(theirs, name), deserved.units(name)
            if used > due:
                return True
            below |= used < due <= self.cluster.units(name)
        return not below

    def allows(self, quota: Quota, claim: Claim, taken: Mapping[QueueId, Sequence[Resources]]) -> bool:
        """Whether the claim may take these pieces, by the queue that each is from. `quota`: as it is before."""
        left: dict[QueueId, dict[str, int]] = {}
        involved: dict[QueueId, set[str]] = {}
        for queue in sorted(taken):
            parting = self._parting(quota, claim.queue, queue)
            if parting is None:
                return False
            ours, theirs = parting
            starved = not self.over_deserved(self.held(quota, ours, claim.resources), ours)
            path = [spec.id for spec in quota.path(queue)]
            for piece in taken[queue]:
                rest = left.setdefault(theirs, self.held(quota, theirs))
                if not self.over_allocatable(rest, theirs) and not (starved and self.over_deserved(rest, theirs)):
                    return False
                for id in path:
                    remaining = left.setdefault(id, self.held(quota, id))
                    for name in self.names:
                        remaining[name] -= piece.units(name)
                    involved.setdefault(id, set()).update(name for name, n in piece if n > 0)
        return self._keeps_order(quota, claim, left, involved)

    def _keeps_order(
        self,
        quota: Quota,
        claim: Claim,
        left: Mapping[QueueId, Mapping[str, int]],
        involved: Mapping[QueueId, Iterable[str]],
    ) -> bool:
        own = {name for name, n in claim.resources if n > 0}
        for spec in quota.path(claim.queue):
            base = left.get(spec.id) or self.held(quota, spec.id)
            after = {name: base[name] + claim.resources.units(name) for name in self.names}
            for id, rest in left.items():
                if id == spec.id or self.specs[id].parent != spec.parent:
                    continue
                for name in own | set(involved[id]):
                    if name in self.names and not self._less_saturated(spec.id, after[name], id, rest[name], name):
                        return False
            if not claim.workload.spec.preemptible:
                firm = self.firm.get(spec.id, Resources())
                if any(firm.units(n) + claim.resources.units(n) > spec.deserved.units(n) for n in self.names):
                    return False
        return True

    def _less_saturated(self, ours: QueueId, held: int, theirs: QueueId, rest: int, name: str) -> bool:
        """Whether we are within our fair share, or less beyond it than they are beyond theirs."""
        fair, their_fair = self.fair[ours].get(name, 0), self.fair[theirs].get(name, 0)
        if held <= fair or not their_fair:
            return True
        return bool(fair) and held * self.saturation * their_fair < rest * fair

    def _parting(self, quota: Quota, one: QueueId, other: QueueId) -> tuple[QueueId, QueueId] | None:
        """The siblings at which the paths part; None for queues that are one or lie in each other."""
        return quota.divergence(one, other) if one in self.specs and other in self.specs else None


def _weighted(draft: Draft, cluster: Resources) -> tuple[QueueSpec, ...]:
    """The queues with the weights that divide the surplus: less by what was used lately, where the profile says so."""
    snapshot, k = draft.facts.snapshot, draft.facts.profile.ordering.share_by_usage
    return weighted_by_usage(snapshot.queues, snapshot.history, snapshot.now_s, cluster.gpu_units / UNIT, k)


def _asked(draft: Draft) -> dict[QueueId, Resources]:
    """What each queue's subtree holds and waits for."""
    sums: dict[QueueId, list[Resources]] = {}
    largest: dict[int, Resources] = {}
    for workload in draft.facts.snapshot.workloads:
        spec = workload.spec
        if workload.state is State.PENDING or (workload.state is State.RUNNING and spec.resizable):
            key = id(spec.roles)
            if key not in largest:
                whole = total(draft.prices.of(role.bundle).times(role.max_count) for role in spec.roles)
                largest[key] = counted(whole)
            sums.setdefault(spec.queue, []).append(largest[key])
        elif workload.state is State.RUNNING:
            sums.setdefault(spec.queue, []).append(charge_of(draft.staying(workload.id)))
    found: dict[QueueId, Resources] = {}
    for queue, parts in sums.items():
        amount = total(parts)
        for spec_above in draft.soon.quota.path(queue):
            found[spec_above.id] = found.get(spec_above.id, Resources()) + amount
    return found
