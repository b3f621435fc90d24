"""A simulated cluster whose invariants are checked at every step: the first violation ends the run."""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.adoption import parse_group_name
from rayorch.core.codec import decode, encode
from rayorch.core.decisions import Plan, Start, Stop
from rayorch.core.events import Reported
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import Profile
from rayorch.core.queues import QueueTree
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import Kind, NodeSpec, QueueSpec, State, WorkloadId
from rayorch.policies.default import DEFAULT
from rayorch.sim.autoscaler import SimAutoscaler
from rayorch.sim.checkers import Violation, check_live, check_plan, check_quota_charge, check_replay
from rayorch.sim.cluster import SimCluster
from rayorch.sim.faults import Actor, Faults
from rayorch.sim.groups import SimProvider
from rayorch.sim.history import HistoryWatch
from rayorch.sim.journal import SimJournal
from rayorch.sim.scale_checkers import check_groups_at_rest, check_patches, check_scale
from rayorch.sim.work import SimWork


class InvariantBroken(AssertionError):
    """What must always hold does not; the message is the story of what happened."""


LOOKED_AT_LEAST_EVERY_S = 5
"""What has not changed is looked at again after so long: bounds in time may have passed."""

REPLAYED_EVERY = 20
"""Every so many turns the plan is made again from the stored snapshot; at each it would take most of the time."""


