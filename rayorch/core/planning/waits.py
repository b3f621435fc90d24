"""Why a claim that did not start waits: every reason that holds, each with its numbers, blockers and what ends it.

The reasons that lie in the room are found once per shape and turn, and shared by all claims of that shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from rayorch.core.capacity import GroupName
from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.explain import UNBLOCKS
from rayorch.core.planning.charges import short_of
from rayorch.core.planning.claims import Claim, Shape
from rayorch.core.planning.device_waits import device_waits
from rayorch.core.planning.draft import Draft, Leaving
from rayorch.core.planning.group_waits import lacks
from rayorch.core.planning.lasting import application_wait
from rayorch.core.planning.nest import count_fitting
from rayorch.core.planning.seats import Search, fill, find, free_total
from rayorch.core.planning.set_aside import opened
from rayorch.core.quota import LimitKind, Shortage
from rayorch.core.room import Room
from rayorch.core.sharing import GPU_DEVICES
from rayorch.core.types import (
    GPU,
    UNIT,
    Member,
    NodeHealth,
    NodeId,
    QueueId,
    Resources,
    WorkloadId,
    total,
)

LIMIT_REASONS = {LimitKind.USER: WaitReason.USER_LIMIT, LimitKind.CLUSTER: WaitReason.COUNTABLES}
"""What a shortage of a limit is called; of all others it is the queue's quota."""

MAX_BLOCKERS = 5
"""How many of those in the way are named."""


def quota_waits(draft: Draft, claim: Claim) -> tuple[Wait, ...]:
    """One reason per queue on the path and resource at which the claim is too much."""
    short, soon = short_of(claim, draft.now.quota), short_of(claim, draft.soon.quota)
    found = {(s.queue, s.resource, s.kind): s for s in (*soon, *short)}
    return tuple(_quota_wait(draft, claim, shortage) for shortage in found.values())


def behind_head(claim: Claim) -> tuple[Wait, ...]:
    """What those wait for who stand behind this one in a queue with strict order."""
    detail = f"{claim.id} goes before it in queue {claim.queue}"
    return (Wait(WaitReason.BEHIND_HEAD, detail, blockers=(claim.id,)),)


def _quota_wait(draft: Draft, claim: Claim, short: Shortage) -> Wait:
    reason = LIMIT_REASONS.get(short.kind, WaitReason.QUOTA)
    return Wait(
        reason,
        _quota_text(short),
        need=short.need / UNIT,
        have=short.have / UNIT,
        unit=short.resource,
        blockers=_holders(draft, short.resource, short.queue or None, claim.id),
        unblocks=UNBLOCKS[reason],
    )


def _quota_text(short: Shortage) -> str:
    used, have, need, limit = (_amount(n) for n in (short.used, short.have, short.need, short.limit))
    match short.kind:
        case LimitKind.CLUSTER:
            return f"the cluster has {limit} {short.resource}, of which {used} are in use; {need} are needed"
        case LimitKind.USER:
            who = short.owner or "who names no owner"
            return f"{who} has {used} {short.resource} of the {limit} that each user may have in queue {short.queue}"
        case LimitKind.CAP:
            said = f"queue {short.queue} holds {used} {short.resource} of the {limit} that it may hold in any case"
        case LimitKind.SHARE:
            deserved = _amount(short.deserved)
            said = f"queue {short.queue} holds {used} {short.resource} of the {deserved} that it deserves"
        case _:
            assert_never(short.kind)
    return f"{said} and may take {have} more; {need} are needed"


def releasing_wait(draft: Draft, members: tuple[Member, ...]) -> tuple[Wait, float | None]:
    """The claim's seats are promised: who is leaving them, and by when at the latest."""
    nodes = {m.node for m in members}
    leaving = [gone for gone in draft.leaving if any(m.node in nodes for m in gone.members)]
    deadlines = [gone.deadline_s for gone in leaving]
    known = [deadline for deadline in deadlines if deadline is not None]
    latest = max(known) if known and len(known) == len(deadlines) else None
    wait = Wait(
        WaitReason.RELEASING,
        f"seats are reserved for it; {_names(leaving)} {'is' if len(leaving) == 1 else 'are'} leaving them",
        need=max(0.0, latest - draft.facts.now_s) if latest is not None else 0.0,
        unit="s",
        blockers=tuple(sorted({gone.workload for gone in leaving}))[:MAX_BLOCKERS],
        unblocks=UNBLOCKS[WaitReason.RELEASING],
    )
    return wait, max(latest, draft.facts.now_s) if latest is not None else None


