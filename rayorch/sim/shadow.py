"""Shadow mode: a candidate profile decides on what really happened, beside the profile in force, and acts on nothing.

At each turn both make their plan from the same snapshot; what differs is noted. The cluster follows the profile in
force, so this shows decisions and not their consequences: for those, replay the trace (`rayorch simulate`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rayorch.core.decisions import Plan, Resize, Start, Stop
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import State, WorkloadId

MOST_NAMED = 20
"""So many of each kind of difference are named in a turn; the counts are of all."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a plan does at once, by workload. `starts`: on which nodes, with how many members on each. `victims`: whom
    it stops. `resizes`: by how many members."""

    starts: Mapping[WorkloadId, tuple[tuple[str, int], ...]]
    victims: frozenset[WorkloadId]
    resizes: Mapping[WorkloadId, int]
    order: tuple[WorkloadId, ...]
    waits: Mapping[WorkloadId, str]

    @staticmethod
    def of(made: Plan) -> Choice:
        """From a plan."""
        starts, victims, resizes = {}, set(), {}
        for decision in made.decisions:
            match decision:
                case Start():
                    on = Counter(str(member.node) for member in decision.members)
                    starts[decision.workload] = tuple(sorted(on.items()))
                case Stop():
                    victims.add(decision.workload)
                case Resize():
                    resizes[decision.workload] = len(decision.add) - len(decision.remove)
                case _:
                    pass
        positions = made.positions
        waits = {}
        for id in made.waits:
            reasons = made.waits[id]
            if reasons:
                waits[id] = next((wait for wait in reasons if wait.blocks), reasons[0]).reason.value
        order = tuple(sorted(positions, key=lambda id: (positions[id], id)))
        return Choice(starts, frozenset(victims), resizes, order, waits)


@dataclass(frozen=True, slots=True)
class Moved:
    """A waiting workload that has another place in the line. Places count from 0."""

    workload: WorkloadId
    from_place: int
    to_place: int


@dataclass(frozen=True, slots=True)
class Difference:
    """One turn. Of each pair the first is what the profile in force does and the candidate does not, the second the
    other way round.

    `sequence`: the last record of the journal that was known. `waiting`: how many waited. `elsewhere`: started by both
    on other nodes. `order`: those whose place changed, the farthest moved first. `reasons`: (workload, reason, the
    candidate's reason) of those that wait under both.
    """

    sequence: int
    at_s: float
    waiting: int
    starts: tuple[tuple[WorkloadId, ...], tuple[WorkloadId, ...]]
    victims: tuple[tuple[WorkloadId, ...], tuple[WorkloadId, ...]]
    elsewhere: tuple[WorkloadId, ...] = ()
    resizes: tuple[WorkloadId, ...] = ()
    order: tuple[Moved, ...] = ()
    reasons: tuple[tuple[WorkloadId, str, str], ...] = ()

    @property
    def decides_otherwise(self) -> bool:
        """Whether anything would have happened otherwise at once; another order or reason alone changes nothing yet."""
        return any((*self.starts, *self.victims, self.elsewhere, self.resizes))


def compare(ours: Choice, theirs: Choice, sequence: int, at_s: float, waiting: int) -> Difference:
    """What the candidate (`theirs`) decides otherwise."""
    both = sorted(ours.starts.keys() & theirs.starts.keys())
    places = {id: place for place, id in enumerate(ours.order)}
    moved = [Moved(id, places[id], place) for place, id in enumerate(theirs.order) if places.get(id, place) != place]
    moved.sort(key=lambda one: (-abs(one.to_place - one.from_place), one.workload))
    reasons = [
        (id, ours.waits[id], theirs.waits[id])
        for id in sorted(ours.waits.keys() & theirs.waits.keys())
        if ours.waits[id] != theirs.waits[id]
    ]
    sizes = sorted(ours.resizes.keys() | theirs.resizes.keys())
    return Difference(
        sequence,
        at_s,
        waiting,
        _only(ours.starts.keys(), theirs.starts.keys()),
        _only(ours.victims, theirs.victims),
        tuple(id for id in both if ours.starts[id] != theirs.starts[id]),
        tuple(id for id in sizes if ours.resizes.get(id, 0) != theirs.resizes.get(id, 0)),
        tuple(moved),
        tuple(reasons),
    )


def _only(
    ours: Iterable[WorkloadId], theirs: Iterable[WorkloadId]
) -> tuple[tuple[WorkloadId, ...], tuple[WorkloadId, ...]]:
    first, second = set(ours), set(theirs)
    return tuple(sorted(first - second)), tuple(sorted(second - first))


@dataclass(slots=True)
class Tally:
    """Sums over all turns.

    `agreed`, `recorded`: of the starts and stops that the journal has, how many the profile in force makes again from
    the snapshot that was put together: how far the comparison can be trusted.
    """

    turns: int = 0
    different: int = 0
    starts: int = 0
    starts_of_candidate: int = 0
    only_in_force: int = 0
    only_candidate: int = 0
    elsewhere: int = 0
    victims_in_force: int = 0
    victims_candidate: int = 0
    reordered: int = 0
    agreed: int = 0
    recorded: int = 0


class Shadow:
    """Two profiles side by side; feed it snapshots in order. Deterministic: the same snapshots give the same report.

    `earlier`: of workloads that the journal started, by how much the candidate wanted them started before that [s].
    """

    def __init__(self, in_force: Profile, candidate: Profile) -> None:
        self.in_force = in_force
        self.candidate = candidate
        self.tally = Tally()
        self.earlier: dict[WorkloadId, float] = {}
        self._memories = (Memory(), Memory())
        self._wanted: dict[WorkloadId, float] = {}
        self._started: set[WorkloadId] = set()

    def see(
        self,
        snapshot: Snapshot,
        sequence: int = 0,
        started: Iterable[WorkloadId] = (),
        stopped: Iterable[WorkloadId] = (),
    ) -> Difference:
        """One turn. `started`, `stopped`: what was really decided then, where that is known."""
        ours = Choice.of(plan(snapshot, self.in_force, self._memories[0]))
        theirs = Choice.of(plan(snapshot, self.candidate, self._memories[1]))
        waiting = sum(workload.state is State.PENDING for workload in snapshot.workloads)
        found = compare(ours, theirs, sequence, snapshot.now_s, waiting)
        self._count(ours, theirs, found)
        real = set(started)
        self.tally.recorded += len(real) + len(set(stopped))
        self.tally.agreed += len(real & ours.starts.keys()) + len(set(stopped) & ours.victims)
        for id in found.starts[1]:
            self._wanted.setdefault(id, snapshot.now_s)
        for id in sorted(real - self._started):
            self._started.add(id)
            wanted_s = self._wanted.get(id)
            if wanted_s is not None and wanted_s < snapshot.now_s:
                self.earlier[id] = snapshot.now_s - wanted_s
        return found

    def _count(self, ours: Choice, theirs: Choice, found: Difference) -> None:
        tally = self.tally
        tally.turns += 1
        tally.different += found.decides_otherwise
        tally.starts += len(ours.starts)
        tally.starts_of_candidate += len(theirs.starts)
        tally.only_in_force += len(found.starts[0])
        tally.only_candidate += len(found.starts[1])
        tally.elsewhere += len(found.elsewhere)
        tally.victims_in_force += len(found.victims[0])
        tally.victims_candidate += len(found.victims[1])
        tally.reordered += bool(found.order)


# ---------------------------------------------------------------- in words


def told(found: Difference, base_s: float = 0.0) -> list[str]:
    """A turn's differences as lines of text; none where there is nothing that would have happened otherwise."""
    lines = []
    pairs = (
        ("started only by the profile in force", found.starts[0]),
        ("started only by the candidate", found.starts[1]),
        ("started on other nodes", found.elsewhere),
        ("stopped only by the profile in force", found.victims[0]),
        ("stopped only by the candidate", found.victims[1]),
        ("resized otherwise", found.resizes),
    )
    for what, ids in pairs:
        if ids:
            more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
            lines.append(f"{what}: {', '.join(ids[:MOST_NAMED])}{more}")
    return [f"{found.at_s - base_s:10.1f} s  record {found.sequence}, {found.waiting} waiting", *lines] if lines else []


def as_json(found: Difference) -> dict[str, object]:
    """A turn as plain data; lists are cut at `MOST_NAMED`."""
    return {
        "sequence": found.sequence,
        "at": found.at_s,
        "waiting": found.waiting,
        "onlyInForce": list(found.starts[0][:MOST_NAMED]),
        "onlyCandidate": list(found.starts[1][:MOST_NAMED]),
        "elsewhere": list(found.elsewhere[:MOST_NAMED]),
        "victimsOnlyInForce": list(found.victims[0][:MOST_NAMED]),
        "victimsOnlyCandidate": list(found.victims[1][:MOST_NAMED]),
        "resizes": list(found.resizes[:MOST_NAMED]),
        "order": [[one.workload, one.from_place, one.to_place] for one in found.order[:MOST_NAMED]],
        "reasons": [list(one) for one in found.reasons[:MOST_NAMED]],
    }
