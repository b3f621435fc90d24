"""Stage 5. Place: a claim starts where there is room now, or waits for room that is being freed, or is held room.

The reservation for a head. Of every queue the first claim (in the order of stage 4) that is within its quota and finds
neither room nor victims holds nodes: the nodes that would take it if all work there ended, those in use least first, so
that it can start soonest. Where the ends of what runs are known, it holds those nodes that take it first, from that
time on (`timeline.py`). Nothing behind it may start, grow or evict on these nodes, but for what has left before
(`backfill.py`); work that runs there goes on.
What is behind may use all other nodes, so it is never what delays the head. A claim of at most one GPU in one piece
holds nothing: there is no smaller whole piece that others could take from it.
"""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.capacity import GroupName
from rayorch.core.decisions import Reserve, Start
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim, Gang
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.lasting import beside_applications
from rayorch.core.planning.repair import seats_for
from rayorch.core.planning.seats import Search, find
from rayorch.core.planning.timeline import Opening, Timeline, opening
from rayorch.core.planning.together import starts_of
from rayorch.core.policy import SortKey
from rayorch.core.sharing import is_share
from rayorch.core.slot import Slot
from rayorch.core.topology import Domain
from rayorch.core.types import UNIT, Member, NodeId, Resources, TopologyRequest
from rayorch.core.values import changed

KEEPING = ", beside cells"
NOW = "now"
SOON = "soon"
HELD = "held"
EXPECTED = "expected"


def place(draft: Draft, claim: Claim) -> bool:
    """Start the claim, or add its seat, if quota and room allow it now; never in room that is promised to others."""
    key = (NOW + KEEPING if draft.keeping else NOW, claim.shape)
    if key in draft.no_room or not _within_quota(draft, claim):
        return False
    nodes = seats_for(draft, claim, _to_its_own(draft, claim, draft.open_search_for(claim)))
    if nodes is None:
        draft.no_room.add(key)
        return False
    if claim.grows and draft.soon is not draft.now and not _leaves_promises(draft, claim, nodes):
        return False  # which says nothing of others of its shape
    members = draft.charge(claim, nodes, *draft.both)
    if claim.grows:
        draft.added.setdefault(claim.id, []).extend(members)
    else:
        for start in starts_of(claim, members, ""):
            draft.starts[start.workload] = changed(start, reason=_reason(draft, start))
    return True


def _leaves_promises(draft: Draft, claim: Claim, nodes: tuple[NodeId, ...]) -> bool:
    """Whether further seats of one who runs, taken there now, leave what is promised to others where it is.

    A node may have room for a part of a GPU now, and when all that is leaving has left, and not on the same device:
    what it would get now is another's then, who would take it back.
    """
    if not any(is_share(ask.bundle) for ask in claim.asks):
        return True
    now, soon = draft.now.room.part(nodes), draft.soon.room.part(nodes)
    for ask, node in zip(claim.asks, nodes, strict=True):
        wished = draft.wished(claim, ask.bundle, node, draft.now) if len(nodes) == 1 else ()
        devices = now.take(node, ask.bundle, wished)
        if not is_share(ask.bundle):
            soon.take(node, ask.bundle, wished)
        elif not soon.retake(node, ask.bundle, devices):
            return False
    return True


def _reason(draft: Draft, start: Start) -> str:
    where = _where(draft, tuple(member.node for member in start.members))
    others = f", together with {', '.join(start.partners[:4])}" if start.partners else ""
    return f"{len(start.members)} seats on {where}{others}"


def promise(draft: Draft, claim: Claim) -> bool:
    """Reserve seats in room that is free or being freed, if the claim fits there: it needs no victims then."""
    key = (SOON + KEEPING if draft.keeping else SOON, claim.shape)
    if draft.soon is draft.now or key in draft.no_room or not fits_quota(claim, draft.soon.quota):
        return False
    nodes = seats_for(draft, claim, draft.soon_search())
    if nodes is None:
        draft.no_room.add(key)
        return False
    members = draft.charge(claim, nodes, draft.soon)
    draft.reserves.append(Reserve(claim.id, members, True, f"seats that are being freed on {_where(draft, nodes)}"))
    return True


def expect(draft: Draft, claim: Claim) -> tuple[Member, ...]:
    """Promise seats of which some are on nodes that are on their way; empty when it does not fit there either.

    What exists is used first, so that no more nodes are waited for than it takes. What is promised here nobody else
    gets, also not as the nodes come one by one: a gang that waits for its last node would never have them all.
    """
    key = (EXPECTED + KEEPING if draft.keeping else EXPECTED, claim.shape)
    arriving = draft.facts.arriving
    if not arriving or key in draft.no_room or not fits_quota(claim, draft.soon.quota):
        return ()
    room, need = draft.soon.room, claim.resources.gpu_units
    plain = draft.search(room)
    others = _meant_for_others(draft, claim)

    def existing_first(bundle: Resources, node: NodeId, slot: Slot) -> SortKey:
        return (2 * (node in others) + (node in arriving), *plain.score(bundle, node, slot))

    def fewest_awaited(domain: Domain) -> SortKey:
        own = sum(room.gpu_units(node) for node in domain.nodes if node not in others)
        here = sum(room.gpu_units(node) for node in domain.nodes if node not in arriving)
        return (max(0, need - own), max(0, need - here), *plain.domain_score(domain))

    wish = TopologyRequest(required=claim.shape.topology.required)
    shape = replace(claim.shape.loose, topology=wish, near=claim.shape.near if wish.required is not None else ())
    search = replace(plain, topology=draft.facts.horizon, score=existing_first, domain_score=fewest_awaited)
    nodes = find(shape, search)
    if nodes is None:
        draft.no_room.add(key)
        return ()
    return draft.charge(claim, nodes, draft.soon)