def awaited_groups(draft: Draft, nodes: Iterable[NodeId]) -> dict[GroupName, tuple[int, float]]:
    """Of nodes that are on their way: how many of each group, and by when they should be there."""
    arriving, groups = draft.facts.arriving, draft.facts.standings
    counts = Counter(arriving[node] for node in {*nodes} if node in arriving)
    return {group: (counts[group], groups[group].expected_s) for group in sorted(counts)}


def provisioning_wait(draft: Draft, awaited: Mapping[GroupName, tuple[int, float]]) -> tuple[Wait, float]:
    """Nodes for it are on their way; and when they should all be there. `awaited`: how many of which group, by when."""
    now_s = draft.facts.now_s
    expected_s = max([now_s, *(by_s for _, by_s in awaited.values())])
    parts = [
        f"{count} of group {group}, expected in {max(0.0, by_s - now_s):.0f} s"
        for group, (count, by_s) in sorted(awaited.items())
    ]
    wait = Wait(
        WaitReason.PROVISIONING,
        f"nodes for it are on their way: {'; '.join(parts)}",
        need=expected_s - now_s,
        unit="s",
        unblocks=UNBLOCKS[WaitReason.PROVISIONING],
    )
    return wait, expected_s


def room_waits(draft: Draft, shape: Shape) -> tuple[Wait, ...]:
    """All reasons that lie in the room, for any claim of the shape; computed once per shape that finds no room."""
    known = draft.room_waits.get(shape)
    if known is None:
        known = tuple(_room_waits(draft, shape))
        if known:  # room that is there may be gone for the next claim
            draft.room_waits[shape] = known
    return known


def _room_waits(draft: Draft, shape: Shape) -> list[Wait]:
    search = draft.open_search()
    if find(shape, search) is not None:
        return []
    found = _amounts(draft, shape, _unheld(search))
    found += device_waits(draft, shape)
    found += _taken_ahead(draft, shape, search)
    found += _out_of_service(draft, shape)
    if hopeless(draft, shape):
        found.append(_never(draft, shape))
    return found


def hopeless(draft: Draft, shape: Shape) -> bool:
    """Whether no set of the nodes could take the shape, even if nothing else ran."""
    known = draft.hopeless.get(shape)
    if known is None:
        known = draft.hopeless[shape] = not _could_ever_fit(draft, shape)
    return known


def reasons(draft: Draft, claim: Claim) -> tuple[Wait, ...]:
    """Why a claim that found neither room nor victims waits, by the books as they are now."""
    room = room_waits(draft, claim.shape)
    found = (*quota_waits(draft, claim), *room, *(application_wait(draft, claim) if room else ()))
    if found:
        return found
    # What it lacked when it was looked at has come free since, and went to others or to nobody in this turn.
    detail = "others went first in this turn; what came free meanwhile is given in the next one"
    return (_wait(WaitReason.PRIORITY, detail, 0, 0, "", ()),)


def _never(draft: Draft, shape: Shape) -> Wait:
    models = draft.facts.topology.models
    nodes = [n for n in draft.facts.snapshot.nodes if not shape.accelerators or models.get(n.id) in shape.accelerators]
    most = max((node.total.gpu_units for node in nodes), default=0) / UNIT
    kind = f" with {' or '.join(shape.accelerators)}" if shape.accelerators else ""
    detail = f"no set of the {len(nodes)} nodes{kind} could take it, even if nothing else ran"
    mixed = [node.name for node in draft.facts.snapshot.nodes if len(node.models) > 1] if shape.accelerators else []
    if mixed:
        detail += f"; nodes with several models do not count: {', '.join(mixed[:4])}"
    return _wait(WaitReason.NEVER_FITS_NOW, detail, _gpus(shape), most, "GPU", ())


