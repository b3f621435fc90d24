"""A whole trace under a profile: time goes from event to event, and at each the loop has its turn.

    the next moment ─▶ all that happens then goes to the owners ─▶ snapshot ─▶ plan() ─▶ commit() ─▶ the next moment

Nothing is decided here. What is simulated is work: how long it runs, what a stop leaves of it, which nodes fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from resource import RUSAGE_THREAD, getrusage

from rayorch.core.admission import check_queue
from rayorch.core.errors import SpecError
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import Profile
from rayorch.core.types import (
    UNIT,
    NodeSpec,
    QueueId,
    QueueSpec,
)
from rayorch.sim.models import SimModels
from rayorch.sim.models.restart import RestartCost
from rayorch.sim.trace.attempts import Attempts
from rayorch.sim.trace.cluster import TraceCluster
from rayorch.sim.trace.collecting import collecting_seldom
from rayorch.sim.trace.diary import Diary
from rayorch.sim.trace.drawn import Drawn
from rayorch.sim.trace.events import INFINITY, Moment, Moments
from rayorch.sim.trace.faults import Faults
from rayorch.sim.trace.fragments import Fragments
from rayorch.sim.trace.jobs import RunningJob
from rayorch.sim.trace.model import Trace, TraceJob
from rayorch.sim.trace.outcome import JobRecord, Outcome, Progress
from rayorch.sim.trace.serving import Serving, check_services
from rayorch.sim.trace.supply import Supplies, Supply
from rayorch.sim.trace.wakes import Wakes

TOLD_EVERY = 2_000
"""Events between two calls of `on_progress`."""
MOST_TURNS = 100
"""In one moment; decisions that undo each other go on `UNDONE_S` later, so that time goes on."""
UNDONE_S = 60.0
REPAIRS_IN_VAIN = 1_000
"""Once nothing runs and so many repairs in a row have let nobody start, what waits never starts."""
SAME_S = 1e-6
"""A moment this close to that of a round is in it."""


def run(
    trace: Trace,
    nodes: Sequence[NodeSpec],
    profile: Profile,
    *,
    queues: Sequence[QueueSpec] = (),
    models: SimModels | None = None,
    seed: int = 0,
    until_s: float | None = None,
    round_s: float = 0.0,
    fragmentation: bool = False,
    groups: Sequence[Supply] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """The trace's jobs on these nodes under this profile; deterministic: the same arguments give the same log.

    `nodes`, `queues`: where none are given, the trace's own; queues that only jobs name are added without shares or
    limits. `until_s`: stop there; None: when nothing more can happen. `round_s`: the loop has its turn at multiples of
    it, however much happens in between; 0: whenever something happens. `fragmentation`: measure it over time, which
    changes nothing else. `groups`: nodes that come and go beside the others. `on_progress` is called every now and
    then.

    SpecError for a trace that can't be run at all; a job that the door refuses is recorded as failed.
    """
    begun_s = _cpu_s()
    where = tuple(nodes) or (() if groups else trace.nodes)
    if not where and not groups:
        raise SpecError("nodes", f"trace {trace.name} names none, so that some must be given")
    model = models if models is not None else SimModels()
    check_services(trace.services, (job.id for job in trace.jobs))
    moments = Moments()
    supplies = Supplies(groups, model.provisioning, profile, seed, moments) if groups else None
    cluster = TraceCluster(where, with_queues(trace, queues or trace.queues), profile, supplies=supplies)
    fragments = Fragments(cluster.inventory.nodes.values(), trace.jobs) if fragmentation else None
    loop = _Loop(trace, cluster, model, seed, until_s, round_s, moments, fragments, on_progress, begun_s)
    with collecting_seldom():
        loop.run()
    return replace(loop.outcome(), fixed_nodes=len(where))


def with_queues(trace: Trace, queues: Sequence[QueueSpec]) -> tuple[QueueSpec, ...]:
    """These queues, and those that jobs name besides, with the queues above them; parents first.

    What can't be a queue's name is left out: the door refuses its jobs, and says so.
    """
    known = {spec.id: spec for spec in queues}
    asking = {job.queue for job in trace.jobs} | {service.queue for service in trace.services}
    for name in sorted({name for name in asking if _may_be(name)} | {spec.id for spec in queues}):
        at = QueueId(name)
        while at not in known or QueueSpec(at).parent is not None:
            known.setdefault(at, QueueSpec(at))
            parent = known[at].parent
            if parent is None:
                break
            at = parent
    return tuple(known[id] for id in sorted(known))


def _may_be(name: str) -> bool:
    """Whether a queue may be called so."""
    try:
        check_queue(QueueSpec(QueueId(name)))
    except SpecError:
        return False
    return True


def _cpu_s() -> float:
    """CPU time of this thread. It is measured and told, and decides nothing."""
    used = getrusage(RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


class _Loop:
    """One run."""

    def __init__(
        self,
        trace: Trace,
        cluster: TraceCluster,
        models: SimModels,
        seed: int,
        until_s: float | None,
        round_s: float,
        moments: Moments,
        fragments: Fragments | None,
        on_progress: Callable[[Progress], None] | None,
        begun_s: float,
    ) -> None:
        self._trace = trace
        self._cluster = cluster
        self._seed = seed
        self._until_s = until_s
        self._round_s = round_s
        self._on_progress = on_progress
        self._begun_s = begun_s
        self._memory = Memory(lends=True)
        self._moments = moments
        self._supplies = cluster.supplies
        self._next = 0
        self._turns = 0
        self._cut_short = 0
        self._told = 0
        self._diary = Diary(sum(node.total.gpu_units for node in cluster.inventory.nodes.values()), fragments)
        self._faults = Faults(cluster, models.failures, seed, self._moments, until_s)
        self._wakes = Wakes(cluster, self._moments)
        found = trace.services
        self._serving = Serving(found, cluster, self._moments, self._diary, self._wakes) if found else None
        self._attempts = Attempts(
            cluster,
            Drawn(trace, models, seed),
            self._moments,
            self._diary,
            self._faults,
            self._wakes,
            models.colocation,
            self._serving,
        )

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """From the first moment to the last."""
        cluster, jobs, moments = self._cluster, self._trace.jobs, self._moments
        self._diary.sample(0.0)
        while True:
            now_s = moments.first_s
            if self._next < len(jobs):
                now_s = min(now_s, jobs[self._next].submit_s)
            elif not self._attempts.live and not self._awaited:
                break  # nobody works, nobody comes, and nothing changes by itself
            if now_s == INFINITY or (self._until_s is not None and now_s > self._until_s):
                break
            cluster.now_s = now_s
            self._happen(now_s)
            if self._has_turn(now_s):
                self._turn(now_s)
            if self._supplies is not None:
                self._note_nodes(self._supplies)
            self._diary.sample(now_s)
            self._tell()
        if self._until_s is not None:
            cluster.now_s = max(cluster.now_s, self._until_s)

    @property
    def _awaited(self) -> bool:
        """Whether something may still change for those who wait."""
        if not self._attempts.jobs and self._trace.jobs:
            return False  # nobody waits: that nodes fail and come back is of no more interest
        if self._wakes.awaited or (self._faults.awaited and self._attempts.in_vain < REPAIRS_IN_VAIN):
            return True
        if self._serving is not None and self._serving.awaited:
            return True
        return self._supplies is not None and self._supplies.awaited

    def _has_turn(self, now_s: float) -> bool:
        """Whether the loop looks now. Where it goes by rounds, it looks at the next one at what has happened."""
        if not self._round_s:
            return True
        rounds = round(now_s / self._round_s)
        if abs(now_s - rounds * self._round_s) < SAME_S:
            return True
        self._wakes.at(math.ceil(now_s / self._round_s) * self._round_s)
        return False

    def _happen(self, now_s: float) -> None:
        """All that is due by now: ends first, then nodes, then who comes."""
        jobs, moments = self._trace.jobs, self._moments
        while (event := moments.due(now_s)) is not None:
            match event.kind:
                case Moment.REPORT:
                    self._attempts.reports(event.id, event.stamp)
                case Moment.END | Moment.READY | Moment.STOPPED:
                    job = self._attempts.jobs.get(event.id)
                    if job is not None and job.stamp == event.stamp:
                        self._attempts.comes_to(event.kind, job, now_s)
                    elif job is None and self._serving is not None:
                        self._serving.stopped(event.id, event.stamp)
                case Moment.WAKE:
                    self._wakes.woken(event.at_s)
                case Moment.DEMAND if self._serving is not None:
                    self._serving.changes(event.stamp, now_s)
                case Moment.JOIN:
                    self._join(event.stamp, now_s)
                case _:
                    self._fault(event.kind, event.stamp, now_s)
        while self._next < len(jobs) and jobs[self._next].submit_s <= now_s:
            self._attempts.submit(jobs[self._next], self._next)
            self._next += 1

    def _turn(self, now_s: float) -> None:
        """The loop's turn, and again while what was decided has consequences in this very moment."""
        cluster = self._cluster
        for _ in range(MOST_TURNS):
            made = plan(cluster.snapshot(), cluster.planned, self._memory)
            cluster.commit(made)
            self._turns += 1
            self._wakes.after(made)
            self._attempts.abandoned()
            if self._moments.first_s > now_s:
                return
            self._happen(now_s)
        self._cut_short += 1
        self._diary.write(f"{now_s!r} cut short\n")
        self._wakes.at(now_s + UNDONE_S)

    def _tell(self) -> None:
        if self._on_progress is None or self._diary.events < self._told + TOLD_EVERY:
            return
        self._told = self._diary.events
        jobs = self._trace.jobs
        last_s = jobs[-1].submit_s if jobs else 0.0
        cpu_s = _cpu_s() - self._begun_s
        done, events = self._attempts.done, self._diary.events
        self._on_progress(Progress(self._cluster.now_s, last_s, done, len(jobs), events, cpu_s))

    # ------------------------------------------------------------ nodes

    def _fault(self, kind: Moment, number: int, now_s: float) -> None:
        """Something is the matter with nodes, or no more: work on them stops, or has another pace."""
        diary = self._diary
        change = self._faults.happen(kind, number, now_s)
        self._attempts.in_vain += kind is Moment.REPAIR and not self._attempts.live
        diary.write(f"{now_s!r} {kind.name.lower()} {' '.join(change.nodes)}\n")
        diary.capacity = change.capacity
        if diary.fragments is not None:
            known = self._cluster.inventory.nodes
            diary.fragments.see(known[id] for id in change.nodes if id in known)
        if change.leave_by_s is not None:
            self._wakes.draining(change.leave_by_s)
        self._attempts.paced(change.paced, now_s)
        self._attempts.broken(change.broken, now_s)

    def _join(self, order: int, now_s: float) -> None:
        """A node that was ordered is there, unless it was given back meanwhile."""
        supplies = self._supplies
        node = supplies.joined(order, now_s) if supplies is not None else None
        if supplies is None or node is None:
            return
        there = self._faults.found(node)
        if there is not None:
            self._cluster.change_nodes((), (there,))
            if self._diary.fragments is not None:
                self._diary.fragments.see((there,))
        self._note_nodes(supplies)

    def _note_nodes(self, supplies: Supplies) -> None:
        """What came and went, in the log and in the capacity."""
        if not supplies.log:
            return
        for line in supplies.log:
            self._diary.write(line)
        supplies.log.clear()
        self._diary.capacity = self._cluster.gpu_units
        if self._diary.fragments is not None:
            self._diary.fragments.only(self._cluster.inventory.nodes)

    # ------------------------------------------------------------ afterwards

    def outcome(self) -> Outcome:
        """What came out of it."""
        now_s, jobs = self._cluster.now_s, self._trace.jobs
        came = self._attempts.all
        never = [_never(job, index) for index, job in enumerate(jobs[len(came) :], len(came))]
        return Outcome(
            trace=self._trace.name,
            profile=self._cluster.profile.name,
            seed=self._seed,
            records=tuple(j if isinstance(j, JobRecord) else j.record(now_s) for j in (*came, *never)),
            series=self._diary.series(),
            events=self._diary.events,
            turns=self._turns,
            cut_short=self._cut_short,
            turned_away=tuple(self._attempts.turned_away.values()),
            cpu_s=_cpu_s() - self._begun_s,
            log_sha256=self._diary.sha256,
            services=() if self._serving is None else self._serving.records(now_s),
            stays=() if self._supplies is None else self._supplies.stays(now_s),
        )


def _never(job: TraceJob, index: int) -> RunningJob:
    """A job that comes after the end of the simulated time."""
    return RunningJob(job, index, job.duration_s, job.ask.gpu_units / UNIT, RestartCost())
