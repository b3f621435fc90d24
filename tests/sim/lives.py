"""Seeded lives of a small cluster, step by step: one seed decides everything.

An event is one step: one actor does what is due for it (who is next is drawn, too, so that every order of steps comes
up), or something happens outside (a submission, a cancellation, a node that dies or returns, an owner that is killed,
a drain, other settings of a queue, use outside grants), and a little time passes. At any call between two actors the
message may be lost, late, doubled, or repeated long after; an owner may die before or after it, or while it writes to
the journal, of which then a part has reached the disk. All invariants are checked after every event. Afterwards the
faults stop and everything must come to its end, with nothing left.

Of five lives two are *rich*: now and then something in it is an array, depends on another, is a joint gang, has
segments or groups inside, asks for a MIG instance, or runs in a reservation.

Of eleven, two move what runs so that less is stranded, as often as can be.

    python -m tests.sim.lives FIRST COUNT        lives these seeds and prints one JSON object for each that fails
"""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace

from rayorch.core.errors import ClusterError, RayorchError
from rayorch.core.joint import lacking
from rayorch.core.placement import TaskClass
from rayorch.core.policy import PlacementKnobs, Profile
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import UNIT, Kind, QueueId, QueueMode, State, Workload, WorkloadId, WorkloadSpec
from rayorch.policies.default import DEFAULT
from rayorch.policies.moves import greedy_gradient, sampled_search
from rayorch.policies.place import spread
from rayorch.sim.checked import CheckedCluster, InvariantBroken
from rayorch.sim.checkers import Violation
from rayorch.sim.faults import OWNERS, Actor, SeededFaults
from rayorch.sim.journal import SimJournal
from rayorch.sim.work import SimWork
from tests.build import gpus, node, queue
from tests.scenes import LIVELY
from tests.sim.journals import FileJournal, RecordJournal
from tests.sim.life_specs import cut, enriched, random_spec

EVENTS = 400
FILE_EVERY = 8
"""Of so many seeds one has the real journal's file under it, the others its format in memory."""

PROFILE = replace(DEFAULT, name="lives", lease_s=6.0, start_deadline_s=10.0, retry_backoff_s=2.0, block_node_s=8.0)
"""Bounds are short, so that much of them is seen in one life."""

CLASSES = (
    TaskClass(0, UNIT, 4, frozenset(), 1),
    TaskClass(0, UNIT, 2, frozenset(), 2),
    TaskClass(0, UNIT, 1, frozenset(), 3),
)
MOVING = replace(PROFILE, name="moving", score=spread.score, defragment=LIVELY, placement=PlacementKnobs(CLASSES))
BY_SEED = {
    5: replace(MOVING, moves=greedy_gradient.moves),
    8: replace(MOVING, moves=sampled_search.moves),
}
"""The profile of lives whose seed leaves that when divided by 11; all others have PROFILE."""

MOST_ALIVE = 7
TURNS = (Actor.CONTROLLER,) * 5 + (Actor.RUNNER,) * 4 + (Actor.ALLOCATOR,) * 3 + (Actor.INVENTORY,) * 2
"""Who is next, of so many drawn."""
SLOWEST_S = 5.0
"""Nobody is later with what is due for him."""