def _amounts(draft: Draft, shape: Shape, search: Search) -> list[Wait]:
    """What is lacking of the room that is free, whatever its models, and then of each model that would do."""
    if not shape.accelerators:
        return _lacks(draft, shape, search)
    if find(shape, search) is not None:
        return []
    anything = replace(shape, accelerators=())
    found = _lacks(draft, anything, search)
    free = {model: max(0, free_total(search.on(model), GPU)) for model in shape.accelerators}
    others = free_total(search, GPU) - sum(free.values())
    if found and max(free.values()) >= free_total(search, GPU):
        return found  # all that is free is of one such model: that there are others makes no difference
    lacking = [(model, wait) for model in free for wait in _lacks(draft, anything, search.on(model))[:1]]
    details = [f"{model}: {wait.detail}" for model, wait in lacking]
    if others > 0:
        details.append(f"{_amount(others)} GPU of other models are free")
    blockers = _holders_on(draft, shape.accelerators)
    found.append(
        _wait(WaitReason.ACCELERATOR, "; ".join(details), _gpus(shape), max(free.values()) / UNIT, "GPU", blockers)
    )
    return found


def _lacks(draft: Draft, shape: Shape, search: Search) -> list[Wait]:
    """Not enough in all, or not in pieces of that size, or not within one domain; on GPUs of the search's model."""
    need = total(bundle.times(count) for bundle, count in shape.bundles)
    found: list[Wait] = []
    for name, units in need:
        if name == GPU_DEVICES:
            continue  # how they are cut, not how much is needed
        have = free_total(search, name)
        if have < units:
            detail = f"{_amount(units)} {name} are needed, {_amount(max(0, have))} are free"
            blockers = _holders(draft, name, None, None)
            found.append(_wait(WaitReason.RESOURCES, detail, units / UNIT, max(0, have) / UNIT, name, blockers))
    if found or find(shape, search) is not None:
        return found
    for bundle, count in shape.bundles:
        fitting = count_fitting(bundle, search.topology.nodes, search, count)
        if fitting < count:
            size = ", ".join(f"{_amount(n)} {name}" for name, n in bundle)
            detail = f"{count} pieces of {size} are needed, {fitting} fit; what is free is in smaller pieces"
            blockers = _holders(draft, bundle.items[0][0] if bundle.items else "", None, None)
            found.append(_wait(WaitReason.FRAGMENTED, detail, count, fitting, "seats", blockers))
    if not found and fill(shape.bundles, search.topology.nodes, search) is None:
        count = sum(count for _, count in shape.bundles)
        detail = "each of its pieces would fit, all of them together do not"
        found.append(_wait(WaitReason.FRAGMENTED, detail, count, 0, "seats", ()))
    if shape.layout is not None and not found:
        short = lacks(shape.layout, search)
        return [_wait(WaitReason.TOPOLOGY, each.detail, each.need, each.have, each.unit, ()) for each in short]
    level = shape.topology.required
    if level is not None and not found:
        found.append(_topology_wait(shape, search, level))
    return found


def _topology_wait(shape: Shape, search: Search, level: str) -> Wait:
    need = _gpus(shape)
    domains = search.topology.at(level)
    if shape.near:
        domains = tuple(d for d in domains if any(node in shape.near for node in d.nodes))
    have = max((search.free_gpu_units(d.nodes) for d in domains), default=0) / UNIT
    detail = f"it would fit, but not within one {level}: the freest of {len(domains)} has {have:g} GPU free"
    return _wait(WaitReason.TOPOLOGY, detail, need, have, "GPU", ())


def _taken_ahead(draft: Draft, shape: Shape, search: Search) -> list[Wait]:
    """Room that is free, but set aside, held for a head, or given to others that go first."""
    found: list[Wait] = []
    if draft.asides and find(shape, replace(_unheld(search), rooms=tuple(opened(draft, r) for r in search.rooms))):
        names = ", ".join(sorted(id for id, aside in draft.asides.items() if aside.seats))
        found.append(_wait(WaitReason.SET_ASIDE, f"it would fit in what is set aside for {names}", 0, 0, "", ()))
        return found
    if search.closed and find(shape, _unheld(search)) is not None:
        heads = tuple(sorted(set(draft.closed.values())))
        detail = f"{len(draft.closed)} nodes are held for {len(heads)} workloads ahead of it"
        found.append(_wait(WaitReason.RESERVED_FOR_HEAD, detail, 0, 0, "", heads[:MAX_BLOCKERS]))
        return found
    ahead = (
        *draft.starts,
        *draft.added,
        *(r.workload for r in draft.reserves if r.from_release),
        *sorted(draft.kept_seats),
    )
    if ahead and find(shape, replace(_unheld(search), rooms=(draft.first.room,))) is not None:
        blockers = tuple(dict.fromkeys(ahead))
        detail = f"{len(blockers)} workloads go first in this turn and take the room"
        found.append(_wait(WaitReason.PRIORITY, detail, len(blockers), 0, "workloads", blockers[:MAX_BLOCKERS]))
    return found