def hold(draft: Draft, claim: Claim) -> bool:
    """Keep nodes for the head of a queue; False when it needs none or no node could take it."""
    key = (HELD + KEEPING if draft.keeping else HELD, claim.shape)
    if not draft.facts.profile.backfill.hold:
        return False
    if claim.grows or is_small(claim) or claim.queue in draft.heads or key in draft.no_room:
        return False
    if (later := _opening(draft, claim)) is not None:
        return _held(draft, claim, later.nodes, later.at_s)
    search = draft.idle_search()
    found = [(shape, nodes) for shape in claim.shape.by_model if (nodes := find(shape.loose, search)) is not None]
    if not found:
        draft.no_room.add(key)
        return False
    places = beside_applications(draft, claim, found)
    if not places:
        return False
    # Of several accelerator models the one that is in use least, then the preferred one.
    nodes = min(places, key=lambda nodes: sum(draft.in_use(node) for node in set(nodes)))
    return _held(draft, claim, nodes, None)


def is_small(asked: Claim | Gang) -> bool:
    """Whether it is one piece of at most one GPU."""
    return len(asked.asks) == 1 and asked.resources.gpu_units <= UNIT


def _opening(draft: Draft, claim: Claim) -> Opening | None:
    """When and where the head should start, for as many heads as the profile looks at."""
    if len(draft.heads) >= draft.facts.profile.backfill.heads or len(claim.ways) > 1:
        return None
    if draft.timeline is None:
        draft.timeline = Timeline(draft)
    return opening(draft, claim.shape.loose, draft.timeline)


def _held(draft: Draft, claim: Claim, nodes: tuple[NodeId, ...], at_s: float | None) -> bool:
    draft.heads.add(claim.queue)
    members = tuple(ask.on(node, ()) for ask, node in zip(claim.asks, nodes, strict=True))
    draft.close(claim, nodes, at_s)
    until = "" if at_s is None else f" that does not end within {max(0.0, at_s - draft.facts.now_s):.0f} s"
    reason = f"the first of queue {claim.queue} that finds no room; nothing behind it{until} may take"
    draft.reserves.append(Reserve(claim.id, members, False, f"{reason} {_where(draft, nodes)}", at_s))
    if at_s is not None:
        draft.estimates.setdefault(claim.id, at_s)
    return True


def _to_its_own(draft: Draft, claim: Claim, search: Search) -> Search:
    """For a gang that nodes were ordered for: before nodes that were ordered for others, if it can be helped.

    Both would fit; but those others may fit nowhere else, and what was ordered for this one would stay idle.
    """
    if not draft.facts.ordered_for(claim.id):
        return search
    others = _meant_for_others(draft, claim)

    def score(bundle: Resources, node: NodeId, slot: Slot) -> SortKey:
        return (int(node in others), *search.score(bundle, node, slot))

    def domain_score(domain: Domain) -> SortKey:
        return (any(node in others for node in domain.nodes), *search.domain_score(domain))

    return replace(search, score=score, domain_score=domain_score, view=None) if others else search


def _meant_for_others(draft: Draft, claim: Claim) -> frozenset[NodeId]:
    """Free nodes, there or on their way, of groups with open orders, less as many as were ordered for this gang.

    Which of a group's nodes are whose is not known: the gang's are those with least free that take its largest piece.
    """
    room, found = draft.soon.room, set[NodeId]()
    largest = max((bundle for bundle, _ in claim.shape.bundles), key=lambda b: b.gpu_units, default=Resources())
    for group, shares in draft.facts.orders.items():
        standing = draft.facts.standings[GroupName(group)]
        free = [node.id for node in (*standing.nodes, *standing.arriving) if room.fits(node.id, largest)]
        free.sort(key=lambda node: (room.gpu_units(node), node))
        found.update(free[shares.get(claim.id, 0) :])
    return frozenset(found)


def _within_quota(draft: Draft, claim: Claim) -> bool:
    return fits_quota(claim, *(books.quota for books in draft.both))


def _where(draft: Draft, nodes: tuple[NodeId, ...]) -> str:
    names = sorted({draft.facts.nodes[node].name or node for node in nodes})
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more nodes" if len(names) > 4 else "")
