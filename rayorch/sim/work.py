"""Simulated attempts: the runner of each, and apart from it the work that it started.

They are apart because they die apart: a runner that is killed leaves its work running until that notices that it
hears from nobody any more, which is what leases are for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from rayorch.core.bound_devices import named
from rayorch.core.device_binding import devices_of
from rayorch.core.errors import ClusterError
from rayorch.core.grants import Grant, Seat
from rayorch.core.reports import AttemptReport, CheckpointCommitted, DemandReported, SeatInUse, StepReported
from rayorch.core.runners import RunnerKey, RunnerPhase, RunnerView, same_grant
from rayorch.core.types import Kind, NodeId, WorkloadId, WorkloadSpec, group_name
from rayorch.sim.world import SimGroup, SimWorld

STOPPED_CODE = 75
"""Exit code of work that ends because it was told to."""
CRASH_CODE = 1


@dataclass(frozen=True, slots=True)
class SimWork:
    """How a workload behaves once it runs.

    Each seat makes `rate` steps a second until there are `steps`. `start_s`: from the start of the runner to the
    first step. `checkpoint_s`: how long a checkpoint takes when it is asked for. `fails_at`: step at which it fails,
    once per attempt, in the first `failing_attempts` attempts. `deaf`: it ignores every request to stop or shrink.
    `demand`: (from when [s after the start of the simulation], requests at once), for Serve. `heartbeats_s`: for how
    long a leased gang's client lives.
    """

    steps: int = 60
    rate: float = 1.0
    start_s: float = 1.0
    checkpoint_every: int = 10
    checkpoint_s: float = 1.0
    fails_at: int | None = None
    failing_attempts: int = 0
    deaf: bool = False
    demand: tuple[tuple[float, int], ...] = ()
    heartbeats_s: float = 1e9


class OwnerPort(Protocol):
    """What runners ask of the queue owner; both raise ClusterError when it can't be reached."""

    def renew(self, workload: WorkloadId, attempt: int, runner: str) -> bool:
        """False: fenced."""
        ...

    def report(self, workload: WorkloadId, attempt: int, report: AttemptReport) -> bool:
        """False: the attempt is not the current one."""
        ...


@dataclass(slots=True)
class SimRunner:
    """One runner actor."""

    spec: WorkloadSpec
    attempt: int
    grant: Grant
    started_s: float
    renewed_s: float
    name: str = ""  # of this process
    asked_s: float = -1e9
    phase: RunnerPhase = RunnerPhase.STARTING
    exit_code: int | None = None
    applied_version: int = 0
    in_use: tuple[SeatInUse, ...] | None = None
    message: str = ""
    ended_s: float | None = None
    cut: bool = False  # it reaches the queue owner no more
    leased: bool = False  # it has renewed once: it begins nothing before

    @property
    def key(self) -> RunnerKey:
        """Workload and attempt."""
        return (self.spec.id, self.attempt)


@dataclass(slots=True)
class SimChild:
    """The work of one attempt: its processes."""

    spec: WorkloadSpec
    work: SimWork
    attempt: int
    seats: tuple[Seat, ...]
    heard_s: float
    lease_s: float
    done: float
    version: int = 0
    stopping_since_s: float | None = None
    shrinking_since_s: float | None = None
    saved: int = 0
    unsent: list[AttemptReport] = field(default_factory=list)
    leaving: bool = False  # its work is over; it exits with `code` as soon as its last reports are through
    code: int = 0


@dataclass(frozen=True, slots=True)
class StorageWrite:
    """A checkpoint that was written to the storage which all attempts of a workload share."""

    workload: WorkloadId
    attempt: int
    step: int
    at_s: float