def _out_of_service(draft: Draft, shape: Shape) -> list[Wait]:
    """Room on nodes that take nothing new, and room that is used outside our grants.

    Nodes that are held count as free: by now they may be held for the very workload that asks.
    """
    facts, found = draft.facts, list[Wait]()
    now_s = facts.now_s
    off = [n for n in facts.snapshot.nodes if n.health is not NodeHealth.OK or n.blocked_until_s > now_s]
    if off and find(shape, _unheld(draft.search(draft.now.room.opened()))) is not None:
        names = ", ".join(f"{n.name} ({'blocked' if n.health is NodeHealth.OK else n.health.value})" for n in off[:4])
        detail = f"it would fit if nodes that take nothing new did: {names}"
        found.append(_wait(WaitReason.NODES_UNAVAILABLE, detail, len(off), 0, "nodes", ()))
    foreign = [n for n in facts.snapshot.nodes if n.foreign]
    if foreign:
        nodes = [replace(n, foreign=Resources()) for n in facts.snapshot.nodes]
        if find(shape, _unheld(draft.search(Room.of(nodes, facts.snapshot.allocations, now_s)))) is not None:
            units = sum(n.foreign.gpu_units for n in foreign)
            holders = ", ".join(sorted({h for n in foreign for h in n.foreign_holders})[:4]) or "unknown users"
            detail = f"{_amount(units)} GPU are in use outside our grants by {holders}"
            found.append(_wait(WaitReason.FOREIGN_USE, detail, units / UNIT, 0, "GPU", ()))
    return found


def _could_ever_fit(draft: Draft, shape: Shape) -> bool:
    """Whether the nodes that exist would take the shape if all were healthy and nothing else ran."""
    ideal = draft.ideal_room
    if ideal is None:
        nodes = [
            replace(node, health=NodeHealth.OK, foreign=Resources(), blocked_until_s=0.0)
            for node in draft.facts.snapshot.nodes
            if node.health is not NodeHealth.LOST
        ]
        ideal = draft.ideal_room = Room.of(nodes, (), draft.facts.now_s)
    return find(shape.loose, _unheld(draft.search(ideal))) is not None


# ---------------------------------------------------------------- parts


def _wait(
    reason: WaitReason, detail: str, need: float, have: float, unit: str, blockers: tuple[WorkloadId, ...]
) -> Wait:
    return Wait(reason, detail, True, need, have, unit, blockers, UNBLOCKS[reason])


def _holders(
    draft: Draft, resource: str, queue: QueueId | None, other_than: WorkloadId | None
) -> tuple[WorkloadId, ...]:
    """Who holds most of a resource, in a queue's subtree or anywhere; the largest holdings first."""
    key = (resource, queue)
    if key not in draft.holders:
        held: list[tuple[int, WorkloadId]] = []
        for workload, amount in draft.facts.holdings:
            inside = queue is None or workload.spec.queue == queue or workload.spec.queue.startswith(f"{queue}/")
            if inside and (units := amount.units(resource)):
                held.append((-units, workload.id))
        draft.holders[key] = tuple(id for _, id in sorted(held)[: MAX_BLOCKERS + 1])
    return tuple(id for id in draft.holders[key] if id != other_than)[:MAX_BLOCKERS]


def _holders_on(draft: Draft, accelerators: tuple[str, ...]) -> tuple[WorkloadId, ...]:
    """Who holds most GPUs of these models."""
    models = draft.facts.topology.models
    held: list[tuple[int, WorkloadId]] = []
    for workload, allocation in draft.facts.live():
        units = sum(m.bundle.gpu_units for m in allocation.members if models.get(m.node) in accelerators)
        if units:
            held.append((-units, workload.id))
    return tuple(id for _, id in sorted(held)[:MAX_BLOCKERS])


def _unheld(search: Search) -> Search:
    """The same without nodes held for others (and without the index, which knows of them)."""
    return replace(search, closed=frozenset(), view=None)


def _names(leaving: list[Leaving]) -> str:
    names = sorted({gone.workload for gone in leaving})
    return ", ".join(names[:MAX_BLOCKERS]) or "nobody known"


def _gpus(shape: Shape) -> float:
    return sum(bundle.gpu_units * count for bundle, count in shape.bundles) / UNIT


def _amount(units: int) -> str:
    return f"{units / UNIT:g}"
