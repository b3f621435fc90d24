"""The work that attempts do: what becomes of each from its start to its end, and what is left of it.

The cluster's witness: it hears which attempts start, change their seats and are told to stop, and plays their work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rayorch.core.decisions import Decision, Watch
from rayorch.core.endings import SOFT
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.events import Forgotten
from rayorch.core.reports import CheckpointCommitted, StepReported
from rayorch.core.types import UNIT, Kind, Member, State, StopCause, StopOrder, Workload, WorkloadId
from rayorch.sim.models.colocation import Colocation
from rayorch.sim.trace.beside import Beside
from rayorch.sim.trace.cluster import TraceCluster
from rayorch.sim.trace.diary import Diary
from rayorch.sim.trace.drawn import Drawn
from rayorch.sim.trace.events import Moment, Moments
from rayorch.sim.trace.faults import Faults
from rayorch.sim.trace.jobs import RunningJob
from rayorch.sim.trace.model import TraceJob
from rayorch.sim.trace.outcome import JobRecord, TurnedAway
from rayorch.sim.trace.serving import Serving
from rayorch.sim.trace.wakes import Wakes

FORGOTTEN_AT_ONCE = 1_000
"""Ended jobs are forgotten in heaps of so many: nobody asks for them any more."""
STEPS_A_SECOND = 10
"""Of work that does not say how many steps it has, when it is alone."""
FIRST_REPORT_S = 1.0
"""After others have come beside it, or gone: from then on its pace can be told."""
STOPPED_CODE = 143
CRASH_CODE = 1


class Attempts:
    """See the module. `jobs`: that have come and not ended; `all`: every one that has come; `live`: how many hold
    seats; `done`: how many have ended; `turned_away`: why the door refused some. `in_vain`: repairs in a row, while
    nothing ran, that have let nobody start.
    """

    def __init__(
        self,
        cluster: TraceCluster,
        drawn: Drawn,
        moments: Moments,
        diary: Diary,
        faults: Faults,
        wakes: Wakes,
        colocation: Colocation | None,
        serving: Serving | None,
    ) -> None:
        self._cluster = cluster
        self._drawn = drawn
        self._moments = moments
        self._diary = diary
        self._faults = faults
        self._wakes = wakes
        self._serving = serving
        self.jobs: dict[WorkloadId, RunningJob] = {}
        self.all: list[RunningJob | JobRecord] = []
        self.live = 0
        self.in_vain = 0
        self.done = 0
        self.turned_away: dict[str, TurnedAway] = {}
        self._ended: list[WorkloadId] = []
        self._beside = Beside(colocation, self.jobs) if colocation is not None else None
        cluster.witness = self

    # ------------------------------------------------------------ jobs come and end

    def submit(self, job: TraceJob, index: int) -> None:
        """It comes; one that the door refuses has failed."""
        cluster, diary = self._cluster, self._diary
        running = self._drawn.job(job, index)
        self.all.append(running)
        diary.events += 1
        diary.write(f"{cluster.now_s!r} submit {job.id}\n")
        try:
            cluster.submit(self._drawn.spec(job, index))
        except (SpecError, AdmissionError) as error:
            running.state, running.ended_s = State.FAILED, cluster.now_s
            self.done += 1
            diary.write(f"{cluster.now_s!r} refuse {job.id} {error}\n")
            self._turn_away(job, str(error))
            return
        self.jobs[running.id] = running
        diary.waiting += job.ask.gpu_units
        diary.waiting_jobs += 1

    def _turn_away(self, job: TraceJob, reason: str) -> None:
        """Counted by the reason without what this one job said ("…, got 7")."""
        kind = reason.partition(", got ")[0]
        first = self.turned_away.get(kind)
        seen = TurnedAway(1, reason, job.id, job.line) if first is None else replace(first, count=first.count + 1)
        self.turned_away[kind] = seen

    def comes_to(self, kind: Moment, job: RunningJob, now_s: float) -> None:
        """An attempt has come to one of its own moments."""
        cluster = self._cluster
        if kind is Moment.READY:
            cluster.ready(job.id, job.attempt)
            job.restarted(now_s)
            self._begin(job, now_s)
        elif kind is Moment.STOPPED:
            self._release(job, not job.broken)
            self._finish(job, cluster.end(job.id, job.attempt, STOPPED_CODE))
        elif job.job.status == "cancelled":
            self._finish(job, cluster.cancel(job.id, job.attempt))
        else:
            code = CRASH_CODE if job.job.status == "failed" else 0
            job.pause(self._cluster.now_s)
            job.saved_s = job.worked_s  # it ran for as long as in the trace, and nothing of that is done again
            self._finish(job, cluster.end(job.id, job.attempt, code))

    def _begin(self, job: RunningJob, now_s: float) -> None:
        """It works from now on, as fast as its nodes let it."""
        job.stamp += 1
        rate = self._faults.rate(job.nodes) * job.speed
        if self._beside is not None:
            rate *= self._beside.rate(job.id)
        self._moments.put(job.begin(now_s, rate), Moment.END, job.id, job.stamp)

    def paced(self, ids: Iterable[WorkloadId], now_s: float) -> None:
        """These have another pace now."""
        for id in ids:
            job = self.jobs.get(id)
            if job is not None and job.since_s is not None:
                self._begin(job, now_s)

    def _release(self, job: RunningJob, announced: bool) -> None:
        """What its attempt has done is saved up to a checkpoint, which the queue owner hears of."""
        now_s, cluster = self._cluster.now_s, self._cluster
        job.pause(now_s)
        saved_s = min(job.worked_s, job.cost.saved_s(job.worked_s, announced, self._drawn.mtbf_s(job.job)))
        workload = cluster.tree.workloads[job.id]
        if saved_s > 0 and workload.ready_s is not None and job.work_s > 0:
            whole = (job.done_s + saved_s) / job.work_s
            if job.job.steps is not None:
                cluster.report(job.id, job.attempt, StepReported(int(job.job.steps * whole), now_s))
            at_s = min(now_s, workload.ready_s + saved_s / job.rate)
            step = int(self._steps(job) * whole)
            cluster.report(job.id, job.attempt, CheckpointCommitted(step, "sim://", at_s))
        job.saved_s = saved_s

    def _finish(self, job: RunningJob, workload: Workload) -> None:
        """Its attempt is over."""
        now_s, diary = self._cluster.now_s, self._diary
        over = workload.state.terminal
        diary.allocated -= round(job.held_gpus * UNIT)
        if diary.fragments is not None:
            diary.fragments.hold(job.id, ())
        if over and workload.state is not State.FAILED:
            job.pause(now_s)
            job.saved_s = job.worked_s
        job.release(now_s, job.saved_s)
        if self._beside is not None:
            self.paced(self._beside.gone(job.id), now_s)
        self.live -= 1
        diary.events += 1
        diary.write(f"{now_s!r} end {job.id} {workload.state.value}\n")
        job.state = workload.state
        if over:
            job.ended_s = now_s
            del self.jobs[job.id]
            self.all[job.index] = job.record(now_s)
            self.done += 1
            self._ended.append(job.id)
            if len(self._ended) >= FORGOTTEN_AT_ONCE:
                self._cluster.record((Forgotten(tuple(self._ended), now_s),))
                self._ended.clear()
            return
        job.preemptions += workload.last_cause in SOFT
        diary.waiting += round(job.gpus * UNIT)
        diary.waiting_jobs += 1
        self._wakes.requeued(workload)

    def abandoned(self) -> None:
        """Attempts that have no node left end."""
        for job in self._faults.abandoned(self.jobs):
            self._release(job, False)
            self._finish(job, self._cluster.end(job.id, job.attempt, CRASH_CODE))

    def broken(self, ids: Iterable[WorkloadId], now_s: float) -> None:
        """Attempts that have lost a part do no work any more."""
        for id in ids:
            job = self.jobs.get(id)
            if job is None and self._serving is not None:
                self._serving.broken(id)
            elif job is not None and job.attempt:
                job.pause(now_s)
                job.stamp += 1
                job.broken = True

    # ------------------------------------------------------------ what the cluster tells

    def started(self, workload: Workload, members: tuple[Member, ...]) -> None:
        """Witness: its work begins, after what a restart takes."""
        if self._serving is not None and workload.spec.kind is Kind.SERVE:
            return self._serving.started(workload, members)
        now_s, diary = self._cluster.now_s, self._diary
        job = self.jobs[workload.spec.id]
        self.in_vain = 0
        self._hold(job, workload.attempt, members)
        job.state, job.stamp = State.RUNNING, job.stamp + 1
        self.live += 1
        diary.events += 1
        diary.waiting -= round(job.gpus * UNIT)
        diary.waiting_jobs -= 1
        diary.write(f"{now_s!r} start {job.id} {workload.attempt} {' '.join(job.nodes)}\n")
        first = workload.attempt == 1
        delay_s = job.cost.start_s if first else self._drawn.restart_s(job, workload.attempt)
        job.restarting = not first and delay_s > 0
        if delay_s > 0:
            self._moments.put(now_s + delay_s, Moment.READY, job.id, job.stamp)
        else:
            self._cluster.ready(job.id, workload.attempt)
            self._begin(job, now_s)
        self._wakes.started(workload)

    def resized(self, workload: Workload, members: tuple[Member, ...]) -> None:
        """Witness: it goes on with other seats, from its checkpoint and after what a restart takes."""
        if self._serving is not None and workload.spec.kind is Kind.SERVE:
            return self._serving.resized(workload, members)
        now_s, job = self._cluster.now_s, self.jobs[workload.spec.id]
        works = workload.ready_s is not None and not job.broken
        if works:
            job.pause(now_s)
            job.resize(now_s, job.cost.saved_s(job.worked_s, True, self._drawn.mtbf_s(job.job)))
        elif job.restarting:
            job.restarted(now_s)
            job.restarting = True
        job.resizes += 1
        self._hold(job, workload.attempt, members)
        self._diary.write(f"{now_s!r} resize {job.id} {len(members)} {' '.join(job.nodes)}\n")
        if works:
            job.stamp += 1
            delay_s = self._drawn.resize_s(job, workload.attempt)
            job.restarting = delay_s > 0
            if delay_s > 0:
                self._moments.put(now_s + delay_s, Moment.READY, job.id, job.stamp)
            else:
                self._begin(job, now_s)
        self._wakes.resized(workload)

    def _hold(self, job: RunningJob, attempt: int, members: tuple[Member, ...]) -> None:
        """These seats in place of those that it had."""
        units = sum(member.bundle.gpu_units for member in members)
        self._diary.allocated += units - round(job.held_gpus * UNIT)
        if self._diary.fragments is not None:
            self._diary.fragments.hold(job.id, members)
        job.hold(attempt, members, units / UNIT, self._cluster.now_s)
        job.speed = self._drawn.speed(job, members)
        if self._beside is not None:
            self.paced(self._beside.seated(job.id, members), self._cluster.now_s)

    def told_to_stop(self, workload: Workload, order: StopOrder) -> None:
        """Witness: it writes a checkpoint, where the order leaves it the time, and ends."""
        if self._serving is not None and workload.spec.kind is Kind.SERVE:
            return self._serving.told_to_stop(workload, order)
        now_s = self._cluster.now_s
        job = self.jobs[workload.spec.id]
        job.pause(now_s)
        job.stamp += 1
        announced = order.cause in SOFT and not job.broken
        takes_s = job.cost.checkpoint_s if announced and job.cost.on_request else 0.0
        if now_s + takes_s > order.deadline_s:
            takes_s = max(0.0, order.deadline_s - now_s)
            job.broken = True  # there is no time for its checkpoint
        job.broken = job.broken or not announced
        job.moves += order.cause is StopCause.MOVED
        job.freed_gpus += order.freed_gpus
        self._moments.put(now_s + takes_s, Moment.STOPPED, job.id, job.stamp)
        self._diary.write(f"{now_s!r} stop {job.id} {order.cause.value}\n")

    def watched(self, watch: Watch) -> None:
        """Witness: it says how far it has come, and again when its pace among these can be told."""
        job = self.jobs.get(watch.workload)
        if job is not None and job.attempt == watch.attempt:
            self._report(job)
            job.watched += 1
            job.report_s = 0.0
            self._moments.put(self._cluster.now_s + FIRST_REPORT_S, Moment.REPORT, job.id, job.watched)

    def reports(self, id: WorkloadId, number: int) -> None:
        """It says how far it has come, unless others are beside it by now."""
        job = self.jobs.get(id)
        if job is None or job.watched != number or not job.attempt:
            return
        self._report(job)
        job.report_s = 2.0 * job.report_s or self._cluster.profile.packing.measure_s
        self._moments.put(self._cluster.now_s + job.report_s, Moment.REPORT, id, number)

    def _report(self, job: RunningJob) -> None:
        """Its steps, and the checkpoint that it has by now."""
        now_s, cluster = self._cluster.now_s, self._cluster
        if job.since_s is None or job.broken or job.work_s <= 0:
            return
        job.count(now_s)
        steps = self._steps(job) / job.work_s
        cluster.report(job.id, job.attempt, StepReported(int(steps * (job.done_s + job.worked_s)), now_s))
        saved_s = job.cost.saved_s(job.worked_s, False, self._drawn.mtbf_s(job.job))
        if saved_s > 0:
            at_s = now_s - (job.worked_s - saved_s) / job.rate
            checkpoint = CheckpointCommitted(int(steps * (job.done_s + saved_s)), "sim://", at_s)
            cluster.report(job.id, job.attempt, checkpoint)

    def _steps(self, job: RunningJob) -> int:
        """How many steps its work has; where pace is watched, a kind's are all of one length."""
        if job.job.steps is not None:
            return job.job.steps
        return max(1, round(STEPS_A_SECOND * job.work_s)) if self._cluster.profile.packing.unpack else 1_000_000

    def refused(self, decision: Decision, reason: str) -> None:
        """Witness: the facts had changed since."""
        self._diary.write(f"{self._cluster.now_s!r} refused {type(decision).__name__} {reason}\n")
