"""Stage 5, after backfill. Lend: idle room beside a head whose time nobody knows, to those whom it may evict again.

A head that waits for work of unknown length holds nodes until it can start, and some of these may be idle. Whoever is
short enough for a gap can't be told, but the room need not be idle: what the head could evict by right, whatever
happens meanwhile, may use it. When the rest of what the head needs comes free, it finds its victims there like
anywhere else (stage 6). So a loan costs the head the grace of the borrower and nothing more.

By right and whatever happens is: of lower priority, preemptible, without a time in which it must be left alone,
across no fence; and in the head's own queue or one below or above it, or in a queue beside it whose whole share is
less than the borrower takes. Nothing is lent of which the quota is the head's, or while the head waits only until some
victim has run for long enough.

After Kueue's rule that who can always reclaim reserves nothing (PR #4813); differs in that the nodes are still held
from all others, and in that the borrower must be less important: reclaim and preemption do not join for one claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rayorch.core.decisions import Start
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.rights import fenced_off, settling
from rayorch.core.planning.seats import Search, find
from rayorch.core.planning.walk import Rest, Walk
from rayorch.core.topology import Topology
from rayorch.core.types import NodeId, QueueId, Resources, Workload, total


@dataclass(frozen=True, slots=True, eq=False)
class _Head:
    """A waiting workload that holds nodes, and what it needs. `nodes`: those of them that are not full."""

    workload: Workload
    needs: Resources
    nodes: frozenset[NodeId]


def lend(draft: Draft, walk: Walk) -> None:
    """Start those who wait for nothing but room on nodes that heads hold until nobody knows when, in their order."""
    knobs = draft.facts.profile.backfill
    heads = list(_lenders(draft)) if knobs.lend and draft.facts.profile.preemption else []
    if not heads:
        return
    holders = set(draft.closed.values())
    most = max(draft.soon.room.gpu_units(node) for head in heads for node in head.nodes)
    whole = sum(draft.soon.room.gpu_units(node) for node in frozenset[NodeId]().union(*(head.nodes for head in heads)))
    able: dict[tuple[QueueId, int, float, bool], tuple[_Head, ...]] = {}
    searches: dict[tuple[_Head, ...], Search] = {}
    looks = tries = 0

    def lenders(workload: Workload, resources: Resources) -> tuple[_Head, ...]:
        spec = workload.spec
        kind = (spec.queue, spec.priority, spec.min_runtime_s, spec.preemptible)
        if kind not in able:
            able[kind] = tuple(head for head in heads if _could_evict(draft, head, workload, resources))
        return able[kind]

    def could_be_lent(rest: Rest) -> bool:
        asked = rest.claim or rest.gang
        if not lenders(rest.entries[-1][1], asked.resources):  # the last of a line is as a rule the least important
            return False
        return asked.shape.gpu_units <= whole and all(bundle.gpu_units <= most for bundle, _ in asked.shape.bundles)

    for claim, rest in walk.lacking(could_be_lent):
        looks += 1
        if looks > knobs.most_looks or tries >= knobs.most_tries:
            break
        if claim.grows or claim.id in holders or claim.parts:
            continue
        found = lenders(claim.workload, claim.resources)
        found = tuple(head for head in found if head.workload.yielded_to != claim.id)
        if not found:
            continue
        tries += 1
        if found not in searches:
            searches[found] = _search(draft, found)
        within = fits_quota(claim, *(books.quota for books in draft.both)) and _leaves_quota(draft, claim, found)
        if within and _start(draft, claim, searches[found]):
            walk.leave(claim.id)
        else:
            rest.dropped = rest.claim is None  # those behind it ask for as much
    walk.keep_all()


def _lenders(draft: Draft) -> Iterable[_Head]:
    """Heads that hold GPUs which are idle, and don't know for how long."""
    rooms = [books.room for books in draft.both]
    found: list[tuple[_Head, frozenset[NodeId]]] = []
    for reserve in draft.reserves:
        if reserve.from_release or reserve.kept or reserve.at_s is not None:
            continue
        held = frozenset(m.node for m in reserve.members if draft.closed.get(m.node) == reserve.workload)
        idle = frozenset(node for node in held if all(room.gpu_units(node) > 0 for room in rooms))
        if idle:
            needs = total(m.charge for m in reserve.members)
            found.append((_Head(draft.facts.workloads[reserve.workload], needs, idle), held))
    young = list(_left_alone(draft)) if found else []
    for head, held in found:
        mine = (other for other, nodes in young if other.spec.priority < head.workload.spec.priority and nodes & held)
        if not any(mine):  # else it evicts as soon as these have run for long enough
            yield head


def _left_alone(draft: Draft) -> Iterable[tuple[Workload, frozenset[NodeId]]]:
    """Work that may be evicted only when it has run for longer, and where it is."""
    facts = draft.facts
    all_may = facts.profile.eviction.exempt_s > 0 or any(queue.min_runtime_s for queue in facts.snapshot.queues)
    for id in facts.live_ids:
        workload = facts.workloads[id]
        if workload.spec.preemptible and (all_may or workload.spec.min_runtime_s) and settling(draft, workload):
            yield workload, frozenset(member.node for member in facts.held[id].members)


def _could_evict(draft: Draft, head: _Head, workload: Workload, resources: Resources) -> bool:
    """Whether the head may stop the workload's attempt at any time, whatever else starts or ends meanwhile."""
    ours, theirs = head.workload.spec, workload.spec
    if not theirs.preemptible or theirs.priority >= ours.priority or fenced_off(draft, ours.queue, theirs.queue):
        return False
    if settling(draft, replace(workload, started_s=draft.facts.now_s)):
        return False
    quota = draft.soon.quota
    parting = quota.divergence(ours.queue, theirs.queue)
    if parting is None:
        return True
    share = quota.deserved(parting[1])
    return any(n and resources.units(name) > share.units(name) for name, n in head.needs)


def _leaves_quota(draft: Draft, claim: Claim, heads: tuple[_Head, ...]) -> bool:
    """Whether each of the heads would still be within its quota: one that is not holds nothing any more."""
    quota = draft.soon.quota
    quota.charge(claim.queue, claim.resources, claim.owner, 1)
    try:
        return all(quota.fits(h.workload.spec.queue, h.needs, h.workload.spec.owner, 1) for h in heads)
    finally:
        quota.refund(claim.queue, claim.resources, claim.owner, 1)


def _search(draft: Draft, heads: tuple[_Head, ...]) -> Search:
    """The nodes that these heads hold, and no others."""
    nodes = frozenset[NodeId]().union(*(head.nodes for head in heads))
    search = draft.search(*(books.room for books in draft.both))
    topology = Topology.of(draft.facts.nodes[node] for node in sorted(nodes))
    return replace(search, topology=topology, closed=frozenset(), view=None)


def _start(draft: Draft, claim: Claim, search: Search) -> bool:
    nodes = find(claim.shape, search)
    if nodes is None:
        return False
    heads = tuple(sorted({draft.closed[node] for node in nodes}))
    members = draft.charge(claim, nodes, *draft.both)
    reason = (
        f"{len(members)} idle seats that are held for {', '.join(heads[:4])}, which takes them back when it can start"
    )
    draft.starts[claim.id] = Start(claim.id, claim.attempt, members, reason, lent_by=heads)
    return True