class CheckedCluster(SimCluster):
    """All of `sim/checkers.py` after every tick, the cheap ones also at every call between two actors.

    `replayed_every`: of so many plans one is made again from its stored snapshot. `collected_s`: how long a group may
    be there that Serve made while its application was being ended; None: a tick.
    """

    def __init__(
        self,
        nodes: tuple[NodeSpec, ...],
        queues: tuple[QueueSpec, ...],
        works: Mapping[WorkloadId, SimWork] | None = None,
        faults: Faults | None = None,
        profile: Profile = DEFAULT,
        at_calls: bool = True,
        tick_s: float = 0.5,
        provider: SimProvider | None = None,
        autoscaler: SimAutoscaler | None = None,
        journal: SimJournal | None = None,
        replayed_every: int = REPLAYED_EVERY,
        collected_s: float | None = None,
    ) -> None:
        self._collected_s = tick_s if collected_s is None else collected_s
        self._memory = Memory()
        self._past = HistoryWatch()
        self._past_events = 0
        self._past_tree: QueueTree | None = None
        self._replayed_every = replayed_every
        self._first_seen: dict[str, float] = {}
        self._judged = 0
        self._last_looked: tuple[object, ...] = ()
        self._written: dict[WorkloadId, int] = {}
        self._writes = 0
        super().__init__(
            nodes,
            queues,
            profile,
            self._plan,
            works,
            faults,
            tick_s=tick_s,
            provider=provider,
            autoscaler=autoscaler,
            journal=journal,
        )
        self.checks = self.check_now if at_calls else lambda: None

    def _plan(self, seen: Snapshot, profile: Profile) -> Plan:
        """As the live controller does it: with the memory of its last turn, which dies with it."""
        return plan(seen, profile, self._memory)

    def kill(self, actor: Actor) -> None:
        """SimCluster."""
        if actor is Actor.CONTROLLER:
            self._memory = Memory()
        super().kill(actor)

    def truth(self) -> Snapshot:
        """What the owners hold, not what the controller knows."""
        tree, inventory, books = self.tree, self.inventory, self.books
        return Snapshot(
            versions=self.controller.copies.versions,
            now_s=self.now_s,
            queues=tuple(tree.queues[id] for id in sorted(tree.queues)),
            workloads=tuple(
                tree.workloads[id] for id in sorted(tree.workloads) if not tree.workloads[id].state.terminal
            ),
            nodes=tuple(inventory.nodes[id] for id in sorted(inventory.nodes)),
            allocations=tuple(books.allocations[key] for key in sorted(books.allocations)),
            synced=self.synced,
        )

    def check_now(self) -> None:
        """What must hold at every call. Facts that have been looked at and are the same are not looked at again."""
        facts = self._facts()
        if facts != self._last_looked:
            found = check_live(self.truth(), self.world.listing(), self.instance)
            self.complain(tuple(v for v in found if not self._being_collected(v)))
            self._last_looked = () if found else facts
        self._check_work()

    def _facts(self) -> tuple[object, ...]:
        """Changes with anything that the checks of one moment look at; time counts only roughly."""
        quiet = int(self.now_s) // LOOKED_AT_LEAST_EVERY_S
        owners = (self.moves, self.inventory.version, self.books.version, self.synced)
        return (*owners, self._lives, self.world.changes, quiet)

    def _check_work(self) -> None:
        """4: no two attempts of a workload work at once, none is begun twice, none writes after a later one."""
        attempts: dict[WorkloadId, int] = {}
        for id, attempt in self.attempts.children:
            if id in attempts:
                self.complain((Violation(4, id, f"attempts {attempts[id]} and {attempt} work at the same time"),))
            attempts[id] = attempt
        for key in self.attempts.doubled:
            self.complain((Violation(4, key[0], f"attempt {key[1]} was begun twice"),))
        for write in self.attempts.writes[self._writes :]:
            if write.attempt < self._written.get(write.workload, 0):
                self.complain((Violation(4, write.workload, f"attempt {write.attempt} wrote after a later one"),))
            self._written[write.workload] = write.attempt
        self._writes = len(self.attempts.writes)

    def _being_collected(self, violation: Violation) -> bool:
        """A group that Serve made while its application was being ended: gone after the allocator's next turn."""
        key = parse_group_name(self.instance, violation.subject) if violation.invariant == 13 else None
        if key is None or self.tree.workloads[key[0]].spec.kind is not Kind.SERVE:
            return False
        return self.now_s <= self._first_seen.setdefault(violation.detail, self.now_s) + self._collected_s

    def tick(self) -> None:
        """One tick, then everything that can be judged."""
        super().tick()
        self.check_step()

    def check_step(self) -> None:
        """Everything that can be judged after a step: this moment, what the journal says, what was planned."""
        self.check_now()
        self.check_past()
        for seen, made, outcomes in self.controller.plans[self._judged :]:
            self.complain(check_plan(seen, made, self.profile))
            if self.scaling is not None:
                self.complain(check_scale(seen, made, self.profile.node_idle_s))
            self._check_repeats(outcomes)
            if self._judged % self._replayed_every == 0:
                stored = decode(encode(seen))
                assert isinstance(stored, Snapshot)
                self.complain(check_replay(seen, made, plan(stored, self.profile)))
            self._judged += 1
        if self.scaling is not None:
            provider = self.scaling.provider
            self.complain(check_patches(provider.patches, provider.removals))

    def check_past(self) -> None:
        """What the journal says, as far as it has not been looked at; all of it when it has been read anew."""
        new = self.history[self._past_events :]
        self._past_events = len(self.history)
        for event in new:
            self.complain(tuple(self._past.take(event)))
        tree = self.tree
        if tree is not self._past_tree:
            self._past_tree = tree
            self.complain(tuple(self._past.everyone(tree.workloads)))
        elif not new:
            return
        self.complain(tuple(self._past.now(tree.workloads)))
        if any(not isinstance(event, Reported) for event in new):
            used = {id: tree.used(id) for id in tree.queues}
            self.complain(check_quota_charge(tree.workloads, used))

    def _check_repeats(self, outcomes: tuple[object, ...]) -> None:
        """12: what was committed in this very turn is nothing new when it comes again."""
        for outcome in outcomes:
            decision = getattr(outcome, "decision", None)
            if not getattr(outcome, "committed", False):
                continue
            known = self.tree.workloads.get(decision.workload) if isinstance(decision, Start | Stop) else None
            if known is None or (known.state is not State.RUNNING and isinstance(decision, Start)):
                continue
            if isinstance(decision, Start) and known.attempt == decision.attempt and known.size:
                same = [(m.surplus, m.node) for m in known.placement] == [(m.surplus, m.node) for m in decision.members]
                if same and self.tree.commit_start(decision, self.controller.copies.versions, self.now_s):
                    self.complain((Violation(12, known.id, "the same start is committed twice"),))
            if isinstance(decision, Stop) and self.tree.commit_stop(decision, self.now_s):
                self.complain((Violation(12, known.id, "the same stop is ordered twice"),))

    def run_to_quiet(self, limit_s: float = 600.0) -> None:
        """Run until everything has ended (within the limit), a little longer, and look for leftovers."""
        end_s = self.now_s + limit_s
        while self.now_s < end_s and any(not w.state.terminal for w in self.tree.workloads.values()):
            self.tick()
        self.run(5.0)
        self.check_past()
        self.check_quiet()

    def check_quiet(self) -> None:
        """At the end: all has ended, nothing is held and nothing runs."""
        open_ones = [w.id for w in self.tree.workloads.values() if not w.state.terminal]
        left: dict[str, object] = {
            "not ended": open_ones,
            "still held": sorted(self.books.allocations),
            "groups left": self.world.listing(),
            "still working": sorted(self.attempts.children),
            "runners left": sorted(self.attempts.runners),
        }
        for what, those in left.items():
            if those:
                raise InvariantBroken(self.story(f"{what}: {those}"))

    def run_to_rest(self, limit_s: float = 600.0) -> None:
        """Run until everything has ended and the groups have given back what nobody needs, and look for leftovers."""
        assert self.scaling is not None, "without groups there is nothing to wait for but the work"
        self.run_to_quiet(limit_s)
        end_s = self.now_s + limit_s
        while self.now_s < end_s and self._groups_at_rest():
            self.tick()
        self.complain(self._groups_at_rest())

    def _groups_at_rest(self) -> tuple[Violation, ...]:
        assert self.scaling is not None
        return check_groups_at_rest(self.scaling.provider.truth(), self.scaling.capacity())

    def complain(self, violations: tuple[Violation, ...]) -> None:
        """End the run with the story of what happened."""
        if violations:
            raise InvariantBroken(self.story("\n".join(map(str, violations))))

    def story(self, what: str) -> str:
        """What is wrong, and the last events, calls and refusals before it."""
        lines = [what, f"at {self.now_s:.1f}", "events:"]
        lines += [f"  {text[:300]}" for text in self.journal.tail(25)]
        lines += ["actions:", *(f"  {at_s:.1f} {action!r:.200}" for at_s, action in self.controller.actions[-12:])]
        lines += ["refusals:", *(f"  {text}" for text in self.refusals[-8:])]
        if self.scaling is not None:
            lines += ["patches:", *(f"  {patch}" for patch in self.scaling.provider.patches[-8:])]
            lines += ["removals:", *(f"  {removal}" for removal in self.scaling.provider.removals[-8:])]
            lines += ["groups:", *(f"  {state}" for state in self.scaling.capacity().groups)]
        return "\n".join(lines)
