"""Applications that stay: what they hold does not come free for a claim that may not take it.

Whoever waits for room waits for work to end, and an application has no end. So no nodes are held for a head that
needs the seats of one: where it could start beside the applications once all else has ended, it holds those nodes; and
where it could not, it holds none and says whose seats it lacks, so that it keeps nobody waiting who is behind it.

What an application holds now counts, not its minimum alone: what it wants beyond that is as its demand is, which may
stay as it is for days. What it gives back no longer counts. Nor does what the claim could take by right as soon as the
rest has come free: of lower priority, or of a side that holds more than its share. What is not preemptible stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.explain import UNBLOCKS
from rayorch.core.planning.claims import Claim, Shape, minimum_of
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.rights import fenced_off
from rayorch.core.planning.seats import Search, find
from rayorch.core.planning.victims import may_take
from rayorch.core.types import UNIT, Kind, Member, NodeId, Workload, WorkloadId

MAX_NAMED = 5
"""So many applications are named."""

Lasting = Mapping[WorkloadId, tuple[Member, ...]]
"""The seats of each application that a claim may not take."""


def lasting(draft: Draft, claim: Claim) -> Lasting:
    """The applications' seats that will not come free for the claim."""
    found: dict[WorkloadId, tuple[Member, ...]] = {}
    for id in draft.facts.asking:
        workload = draft.facts.workloads[id]
        kept = draft.staying(id) if workload.spec.kind is Kind.SERVE and id != claim.id else ()
        if kept and workload.spec.preemptible and _may_take(draft, claim, workload):
            kept = _fixed(draft, claim, workload, kept)
        if kept:
            found[id] = kept
    return found


def _may_take(draft: Draft, claim: Claim, workload: Workload) -> bool:
    """Whether the claim's queue and priority could ever allow it to take seats of that application."""
    if not draft.facts.profile.preemption:
        return False
    ours, theirs, quota = claim.queue, workload.spec.queue, draft.soon.quota
    if workload.spec.priority < claim.priority and not fenced_off(draft, ours, theirs):
        return True
    parting, names = quota.divergence(ours, theirs), [name for name, _ in claim.resources]
    if parting is None or not quota.above_deserved(parting[1], names):
        return False
    share = quota.deserved(parting[0])
    return any(share.units(name) for name in names) and all(
        n <= share.units(name) for name, n in claim.resources if share.units(name)
    )


def _fixed(draft: Draft, claim: Claim, workload: Workload, kept: tuple[Member, ...]) -> tuple[Member, ...]:
    """What stays of an application that the claim may take from: its minimum, if it lies in cells of others."""
    if not workload.cell or may_take(draft, claim.queue, workload):
        return ()
    return minimum_of(workload.spec, kept)


def beside_applications(
    draft: Draft, claim: Claim, found: Iterable[tuple[Shape, tuple[NodeId, ...]]]
) -> list[tuple[NodeId, ...]]:
    """Of places that are free if all work ends those that are so beside the applications, or others instead."""
    stay = lasting(draft, claim)
    if not stay:
        return [nodes for _, nodes in found]
    taken = {member.node for members in stay.values() for member in members}
    kept: list[tuple[NodeId, ...]] = []
    for shape, nodes in found:
        instead = nodes if taken.isdisjoint(nodes) else _place(draft, shape.loose, stay)
        if instead is not None:
            kept.append(instead)
    return kept


def application_wait(draft: Draft, claim: Claim) -> tuple[Wait, ...]:
    """That it would find no room if all work but the applications ended, if so."""
    stay = lasting(draft, claim) if not claim.grows else {}
    if not stay or any(find(shape, _unheld(draft, stay)) is not None for shape in claim.shape.by_model):
        return ()
    names = ", ".join(sorted(stay)[:MAX_NAMED])
    held = sum(member.bundle.gpu_units for members in stay.values() for member in members) / UNIT
    detail = f"{held:g} GPU of {names} don't come free by themselves; no node is held for it meanwhile"
    return (
        Wait(
            WaitReason.APPLICATIONS,
            detail,
            have=held,
            unit="GPU",
            blockers=tuple(sorted(stay)[:MAX_NAMED]),
            unblocks=UNBLOCKS[WaitReason.APPLICATIONS],
        ),
    )


def _place(draft: Draft, shape: Shape, stay: Lasting) -> tuple[NodeId, ...] | None:
    """Where the shape fits if all ends but these."""
    key = (f"beside {','.join(f'{id} {len(stay[id])}' for id in sorted(stay))}", shape)
    if key in draft.no_room:
        return None
    nodes = find(shape, _search(draft, stay))
    if nodes is None:
        draft.no_room.add(key)
    return nodes


def _unheld(draft: Draft, stay: Lasting) -> Search:
    """The same with nodes that are held, perhaps for the very claim that asks."""
    return replace(_search(draft, stay), closed=frozenset())


def _search(draft: Draft, stay: Lasting) -> Search:
    """The nodes as they are if all ends but these, those in use least first."""
    room, soon = draft.idle().copy(), draft.soon.room
    for members in stay.values():
        for member in members:
            if room.fits(member.node, member.bundle):
                room.take(member.node, member.bundle)
    search = draft.search(room)
    return replace(
        search,
        score=lambda bundle, node, slot: (draft.in_use(node), *draft.facts.score(bundle, node, slot)),
        domain_score=lambda domain: (-sum(soon.gpu_units(node) for node in domain.nodes),),
        view=None,
    )
