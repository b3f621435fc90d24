"""One job on its way through a run: what of its work is done, what it holds, and what was lost on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayorch.core.types import Member, NodeId, State, WorkloadId
from rayorch.sim.models.restart import RestartCost
from rayorch.sim.trace.model import TraceJob
from rayorch.sim.trace.outcome import JobRecord, JobRun


@dataclass(slots=True)
class RunningJob:
    """`work_s`: what it takes undisturbed; `done_s`: of that, what is saved. `gpus`: what it asked for in all.

    Of the current attempt: `attempt`, 0 while it holds nothing; `held_s`: since when it holds `nodes` and `held_gpus`;
    `since_s`: up to when `worked_s` (work since its last start or checkpoint that was restored) is counted, None while
    it does not work; `rate`: work done in a second; `paces`: (how much work was done when a rate began, the rate), in
    turn; `speed`: of the rate, what its seats make of it. `stamp` tells events
    that were scheduled for it from those that hold no more. `broken`: what it ran on is gone, or nothing of it can be
    saved. `saved_s`: what of the work of the attempt that ends is saved. `restarting`: it does not
    work yet. `resizes`: how often its seats have changed while an attempt ran. `watched`: how
    often who shares its GPU has been noted, since when it reports after `report_s`, longer each time.
    """

    job: TraceJob
    index: int
    work_s: float
    gpus: float
    cost: RestartCost
    done_s: float = 0.0
    attempt: int = 0
    held_s: float = 0.0
    nodes: tuple[NodeId, ...] = ()
    held_gpus: float = 0.0
    since_s: float | None = None
    worked_s: float = 0.0
    rate: float = 1.0
    paces: list[tuple[float, float]] = field(default_factory=list)
    speed: float = 1.0
    stamp: int = 0
    broken: bool = False
    restarting: bool = False
    saved_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    runs: list[JobRun] = field(default_factory=list)
    preemptions: int = 0
    lost_gpu_s: float = 0.0
    state: State = State.PENDING
    resizes: int = 0
    watched: int = 0
    report_s: float = 0.0
    moves: int = 0
    freed_gpus: float = 0.0

    @property
    def id(self) -> WorkloadId:
        """Its workload's."""
        return WorkloadId(self.job.id)

    def hold(self, attempt: int, members: tuple[Member, ...], gpus: float, now_s: float) -> None:
        """It has these seats from now on."""
        if self.attempt:
            self._leave(now_s)
        self.attempt, self.held_s, self.held_gpus = attempt, now_s, gpus
        self.nodes = nodes_of(members)
        if self.started_s is None:
            self.started_s = now_s

    def begin(self, now_s: float, rate: float) -> float:
        """Its work begins, or goes on at another rate; answers when it will be done."""
        self.count(now_s)
        if not self.paces or self.paces[-1][1] != rate:
            self.paces.append((self.worked_s, rate))
        self.since_s, self.rate = now_s, rate
        return now_s + max(0.0, self.work_s - self.done_s - self.worked_s) / rate

    def count(self, now_s: float) -> None:
        """Work done up to now."""
        if self.since_s is not None:
            self.worked_s += (now_s - self.since_s) * self.rate
            self.since_s = now_s

    def restarted(self, now_s: float) -> None:
        """What it took to start over, so far, did no work."""
        if self.restarting:
            self.lost_gpu_s += (now_s - self.held_s) * self.held_gpus
            self.restarting = False

    def pause(self, now_s: float) -> None:
        """It works no more in this attempt."""
        self.count(now_s)
        self.since_s = None

    def resize(self, now_s: float, saved_s: float) -> None:
        """Its seats change while it pauses: so much of this attempt's work is saved, and the rest is done again."""
        self.restarted(now_s)
        self.lost_gpu_s += self._took_s(saved_s) * self.held_gpus
        self.worked_s = min(self.worked_s, saved_s)
        self.paces = [pace for pace in self.paces if pace[0] < self.worked_s]

    def release(self, now_s: float, saved_s: float) -> None:
        """Its attempt is over, and so much of the work that it did is saved."""
        self.pause(now_s)
        self.restarted(now_s)
        self.lost_gpu_s += self._took_s(saved_s) * self.held_gpus
        self.paces.clear()
        self.done_s += saved_s
        self._leave(now_s)
        self.attempt, self.worked_s, self.broken, self.nodes, self.held_gpus = 0, 0.0, False, (), 0.0
        self.stamp += 1

    def _took_s(self, saved_s: float) -> float:
        """How long the work of this attempt took that came after what is saved, at the rates that it went at."""
        took_s, upto_s = 0.0, self.worked_s
        for begun_s, rate in reversed(self.paces):
            if upto_s <= saved_s:
                break
            took_s += (upto_s - max(begun_s, saved_s)) / rate
            upto_s = min(upto_s, begun_s)
        return took_s

    def _leave(self, now_s: float) -> None:
        self.runs.append(JobRun(self.held_s, now_s, self.nodes, self.held_gpus))

    def record(self, now_s: float) -> JobRecord:
        """What became of it; `now_s`: the end of the simulated time."""
        job, runs = self.job, tuple(self.runs)
        if self.attempt:
            runs = (*runs, JobRun(self.held_s, now_s, self.nodes, self.held_gpus))
        return JobRecord(
            job.id,
            job.queue,
            job.user,
            job.name,
            self.gpus,
            job.submit_s,
            self.started_s,
            self.ended_s,
            runs,
            self.preemptions,
            self.lost_gpu_s,
            self.state,
            self.resizes,
            job.ask.elastic,
            self.moves,
            self.freed_gpus,
        )


def nodes_of(members: tuple[Member, ...]) -> tuple[NodeId, ...]:
    """Each node once, in order."""
    if len(members) == 1:
        return (members[0].node,)
    return tuple(sorted({member.node for member in members}))