class SimAttempts:
    """All runners and their work; `tick` moves them on."""

    def __init__(
        self, world: SimWorld, works: Mapping[WorkloadId, SimWork], instance: str, start_s: float = 0.0
    ) -> None:
        self.world = world
        self.works = works
        self.instance = instance
        self.start_s = start_s
        self.runners: dict[RunnerKey, SimRunner] = {}
        self.children: dict[RunnerKey, SimChild] = {}
        self.writes: list[StorageWrite] = []
        self._made = 0
        self.doubled: list[RunnerKey] = []
        """Attempts whose work was begun a second time while the first still ran: there must be none."""

    # ------------------------------------------------------------ what the controller asks for

    def start(self, spec: WorkloadSpec, grant: Grant, now_s: float) -> None:
        """Start a runner by its name; one that is there is left alone."""
        key = (spec.id, grant.attempt)
        if key not in self.runners:
            self._made += 1
            self.runners[key] = SimRunner(
                spec, grant.attempt, replace(grant, version=1), now_s, now_s, f"runner {self._made}"
            )

    def update(self, key: RunnerKey, grant: Grant) -> None:
        """Give a runner a new grant, numbered by it."""
        runner = self.runners.get(key)
        if runner is not None and not same_grant(runner.spec.kind, runner.grant, grant):
            runner.grant = replace(grant, version=runner.grant.version + 1)

    def kill(self, key: RunnerKey) -> None:
        """End a runner with its processes."""
        self.runners.pop(key, None)
        self._end_work(key)

    def view(self, key: RunnerKey) -> RunnerView | None:
        """What the runner answers, None if there is none."""
        runner = self.runners.get(key)
        if runner is None:
            return None
        return RunnerView(
            workload=runner.spec.id,
            attempt=runner.attempt,
            phase=runner.phase,
            exit_code=runner.exit_code,
            grant=runner.grant,
            applied_version=runner.applied_version,
            in_use=runner.in_use,
            message=runner.message,
            ended_s=runner.ended_s,
        )

    # ------------------------------------------------------------ faults

    def lose_runner(self, key: RunnerKey) -> None:
        """The runner's process dies; its work goes on until it notices."""
        self.runners.pop(key, None)

    # ------------------------------------------------------------ time

    def tick(self, now_s: float, dt_s: float, port: OwnerPort) -> None:
        """Everything that runners and their work do in `dt_s` seconds."""
        for key in sorted(self.runners):
            self._tick_runner(self.runners[key], now_s, port)
        for key in sorted(self.children):
            self._tick_child(self.children[key], now_s, dt_s, port)

    def _tick_runner(self, runner: SimRunner, now_s: float, port: OwnerPort) -> None:
        if not runner.phase.alive:
            self._renew_ended(runner, now_s, port)
            return
        lease_s = runner.grant.lease_s
        if now_s >= runner.asked_s + lease_s / 3:
            runner.asked_s = now_s
            try:
                accepted = False if runner.cut else port.renew(*runner.key, runner.name)
                lapsed = not accepted and not runner.cut
                runner.renewed_s = now_s if accepted else runner.renewed_s
                runner.leased = runner.leased or accepted
            except ClusterError:
                lapsed = False
            if lapsed:
                self._lapse(runner, now_s)
                return
        if now_s >= runner.renewed_s + lease_s:
            self._lapse(runner, now_s)
        elif (
            runner.phase is RunnerPhase.STARTING
            and runner.leased
            and now_s >= runner.started_s + self._work(runner.spec.id).start_s
        ):
            self._begin(runner, now_s)

    def _renew_ended(self, runner: SimRunner, now_s: float, port: OwnerPort) -> None:
        """Whose work has ended stays and renews, so that how it ended is not taken for lost contact."""
        if runner.exit_code is not None and not runner.cut and now_s >= runner.asked_s + runner.grant.lease_s / 3:
            runner.asked_s = now_s
            with contextlib.suppress(ClusterError):
                port.renew(*runner.key, runner.name)

    def _lapse(self, runner: SimRunner, now_s: float) -> None:
        self._end_work(runner.key)
        runner.phase, runner.ended_s, runner.message = RunnerPhase.ENDED, now_s, "its lease is over"

    def _begin(self, runner: SimRunner, now_s: float) -> None:
        saved = max((w.step for w in self.writes if w.workload == runner.spec.id), default=0)
        runner.phase = RunnerPhase.RUNNING
        if runner.key in self.children:
            self.doubled.append(runner.key)
        self.children[runner.key] = SimChild(
            spec=runner.spec,
            work=self._work(runner.spec.id),
            attempt=runner.attempt,
            seats=runner.grant.seats if runner.spec.kind is not Kind.SERVE else (),
            heard_s=now_s,
            lease_s=runner.grant.lease_s,
            done=float(saved),
            version=runner.grant.version,
            saved=saved,
        )

    # ------------------------------------------------------------ the work

    def _tick_child(self, child: SimChild, now_s: float, dt_s: float, port: OwnerPort) -> None:
        key = (child.spec.id, child.attempt)
        runner = self.runners.get(key)
        grant = None
        if runner is not None and runner.phase.alive:
            child.heard_s, grant = now_s, runner.grant
        elif now_s >= child.heard_s + child.lease_s:
            self._exit(child, None, now_s)
            return
        if not self._send(child, now_s, port):
            self._exit(child, None, now_s)
        elif child.leaving:
            if not child.unsent:
                self._exit(child, child.code, now_s)
        elif child.spec.kind is Kind.SERVE:
            self._serve(child, runner, grant, now_s)
        elif any(not self._seat_stands(seat) for seat in child.seats):
            # Where none stands any more there is no process left that could say how it ended.
            left = any(self._seat_stands(seat) for seat in child.seats)
            self._exit(child, CRASH_CODE if left else None, now_s)
        elif not self._obey(child, runner, grant, now_s):
            self._progress(child, now_s, dt_s)

    def _obey(self, child: SimChild, runner: SimRunner | None, grant: Grant | None, now_s: float) -> bool:
        """Follow a changed grant. True while the work is busy with that (or has ended by it)."""
        if grant is None or child.work.deaf:
            return False
        if grant.stop is not None:
            child.stopping_since_s = child.stopping_since_s if child.stopping_since_s is not None else now_s
            if now_s >= child.stopping_since_s + child.work.checkpoint_s:
                self._checkpoint(child, now_s)
                child.leaving, child.code = True, STOPPED_CODE
            return True
        if grant.version == child.version or runner is None:
            return False
        child.shrinking_since_s = child.shrinking_since_s if child.shrinking_since_s is not None else now_s
        if now_s < child.shrinking_since_s + child.work.checkpoint_s:
            return True
        if grant.seats != child.seats:
            self._checkpoint(child, now_s)
        child.seats, child.version, child.shrinking_since_s = grant.seats, grant.version, None
        runner.applied_version = grant.version
        return True

    def _progress(self, child: SimChild, now_s: float, dt_s: float) -> None:
        before = int(child.done)
        child.done = min(float(child.work.steps), child.done + child.work.rate * len(child.seats) * dt_s)
        step = int(child.done)
        fails_at = child.work.fails_at
        if fails_at is not None and child.attempt <= child.work.failing_attempts and step >= fails_at:
            self._exit(child, CRASH_CODE, now_s)
            return
        if step > before:
            child.unsent = [r for r in child.unsent if not isinstance(r, StepReported)] + [StepReported(step, now_s)]
        if step // child.work.checkpoint_every > child.saved // child.work.checkpoint_every:
            self._checkpoint(child, now_s)
        if step >= child.work.steps:
            self._checkpoint(child, now_s)
            child.leaving, child.code = True, 0

    def _checkpoint(self, child: SimChild, now_s: float) -> None:
        child.saved = int(child.done)
        self.writes.append(StorageWrite(child.spec.id, child.attempt, child.saved, now_s))
        child.unsent.append(CheckpointCommitted(child.saved, f"sim://{child.spec.id}/{child.saved}", now_s))

    def _serve(self, child: SimChild, runner: SimRunner | None, grant: Grant | None, now_s: float) -> None:
        """Replicas come and go within the grant; which one goes is Serve's own choice."""
        if grant is None or runner is None:
            return
        if grant.stop is not None and not child.work.deaf:
            self._exit(child, STOPPED_CODE, now_s)
            return
        prefix = f"{group_name(self.instance, child.spec.id, child.attempt)}/"
        ours = {g.name: g for g in self.world.groups.values() if g.name.startswith(prefix)}
        for seat in _free_seats(grant, ours.values()):
            if len(ours) < len(grant.seats):
                numbers = [seat.surplus, *range(1, len(ours) + 2)]
                names = [group_name(self.instance, child.spec.id, child.attempt, number) for number in numbers]
                name = next(name for name in names if name not in ours)
                bundle = named(seat.resources, seat.devices) if seat.devices else seat.resources
                ours[name] = self.world.create_group(name, ((NodeId(seat.node_id), bundle),), now_s)
        while len(ours) > len(grant.seats) and not child.work.deaf:
            oldest = min(ours.values(), key=lambda g: g.group_id)  # seldom the one that was taken from the grant
            self.world.remove_group(oldest.group_id)
            del ours[oldest.name]
        role = child.spec.roles[0].name
        runner.in_use = tuple(
            SeatInUse(role, node, group.group_id, name, devices=devices_of(bundle), exact=bool(devices_of(bundle)))
            for name, group in sorted(ours.items())
            for node, bundle in group.bundles[:1]
        )
        runner.applied_version = grant.version if len(ours) <= len(grant.seats) else runner.applied_version
        asked = [count for from_s, count in child.work.demand if from_s <= now_s - self.start_s]
        child.unsent = [DemandReported(asked[-1] if asked else 0, 0, now_s)]

    def _send(self, child: SimChild, now_s: float, port: OwnerPort) -> bool:
        """Send what is unsent; False when it was refused: the attempt is over."""
        while child.unsent:
            try:
                if not port.report(child.spec.id, child.attempt, child.unsent[0]):
                    return False
            except ClusterError:
                return True  # again at the next tick
            child.unsent.pop(0)
        return True

    def _exit(self, child: SimChild, code: int | None, now_s: float) -> None:
        key = (child.spec.id, child.attempt)
        runner = self.runners.get(key)
        if runner is not None and runner.phase.alive:
            runner.phase, runner.exit_code, runner.ended_s = RunnerPhase.ENDED, code, now_s
            runner.message = f"exit code {code}" if code is not None else "its lease is over"
        self._end_work(key)

    def _end_work(self, key: RunnerKey) -> None:
        self.children.pop(key, None)

    def _seat_stands(self, seat: Seat) -> bool:
        group = self.world.groups.get(seat.group_id)
        return group is not None and not group.lost

    def _work(self, id: WorkloadId) -> SimWork:
        work = self.works.get(id)
        return work or self.works.get(WorkloadId(id.rpartition(".")[0]), SimWork())  # an entry works as its array says


def _free_seats(grant: Grant, groups: Iterable[SimGroup]) -> list[Seat]:
    """Seats on which no replica is. Serve counts by node; which of a node's seats a replica has means nothing to it
    where they have no particular devices."""
    used = [(group.bundles[0][0], devices_of(group.bundles[0][1])) for group in groups]
    free = []
    for seat in grant.seats:
        if (seat.node_id, seat.devices) in used:
            used.remove((NodeId(seat.node_id), seat.devices))
        else:
            free.append(seat)
    return free
