"""What if these workloads made room: a trial in which they leave, and all concerned are placed anew in their order.

A scenario takes victims one after the other, surplus seats first, until the claim and whoever goes before it have a
place. Whoever can stay where it was stays; whoever fits elsewhere is moved; only the rest is evicted. So nobody is
evicted for work that would go after it, and none of the victims tried in vain. After KAI's solver: "evict, then
allocate the preemptor and its victims in the order of the queues".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rayorch.core.planning.asking import next_claims, rank_of_size, surplus_to_give
from rayorch.core.planning.charges import charge_quota, fits_quota
from rayorch.core.planning.claims import Claim, next_start
from rayorch.core.planning.draft import Books, Draft
from rayorch.core.planning.entitlement import Entitlements
from rayorch.core.planning.line import Entry, Line
from rayorch.core.planning.rights import settling
from rayorch.core.planning.seats import find
from rayorch.core.policy import SortKey
from rayorch.core.sharing import device_need
from rayorch.core.types import UNIT, Member, NodeId, QueueId, Resources, Workload, WorkloadId, charge_of

MayGive = Callable[[Workload], bool]
"""Whether a running workload may be a victim at all."""


@dataclass(slots=True)
class Victim:
    """A running workload in a scenario: what it still holds, and what it has been asked to give, in that order."""

    workload: Workload
    kept: tuple[Member, ...]
    given: list[tuple[Member, ...]] = field(default_factory=list)

    @property
    def all_given(self) -> tuple[Member, ...]:
        """Everything that it was asked to give."""
        return tuple(member for chunk in self.given for member in chunk)

    def give_next(self) -> tuple[Member, ...]:
        """Its next surplus seats, or all that is left of it."""
        chunk = surplus_to_give(self.workload.spec, self.kept) or self.kept
        self.kept = tuple(m for m in self.kept if m not in chunk)
        self.given.append(chunk)
        return chunk

    def alone(self) -> Victim:
        """The same workload, asked to give all, and nobody else."""
        return Victim(self.workload, (), [*self.given, *([self.kept] if self.kept else [])])


@dataclass(frozen=True, slots=True)
class Seated:
    """A claim and where it goes. `devices`: of each seat."""

    claim: Claim
    nodes: tuple[NodeId, ...]
    devices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A scenario that works: whoever gets other seats in the order in which they are taken (the claim among them), and
    what each victim gives up; what of that is `lost` to it, not only moved."""

    seated: tuple[Seated, ...]
    gone: Mapping[WorkloadId, tuple[Member, ...]]
    lost: Mapping[WorkloadId, tuple[Member, ...]]
    victims: Mapping[WorkloadId, Victim]

    def pieces(self) -> dict[QueueId, list[Resources]]:
        """What is taken, by queue: surplus seats one by one, a gang in one piece. What is moved is not taken."""
        found: dict[QueueId, list[Resources]] = {}
        for id, lost in self.lost.items():
            victim = self.victims[id]
            for chunk in victim.given:
                part = [m for m in chunk if m in lost]
                if part:
                    found.setdefault(victim.workload.spec.queue, []).append(charge_of(part))
        return found


def job_key(draft: Draft, workload: Workload, members: tuple[Member, ...]) -> SortKey:
    """A workload's place in its queue: priority, then who is below its minimum, then the profile's order."""
    own = draft.facts.profile.order(workload, draft.view)
    return (-workload.spec.priority, rank_of_size(workload.spec, members), *own, workload.id)


@dataclass(slots=True)
class Search:
    """The search for victims for one claim. `accepts`: whether a scenario that works may be carried out."""

    draft: Draft
    shares: Entitlements
    claim: Claim
    accepts: Callable[[Outcome], bool]

    def run(self, may_give: MayGive, most: int = -1, singly: bool = False) -> Outcome | None:
        """The first scenario that works and is accepted.

        `most`: how many workloads are looked at, -1: all. `singly`: each is also tried alone.
        """
        line = Line(self.shares, self.draft.soon.quota, victims=True)
        running: dict[WorkloadId, Workload] = {}
        for workload, _ in self.draft.facts.live():
            if 0 <= most <= len(running):
                break
            kept = self.draft.staying(workload.id)
            if kept and workload.id != self.claim.id and may_give(workload) and self._push(line, workload, kept):
                running[workload.id] = workload
        victims: dict[WorkloadId, Victim] = {}
        lacking = self.claim.shape.gpu_units - self.draft.soon.room.free_gpu_units
        while (entry := line.pop()) is not None:
            victim = victims.get(entry.id)
            if victim is None:
                victim = victims[entry.id] = Victim(running[entry.id], self.draft.staying(entry.id))
            lacking -= sum(m.bundle.gpu_units for m in victim.give_next())
            if victim.kept:
                self._push(line, victim.workload, victim.kept)
            if lacking > 0:
                continue
            sets: list[Mapping[WorkloadId, Victim]] = [victims]
            if singly and len(victims) > 1 and not victim.kept:
                sets.append({entry.id: victim.alone()})
            found = self._first(sets)
            if found is not None or self.draft.budget <= 0:
                return found
        return None

    def _first(self, sets: list[Mapping[WorkloadId, Victim]]) -> Outcome | None:
        """The first of these sets that works, with as many as can be left where they were."""
        for victims in sets:
            for packed in (False, True):
                if self.draft.budget <= 0:
                    return None
                self.draft.budget -= 1
                found = self._try(victims, packed)
                if found is not None and self.accepts(found) and self._holds(found):
                    return found
        return None

    def _push(self, line: Line, workload: Workload, kept: tuple[Member, ...]) -> bool:
        gives = surplus_to_give(workload.spec, kept)
        if not gives and settling(self.draft, workload):
            return False
        gives = gives or kept
        key = job_key(self.draft, workload, kept)
        return line.push(Entry(workload.id, workload.spec.queue, charge_of(gives), key))

    # ------------------------------------------------------------ one trial

    def _try(self, victims: Mapping[WorkloadId, Victim], packed: bool) -> Outcome | None:
        """All victims leave; then the claim and they are placed in order.

        Each stays where it was if it still fits there; `packed`: only if that is the best place for it now.
        """
        books = self.draft.soon.copy()
        for victim in victims.values():
            books.give(victim.workload, victim.all_given, not victim.kept)
        claim = self.claim
        line = Line(self.shares, books.quota)
        members = self.draft.standing(claim.id)
        line.push(Entry(claim.id, claim.queue, claim.resources, job_key(self.draft, claim.workload, members)))
        for victim in victims.values():
            spec, amount = victim.workload.spec, charge_of(victim.all_given)
            line.push(Entry(spec.id, spec.queue, amount, job_key(self.draft, victim.workload, victim.kept)))
        trial = _Trial(self, books, packed)
        while (entry := line.pop()) is not None:
            if entry.id != claim.id:
                trial.place_again(victims[entry.id])
            elif not trial.seat(claim):
                return None
            line.refresh()
        return Outcome(tuple(trial.seated), trial.gone, trial.lost, dict(victims))

    def _holds(self, found: Outcome) -> bool:
        """Whether the seats can be taken in this order while whoever stays never leaves."""
        books = self.draft.soon.copy()
        for id, members in found.gone.items():
            books.give(found.victims[id].workload, members, False)
        for seated in found.seated:
            for ask, node in zip(seated.claim.asks, seated.nodes, strict=True):
                if not books.room.fits(node, ask.bundle):
                    return False
                books.room.take(node, ask.bundle)
        return True


