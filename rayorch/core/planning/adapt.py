"""Stage 7. Adapt: surplus members for gangs that can use them, last of all.

Growth takes only what nobody who waits could use: never a node where one piece of a waiting claim would fit, never a
held node, never room that is promised. It preempts nobody. A running gang grows at most every
`Profile.grow_cooldown_s`, because each growth restarts its workers; a gang that does not declare itself resizable
keeps the size it started with.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from rayorch.core.planning.cells import keeping
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Shape
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.growth import growths
from rayorch.core.planning.queue_gates import queue_gate
from rayorch.core.planning.seats import find
from rayorch.core.planning.waits import hopeless
from rayorch.core.sharing import uses_devices
from rayorch.core.types import Kind, Member, MemberPhase, NodeId, Resources, State, Workload


def adapt(draft: Draft) -> None:
    """Give surplus seats: first to what starts in this plan, then to running gangs, in the profile's order.

    With `Profile.even_growth` those of equal priority grow step by step, who has least of its minimum first.
    """
    if not draft.facts.snapshot.synced:
        return
    started = [draft.facts.workloads[id] for id in draft.starts]
    fresh = [w for w in started if w.spec.kind is not Kind.SERVE and w.spec.elastic_role is not None]
    running = [w for id in draft.facts.growing if _may_grow(draft, w := draft.facts.workloads[id])]
    if not fresh and not running:
        return
    taken = coveted(draft)
    order, view = draft.facts.profile.order, draft.view
    for line in (fresh, sorted(running, key=lambda w: (*order(w, view), w.sequence, w.id))):
        if draft.facts.profile.even_growth:
            _grow_evenly(draft, line, taken)
        else:
            for workload in line:
                while _grow(draft, workload, taken):
                    pass


def _grow_evenly(draft: Draft, line: list[Workload], taken: frozenset[NodeId]) -> None:
    """One step at a time, each to the one that has least of its minimum, of those that can take one."""

    def entry(position: int, workload: Workload) -> tuple[int, float, int]:
        least = sum(role.min_count for role in workload.spec.roles)
        return (-workload.spec.priority, len(_members(draft, workload)) / max(1, least), position)

    heap = [entry(position, workload) for position, workload in enumerate(line)]
    heapq.heapify(heap)
    while heap:
        _, _, position = heapq.heappop(heap)
        if _grow(draft, line[position], taken):
            heapq.heappush(heap, entry(position, line[position]))


def _may_grow(draft: Draft, workload: Workload) -> bool:
    allocation = draft.facts.held.get(workload.id)
    if allocation is None or workload.spec.kind is Kind.SERVE or not workload.spec.resizable:
        return False
    if workload.state is not State.RUNNING or workload.ready_s is None or workload.cancel_requested:
        return False
    changing = workload.id in draft.stops or workload.id in draft.removals
    if changing or any(m.phase is not MemberPhase.READY for m in allocation.members):
        return False
    changed_s = max(workload.started_s or 0.0, workload.resized_s or 0.0)
    return draft.facts.now_s - changed_s >= draft.facts.profile.grow_cooldown_s


def _members(draft: Draft, workload: Workload) -> tuple[Member, ...]:
    """All seats of an attempt that starts in this plan, or of one that runs with what the plan adds to it."""
    start = draft.starts.get(workload.id)
    if start is not None:
        return start.members
    return (*draft.facts.held[workload.id].members, *draft.added.get(workload.id, ()))


def _grow(draft: Draft, workload: Workload, taken: frozenset[NodeId]) -> bool:
    """One step: the first that the attempt could take, within quota and what nobody else could use."""
    gpus = any(role.bundle.gpu_units for role in workload.spec.roles)
    if queue_gate(draft, workload.spec.queue, gpus):
        return False
    members = _members(draft, workload)
    wanted = {role.name: role.max_count for role in workload.spec.roles}
    if (elastic := workload.spec.elastic_role) is not None:
        wanted[elastic.name] = min(elastic.max_count, draft.facts.profile.train_size(workload, draft.facts.now_s))
    if sum(wanted.values()) <= len(members):
        return False
    for step in growths(workload, members, wanted, draft.facts.topology.models):
        claim = draft.narrowed(draft.prices.of_claim(step))
        if not fits_quota(claim, *(books.quota for books in draft.both)):
            continue
        search = draft.search(*(books.room for books in draft.both))
        nodes = find(claim.shape, replace(search, closed=search.closed | taken | keeping(draft, claim)))
        if nodes is not None:
            added = draft.charge(claim, nodes, *draft.both)
            start = draft.starts.get(workload.id)
            if start is not None:
                draft.starts[workload.id] = replace(start, members=(*start.members, *added))
            else:
                draft.added.setdefault(workload.id, []).extend(added)
            return True
    return False


def coveted(draft: Draft) -> frozenset[NodeId]:
    """Nodes where a piece of a claim that waits for room would fit.

    What holds nodes of its own needs no others, and what no set of nodes could ever take can't use any.
    """
    holders = set(draft.closed.values())
    unplaced = {shape for shape, id, others in draft.unplaced if others or id not in holders}
    waiting = {shape for shape in unplaced if not hopeless(draft, shape)}
    pieces = sorted({(bundle, _models(shape, bundle)) for shape in waiting for bundle, _ in shape.bundles}, key=repr)
    room, models = draft.now.room, draft.facts.topology.models

    def wanted(node: NodeId) -> bool:
        return any((not ok or models.get(node) in ok) and room.fits(node, piece) for piece, ok in pieces)

    return frozenset(node for node in draft.facts.topology.nodes if wanted(node))


def _models(shape: Shape, bundle: Resources) -> tuple[str, ...]:
    """The accelerator models that one piece may have, empty: any."""
    return shape.accelerators if uses_devices(bundle) else ()
