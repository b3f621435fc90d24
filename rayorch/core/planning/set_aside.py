"""Room for reservations, before anything else is placed.

An active one: as many of its bundles as fit are charged to all books, so that nobody takes them; for what is lacking it
holds nodes as the head of a queue does. One that begins within `ReservationKnobs.lead_s` holds the nodes that it should
find free then: until that time they stand open to whoever has left before (`backfill.py`). A reservation evicts nobody.

Who names a reservation is placed in what is set aside for it and nowhere else; of it go as many bundles as it takes.
A workload that has lost a node may also use the standing reservations (hot spares) of its queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim, Shape
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.gates import wait
from rayorch.core.planning.seats import find
from rayorch.core.planning.timeline import Opening, Timeline, freed, opening
from rayorch.core.planning.together import starts_of
from rayorch.core.reservations import ReservationView, Window, bundles_in, not_for, window_of
from rayorch.core.room import Room
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import GPU, UNIT, NodeId, Resources, Workload, WorkloadId, total


@dataclass(frozen=True, slots=True)
class Seat:
    """A bundle, or what is left of one, and the devices that it is charged to in the books of now and of soon."""

    node: NodeId
    amount: Resources
    now: tuple[int, ...]
    soon: tuple[int, ...]


@dataclass(slots=True)
class Aside:
    """What is set aside for one reservation: whole bundles, and the rests of bundles that its work uses in part."""

    spec: ReservationSpec
    seats: list[Seat] = field(default_factory=list)

    @property
    def whole(self) -> int:
        """Bundles of which nothing is used."""
        return sum(seat.amount == self.spec.bundle for seat in self.seats)


def set_aside(draft: Draft) -> None:
    """Give every reservation its room."""
    facts = draft.facts
    if not facts.snapshot.reservations:
        return
    held: dict[str, dict[NodeId, list[Resources]]] = {}
    for workload, allocation in facts.live():
        if workload.spec.reservation:
            nodes = held.setdefault(workload.spec.reservation, {})
            for member in allocation.members:
                nodes.setdefault(member.node, []).append(member.bundle)
    for spec in sorted(facts.snapshot.reservations, key=lambda r: (r.start_s, r.id)):
        window = window_of(spec, facts.now_s)
        view = ReservationView(spec, window)
        if window is not None and window.active(facts.now_s):
            view = _active(draft, spec, window, held.get(spec.id, {}))
        elif window is not None and window.start_s - facts.now_s <= facts.profile.reservations.lead_s:
            view = ReservationView(spec, window, missing=_hold_from(draft, spec, window.start_s))
        draft.reservations[spec.id] = view


def _active(
    draft: Draft, spec: ReservationSpec, window: Window, held: Mapping[NodeId, list[Resources]]
) -> ReservationView:
    """Set aside what its own work does not use, node by node the rest of a bundle of which it uses a part."""
    used = {node: bundles_in(amounts, spec.bundle) for node, amounts in held.items()}
    in_use = sum(used.values())
    wanted = spec.count if spec.standing else max(0, spec.count - in_use)
    aside = draft.asides[spec.id] = _take(draft, spec, wanted)
    for node, amounts in sorted(held.items() if not spec.standing else ()):
        rest = (spec.bundle.times(used[node]) - total(amounts)).floor_zero()
        if rest and (seat := _charge(draft, node, rest)) is not None:
            aside.seats.append(seat)
    missing = wanted - aside.whole
    if missing:
        _hold_later(draft, spec, missing)
    return ReservationView(spec, window, in_use, aside.whole, missing)


def _shape(spec: ReservationSpec, count: int) -> Shape:
    models = spec.accelerators if spec.bundle.gpu_units else ()
    return Shape(((spec.bundle, count),), spec.topology, False, accelerators=models)


def _take(draft: Draft, spec: ReservationSpec, wanted: int) -> Aside:
    """Charge as many bundles as fit, at most `wanted`."""
    aside = Aside(spec)
    low, high = 0, wanted
    best: tuple[NodeId, ...] = ()
    while low < high:  # fewer fit wherever more do
        middle = (low + high + 1) // 2
        nodes = find(_shape(spec, middle), draft.open_search())
        if nodes is None:
            high = middle - 1
        else:
            low, best = middle, nodes
    aside.seats = [seat for node in best if (seat := _charge(draft, node, spec.bundle)) is not None]
    return aside


def _charge(draft: Draft, node: NodeId, amount: Resources) -> Seat | None:
    """Charge an amount to all books, those of the turn's beginning included; None where it does not fit."""
    if not all(books.room.fits(node, amount) for books in draft.both):
        return None
    now = draft.now.room.take(node, amount)
    soon = draft.soon.room.take(node, amount) if draft.soon is not draft.now else now
    if draft.first.room.fits(node, amount):
        draft.first.room.take(node, amount)
    draft.touched.append(node)
    return Seat(node, amount, now, soon)


def _holder(spec: ReservationSpec) -> WorkloadId:
    return WorkloadId(f"reservation {spec.id}")