class Life:
    """One seed's cluster, and what its users have been promised."""

    def __init__(
        self,
        seed: int,
        events: int = EVENTS,
        journal: SimJournal | None = None,
        rich: bool | None = None,
        profile: Profile | None = None,
    ) -> None:
        self.seed = seed
        self.rich = seed % 5 < 2 if rich is None else rich
        self.more = random.Random(seed + 2)  # so that what makes a life rich changes nothing of the rest
        self.rng = rng = random.Random(seed)
        self.events = events
        self.accepted: set[WorkloadId] = set()
        self.asking: list[tuple[WorkloadSpec, SimWork]] = []
        self.count = 0
        self.acted = dict.fromkeys(set(TURNS), 1000.0)
        share = rng.choice((0.0, 0.01, 0.03, 0.1))
        nodes = tuple(
            replace(node(f"n{i}", gpu=rng.choice((2, 3, 4)), rack=f"r{i % 2}", model=model), exact=rng.random() < 0.3)
            for i, model in enumerate(rng.sample(("H100", "H100", "A100", ""), rng.randrange(2, 5)))
        )
        self.instances = self.rich and self.more.random() < 0.5
        if self.instances:
            nodes = (*nodes, cut("mig", "r0"))
        queues = (queue("all"), queue("all/a", rng.choice((2, 4)), rng.choice((None, 4))), queue("all/b", 4, 8))
        self.faults = SeededFaults(random.Random(seed + 1), share, until_s=float("inf"))
        self.sim = CheckedCluster(
            nodes,
            queues,
            faults=self.faults,
            profile=profile or BY_SEED.get(seed % 11, PROFILE),
            at_calls=False,
            tick_s=1.0,
            journal=journal if journal is not None else RecordJournal(),
            replayed_every=100,
            collected_s=40.0,
        )

    def run(self) -> CheckedCluster:
        """All events, then the end."""
        for _ in range(self.events):
            self.event()
        self.settle()
        return self.sim

    def event(self) -> None:
        """One step, and everything that can be judged after it."""
        rng, sim = self.rng, self.sim
        if rng.random() < 0.25:
            self._happens()
        else:
            sim.pass_time(rng.choice((0.05, 0.2, 0.5, 1.0, 2.0)))
            self._act(rng.choice(TURNS))
        sim.check_step()
        self.check_promises()

    def _act(self, drawn: Actor) -> None:
        """The drawn actor's step, or that of one who has had none for too long: each is slow within a bound."""
        now_s = self.sim.now_s
        longest = min(sorted(self.acted), key=lambda actor: self.acted[actor])
        actor = longest if now_s - self.acted[longest] > SLOWEST_S else drawn
        self.acted[actor] = now_s
        self.sim.act(actor)

    def settle(self) -> None:
        """Nothing goes wrong any more: everything ends and nothing is left.

        What can't end by itself is cancelled: what serves, and what waits for partners or for room that never come.
        """
        sim = self.sim
        sim.faults = SeededFaults(random.Random(0), 0.0, 0.0)
        while sim.messages_under_way:  # what was asked for long ago may still come
            sim.tick()
        for name in sorted(sim.world.away):
            sim.world.return_node(name)
        sim.world.foreign.clear()
        for cordoned in sorted(sim.tree.cordons):
            sim.record(sim.tree.uncordon(cordoned, "done", sim.now_s))
        for spec in list(sim.tree.queues.values()):
            if spec.mode is not QueueMode.OPEN:
                sim.record(sim.tree.set_queue(replace(spec, mode=QueueMode.OPEN), sim.now_s))
        for held in sim.tree.reservations:
            sim.record(sim.tree.delete_reservation(held.id, sim.now_s))
        for live in sorted(sim.tree.workloads.values(), key=lambda w: w.id):
            endless = live.spec.kind in (Kind.SERVE, Kind.GANG) or bool(live.spec.reservation)
            if not live.state.terminal and (endless or self._never_starts(live)):
                sim.cancel(live.id)
        sim.run_to_quiet(900.0)
        self.check_promises()

    def _never_starts(self, live: Workload) -> bool:
        if live.state is not State.PENDING:
            return False
        partners = [w for w in self.sim.tree.workloads.values() if w.spec.joint is not None]
        ours = [w for w in partners if w.spec.joint == live.spec.joint and not w.state.terminal]
        return lacking(live, ours) > 0

    def check_promises(self) -> None:
        """4: what a user was told is accepted is known."""
        if not self.accepted <= self.sim.tree.workloads.keys():
            lost = sorted(self.accepted - self.sim.tree.workloads.keys())
            self.sim.complain(tuple(Violation(4, id, "its user was told that it is accepted") for id in lost))

    # ------------------------------------------------------------ what happens outside

    def _happens(self) -> None:
        rng, sim = self.rng, self.sim
        alive = [w.id for w in sim.tree.workloads.values() if not w.state.terminal]
        up = sorted(sim.world.nodes)
        roll = rng.random()
        if roll < 0.42:
            self._submit(alive)
        elif roll < 0.50 and alive:
            self._ask("cancel", lambda id: sim.tree.cancel(id, "cancelled by its owner", sim.now_s), rng.choice(alive))
        elif roll < 0.57 and len(up) > 1:
            sim.world.lose_node(rng.choice(up))
        elif roll < 0.66 and sim.world.away:
            sim.world.return_node(rng.choice(sorted(sim.world.away)))
        elif roll < 0.71 and sim.attempts.runners:
            key = rng.choice(sorted(sim.attempts.runners))
            if rng.random() < 0.6:
                sim.attempts.lose_runner(key)
            else:
                sim.attempts.runners[key].cut = True
        elif roll < 0.78:
            sim.kill(rng.choice(OWNERS))
        elif roll < 0.79:
            sim.restart_head()
        elif roll < 0.85 and up:
            by_s = sim.now_s + 30 if rng.random() < 0.5 else None
            self._ask("cordon", lambda where: sim.tree.cordon(where, "maintenance", by_s, sim.now_s), rng.choice(up))
        elif roll < 0.91:
            for cordoned in sorted(sim.tree.cordons):
                self._ask("uncordon", lambda where: sim.tree.uncordon(where, "done", sim.now_s), cordoned)
        elif roll < 0.95:
            self._change_queue()
        elif up:
            where = rng.choice(up)
            sim.world.foreign.pop(where, None)
            held = {m.node for allocation in sim.books.allocations.values() for m in allocation.members}
            if rng.random() < 0.5 and where not in held and not sim.world.holders(where):
                sim.world.foreign[where] = gpus(1)  # Ray lets others in where there is room only

    def _submit(self, alive: list[WorkloadId]) -> None:
        """A user submits, and asks again later when no answer came: the same id and spec, so that nothing is twice."""
        if not self.asking and len(alive) < MOST_ALIVE:
            self.count += 1
            spec, work = random_spec(self.rng, f"w{self.count}", self.sim)
            specs = enriched(self.more, spec, sorted(self.accepted), self.instances) if self.rich else (spec,)
            self.asking += [(one, work) for one in specs]
            if any(one.reservation for one in specs):
                self._reserve()
        for spec, work in list(self.asking):
            self.sim.works[spec.id] = work
            self.sim.attempts.works = self.sim.works
            answered, accepted = self._ask("submit", lambda spec: self.sim.tree.submit(spec, self.sim.now_s), spec)
            if answered:
                self.asking.remove((spec, work))
            if accepted:
                self.accepted.add(spec.id)

    def _reserve(self) -> None:
        """Some room is to be held from soon on for a while, for whoever names it."""
        from_s = self.sim.now_s + self.more.choice((1.0, 10.0))
        to_s = from_s + self.more.choice((20.0, 60.0))
        standing = self.more.random() < 0.3
        held = ReservationSpec("room", QueueId("all"), gpus(2), 1, from_s, None if standing else to_s, standing)
        self._ask("reserve", lambda spec: self.sim.tree.set_reservation(spec, self.sim.now_s), held)

    def _change_queue(self) -> None:
        sim, rng = self.sim, self.rng
        spec = sim.tree.queues[rng.choice(sorted(sim.tree.queues))]
        if spec.parent is None:
            return
        mode = rng.choice((QueueMode.OPEN, QueueMode.OPEN, QueueMode.HOLD, QueueMode.DRAIN))
        deserved = queue("x", rng.choice((2, 4, 6))).deserved
        changed = replace(spec, mode=mode, deserved=deserved, weight=rng.choice((1, 2)))
        self._ask("set_queue", lambda spec: sim.tree.set_queue(spec, sim.now_s), changed)

    def _ask(self, label: str, command: Callable, subject: object) -> tuple[bool, bool]:  # type: ignore[type-arg]
        """A user's request to the queue owner. Whether an answer came, and whether it was yes."""
        sim = self.sim
        try:
            sim.call(Actor.CLIENT, Actor.QUEUES, label, lambda: sim.record(command(subject)))
        except ClusterError:
            return False, False
        except RayorchError:
            return True, False
        return True, True


def live(seed: int, events: int = EVENTS, rich: bool | None = None) -> CheckedCluster:
    """A whole life; InvariantBroken (or whatever a defect raises) when it goes wrong."""
    if seed % FILE_EVERY:
        return Life(seed, events, rich=rich).run()
    with FileJournal.in_memory() as journal:
        return Life(seed, events, journal, rich).run()


def failures(first: int, count: int, events: int = EVENTS) -> list[dict[str, object]]:
    """The seeds that fail, with the beginning of their stories."""
    found: list[dict[str, object]] = []
    for seed in range(first, first + count):
        gc.disable()  # most of what is made in a life lives as long as the life
        try:
            live(seed, events)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told with its seed
            what = str(error) if isinstance(error, InvariantBroken) else f"{type(error).__name__}: {error}"
            found.append({"seed": seed, "events": events, "what": what[:4000]})
        finally:
            gc.enable()
            if seed % 8 == 7:
                gc.collect()
    return found


def main() -> None:
    """See the module's docstring."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for found in failures(first, count):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