@dataclass(slots=True)
class _Trial:
    """Books in which the victims have left, and what has been placed in them since."""

    search: Search
    books: Books
    packed: bool
    seated: list[Seated] = field(default_factory=list)
    gone: dict[WorkloadId, tuple[Member, ...]] = field(default_factory=dict)
    lost: dict[WorkloadId, tuple[Member, ...]] = field(default_factory=dict)

    def seat(self, claim: Claim) -> bool:
        """Charge the claim where it fits."""
        found = self._find(claim)
        if found is not None:
            self.seated.append(found)
        return found is not None

    def place_again(self, victim: Victim) -> None:
        """The victim stays, gets seats elsewhere, or loses what it gave: its gang first, then what it had beyond."""
        workload = victim.workload
        kept, gone, lost = victim.kept, list[Member](), list[Member]()
        for chunk in reversed(victim.given):
            whole_gone = not kept and bool(gone)
            if not whole_gone and not self.packed and self._stays(workload, chunk, not kept):
                kept += chunk
                continue
            before = self.books.copy()
            again = None if whole_gone else next((f for c in self._anew(workload, kept) if (f := self._find(c))), None)
            if again is None:
                gone += chunk
                lost += chunk
                continue
            if self.packed and _same(again, chunk):
                after, self.books = self.books, before
                if self._stays(workload, chunk, not kept):
                    kept += chunk
                    continue
                self.books = after
            self.seated.append(again)
            gone += chunk
            kept += tuple(a.on(node, ()) for a, node in zip(again.claim.asks, again.nodes, strict=True))
        if gone:
            self.gone[workload.id] = tuple(gone)
        if lost:
            self.lost[workload.id] = tuple(lost)

    def _anew(self, workload: Workload, kept: tuple[Member, ...]) -> list[Claim]:
        """What a victim that holds so much asks for."""
        if not kept:
            return list(next_start(workload).ways)
        return next_claims(workload, kept, self.search.draft.facts.topology.models)

    def _find(self, claim: Claim) -> Seated | None:
        """Seats for the claim, which are charged; None: quota or room forbids it."""
        quota, room = self.books.quota, self.books.room
        if not fits_quota(claim, quota) or not self.search.shares.stays_firm(quota, claim):
            return None
        nodes = find(claim.shape, self.search.draft.search(room))
        if nodes is None:
            return None
        devices = tuple(room.take(node, ask.bundle) for ask, node in zip(claim.asks, nodes, strict=True))
        charge_quota(claim, claim.resources, quota)
        return Seated(claim, nodes, devices)

    def _stays(self, workload: Workload, members: tuple[Member, ...], all_of_it: bool) -> bool:
        """Charge the members where they were, if all of them still fit there: shares on the same devices."""
        spec, amount = workload.spec, charge_of(members)
        if not self.books.quota.fits(spec.queue, amount, spec.owner, int(all_of_it)):
            return False
        room = self.books.room.copy()
        for member in members:
            if not _is_whole(member.bundle):
                if not room.retake(member.node, member.bundle, member.devices):
                    return False
            elif not room.fits(member.node, member.bundle):
                return False
            else:
                room.take(member.node, member.bundle)
        self.books.room = room
        self.books.quota.charge(spec.queue, amount, spec.owner, int(all_of_it))
        return True


def _is_whole(bundle: Resources) -> bool:
    """Whether the bundle is of whole GPUs: of these it does not matter which are taken."""
    return bundle.gpu_units % UNIT == 0 and device_need(bundle).plain


def _same(seated: Seated, members: tuple[Member, ...]) -> bool:
    """Whether the seats are where the members were; shares on the same devices."""
    new = sorted(
        (ask.role, node, () if _is_whole(ask.bundle) else devices)
        for ask, node, devices in zip(seated.claim.asks, seated.nodes, seated.devices, strict=True)
    )
    return new == sorted((m.role, m.node, () if _is_whole(m.bundle) else m.devices) for m in members)