def _hold_later(draft: Draft, spec: ReservationSpec, missing: int) -> None:
    """Hold nodes for the bundles that find no room yet: those that come free first, or else those in use least."""
    shape = _shape(spec, missing)
    later = opening(draft, shape, _timeline(draft))
    if later is None:
        nodes = find(shape, draft.idle_search())
        later = Opening(0.0, nodes) if nodes is not None else None
    if later is not None:
        draft.close_for(_holder(spec), later.nodes, later.at_s or None)


def _hold_from(draft: Draft, spec: ReservationSpec, start_s: float) -> int:
    """Hold the nodes that should be free at its start, or by what is known soon after; how many bundles lack there."""
    timeline = _timeline(draft)
    leaving = [release for release in timeline.releases(draft) if release[0] <= start_s]
    room = freed(draft.soon.room, leaving)
    low, high = 0, spec.count
    best: tuple[NodeId, ...] = ()
    while low < high:
        middle = (low + high + 1) // 2
        nodes = find(_shape(spec, middle), replace(draft.search(room), view=None))
        if nodes is None:
            high = middle - 1
        else:
            low, best = middle, nodes
    draft.close_for(_holder(spec), best, start_s)
    return spec.count - len(best)


def _timeline(draft: Draft) -> Timeline:
    if draft.timeline is None:
        draft.timeline = Timeline(draft)
    return draft.timeline


# ---------------------------------------------------------------- who runs in one


def start_inside(draft: Draft, claim: Claim, id: str) -> bool:
    """Start a claim in what is set aside for the reservation."""
    aside = draft.asides.get(id)
    if aside is None or not aside.seats or not all(fits_quota(claim, books.quota) for books in draft.both):
        return False
    ours = {seat.node for seat in aside.seats}
    elsewhere = frozenset(node for node in draft.facts.topology.nodes if node not in ours)
    rooms = tuple(_opened(draft, books.room, (aside,)) for books in draft.both)
    nodes = find(claim.shape.loose, replace(draft.search(*rooms), closed=elsewhere, view=None))
    if nodes is None:
        return False
    freed_seats = [seat for seat in aside.seats if seat.node in nodes]
    for seat in freed_seats:
        _give(draft, aside, seat)
    members = draft.charge(claim, nodes, *draft.both)
    left: dict[NodeId, Resources] = {}
    for member in members:
        left[member.node] = left.get(member.node, Resources()) + member.bundle
    for seat in sorted(freed_seats, key=lambda s: s.amount == aside.spec.bundle):  # rests of bundles go first
        rest = (seat.amount - left[seat.node]).floor_zero()
        left[seat.node] = (left[seat.node] - seat.amount).floor_zero()
        again = _charge(draft, seat.node, rest) if rest else None
        if again is not None:
            aside.seats.append(again)
    for start in starts_of(claim, members, f"{len(members)} seats of reservation {id}"):
        draft.starts[start.workload] = start
    return True


def opened(draft: Draft, room: Room) -> Room:
    """A copy in which all that is set aside is free."""
    return _opened(draft, room, draft.asides.values())


def _opened(draft: Draft, room: Room, asides: Iterable[Aside]) -> Room:
    twin = room.copy()
    soon = room is draft.soon.room and draft.soon is not draft.now
    for aside in asides:
        for seat in aside.seats:
            twin.give(seat.node, seat.amount, seat.soon if soon else seat.now)
    return twin


def _give(draft: Draft, aside: Aside, seat: Seat) -> None:
    """It is set aside no longer."""
    draft.now.room.give(seat.node, seat.amount, seat.now)
    if draft.soon is not draft.now:
        draft.soon.room.give(seat.node, seat.amount, seat.soon)
    aside.seats.remove(seat)
    draft.touched.append(seat.node)


def spares_for(draft: Draft, workload: Workload) -> Iterable[str]:
    """The standing reservations whose bundles a workload may use although it names none: it has lost a node."""
    if not workload.node_losses or not draft.asides:
        return ()
    return tuple(
        id
        for id, aside in draft.asides.items()
        if aside.spec.standing and not not_for(workload.spec.queue, workload.spec.owner, aside.spec)
    )


def reservation_gate(workload: Workload, draft: Draft) -> tuple[tuple[Wait, ...], float | None]:
    """Why work that names a reservation can't be looked at yet, and when it can."""
    id, now_s = workload.spec.reservation, draft.facts.now_s
    view = draft.reservations.get(id)
    if view is None or view.window is None:
        what = "is over" if view is not None else "does not exist any more"
        return (wait(WaitReason.RESERVATION, f"reservation {id} {what}", 0, ""),), None
    if view.window.active(now_s):
        return (), None
    start_s = view.window.start_s
    detail = f"reservation {id} begins in {start_s - now_s:.0f} s"
    return (wait(WaitReason.RESERVATION, detail, start_s - now_s, "s"),), start_s


def reservation_full(draft: Draft, claim: Claim) -> Wait:
    """Why work does not start in a reservation that has begun."""
    id = claim.workload.spec.reservation
    view = draft.reservations[id]
    left = draft.asides[id].whole if id in draft.asides else 0
    detail = f"{left} of the {view.spec.count} bundles of reservation {id} are free for it"
    if view.missing:
        detail += f", {view.missing} have not come free yet"
    return wait(WaitReason.RESERVATION, detail, claim.shape.gpu_units / UNIT, GPU)
