"""Stage 7. Adapt: surplus members for gangs that can use them, last of all.

Growth takes only what nobody who waits could use: never a node where one piece of a waiting claim would fit, never a
held node, never room that is promised. It preempts nobody. A running gang grows at most every
`Profile.grow_cooldown_s`, because each growth restarts its workers; a gang that does not declare itself resizable
keeps the size it started with.
"""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.planning.claims import Shape, growth_claim
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.seats import find
from rayorch.core.sharing import uses_devices
from rayorch.core.types import Kind, Member, MemberPhase, NodeId, Resources, State, Workload


def adapt(draft: Draft) -> None:
    """Give surplus seats: first to what starts in this plan, then to running gangs, in order of priority and age."""
    if not draft.facts.snapshot.synced:
        return
    coveted = _coveted(draft)
    for id, start in draft.starts.items():
        workload = draft.facts.workloads[id]
        if workload.spec.kind is not Kind.SERVE:
            extra = _grow(draft, workload, start.members, coveted)
            draft.starts[id] = replace(start, members=(*start.members, *extra))
    running = [w for w in draft.facts.snapshot.workloads if _may_grow(draft, w)]
    for workload in sorted(running, key=lambda w: (-w.spec.priority, w.submitted_s, w.id)):
        extra = _grow(draft, workload, draft.facts.held[workload.id].members, coveted)
        if extra:
            draft.added.setdefault(workload.id, []).extend(extra)


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


def _grow(
    draft: Draft, workload: Workload, members: tuple[Member, ...], coveted: frozenset[NodeId]
) -> tuple[Member, ...]:
    role = workload.spec.elastic_role
    if role is None:
        return ()
    wanted = min(role.max_count, draft.facts.profile.train_size(workload, draft.facts.now_s))
    have = sum(1 for m in members if m.role == role.name)
    added: tuple[Member, ...] = ()
    while have + len(added) < wanted:
        claim = draft.priced(growth_claim(workload, role, (*members, *added), draft.facts.topology.models))
        if not all(books.quota.fits(claim.queue, claim.resources) for books in draft.both):
            break
        search = draft.search(*(books.room for books in draft.both))
        nodes = find(claim.shape, replace(search, closed=search.closed | coveted))
        if nodes is None:
            break
        added = (*added, *draft.charge(claim, nodes, *draft.both))
    return added


def _coveted(draft: Draft) -> frozenset[NodeId]:
    """Nodes where a piece of a claim that waits for room would fit.

    What holds nodes of its own needs no others, and what no set of nodes could ever take can't use any.
    """
    holders = set(draft.closed.values())
    waiting = {c.shape for c in draft.unplaced if c.id not in holders and c.shape not in draft.hopeless}
    pieces = sorted({(bundle, _models(shape, bundle)) for shape in waiting for bundle, _ in shape.bundles}, key=repr)
    room, models = draft.now.room, draft.facts.topology.models

    def coveted(node: NodeId) -> bool:
        return any((not ok or models.get(node) in ok) and room.fits(node, piece) for piece, ok in pieces)

    return frozenset(node for node in draft.facts.topology.nodes if coveted(node))


def _models(shape: Shape, bundle: Resources) -> tuple[str, ...]:
    """The accelerator models that one piece may have, empty: any."""
    return shape.accelerators if uses_devices(bundle) else ()
