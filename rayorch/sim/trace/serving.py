"""Applications that serve beside the jobs of a run: replicas that follow their demand, by the planner's decisions.

An application is submitted as on a live cluster, reports its demand whenever that changes, and is given as many
replicas as `Profile.serve_size` says, where its priority lets it; it gives them back when the demand has been low for a
while. It has no work that could be lost. When its demand is over it stays as it is, up to the end of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rayorch.core.errors import RayorchError, SpecError
from rayorch.core.reports import DemandReported
from rayorch.core.types import Kind, Member, QueueId, Role, State, StopOrder, Workload, WorkloadId, WorkloadSpec
from rayorch.sim.trace.cluster import TraceCluster
from rayorch.sim.trace.diary import Diary
from rayorch.sim.trace.events import JUST_AFTER_S, NOBODY, Moment, Moments
from rayorch.sim.trace.model import Service
from rayorch.sim.trace.outcome import ReplicaRun, ServiceRecord
from rayorch.sim.trace.wakes import Wakes

STOPPED_CODE = 143
ROLE = "replica"


def check_services(services: Sequence[Service], ids: Iterable[str]) -> None:
    """SpecError for what can't be played: no demand, times that don't rise, an id that something else has.

    `ids`: of the jobs.
    """
    taken = set(ids) if services else set()
    for n, service in enumerate(services):
        at = f"services[{n}]"
        if service.id in taken:
            raise SpecError(f"{at}.id", f"{service.id} is the id of a job, or of another application")
        taken.add(service.id)
        times = [time for time, _ in service.demand]
        if not times or times[0] < 0 or any(b <= a for a, b in pairwise(times)):
            raise SpecError(f"{at}.demand", "must have times from 0 on that rise, at least one")
        if not all(0 <= value < math.inf for _, value in service.demand):
            raise SpecError(f"{at}.demand", "must be finite numbers of requests from 0 on")
        if not (service.target > 0 and service.start_s >= 0):
            raise SpecError(at, "must have a target above 0 and a start_s from 0 on")


@dataclass(slots=True)
class _Running:
    """One application. `next`: the step of its demand that comes next; `attempt`: 0 while it holds nothing."""

    service: Service
    next: int = 0
    attempt: int = 0
    since_s: float = 0.0
    replicas: int = 0
    units: int = 0
    runs: list[ReplicaRun] = field(default_factory=list)
    stamp: int = 0
    refused: str = ""
    stops: int = 0


class Serving:
    """See the module."""

    def __init__(
        self, services: Sequence[Service], cluster: TraceCluster, moments: Moments, diary: Diary, wakes: Wakes
    ) -> None:
        self._cluster, self._moments, self._diary, self._wakes = cluster, moments, diary, wakes
        self._delay_s = cluster.profile.scale_down_delay_s
        self._all = [_Running(service) for service in services]
        self._by_id = {WorkloadId(one.service.id): one for one in self._all}
        for number, one in enumerate(self._all):
            moments.put(one.service.demand[0][0], Moment.DEMAND, NOBODY, number)

    @property
    def awaited(self) -> bool:
        """Whether the demand of any still changes."""
        return any(one.next < len(one.service.demand) for one in self._all)

    def changes(self, number: int, now_s: float) -> None:
        """The demand of one is another one now; before the first time it is submitted."""
        one = self._all[number]
        if one.next == 0:
            self._submit(one)
        one.next += 1
        if one.next < len(one.service.demand):
            self._moments.put(one.service.demand[one.next][0], Moment.DEMAND, NOBODY, number)
        self._report(one, now_s)

    def _submit(self, one: _Running) -> None:
        service, now_s = one.service, self._cluster.now_s
        self._diary.write(f"{now_s!r} submit {service.id}\n")
        spec = WorkloadSpec(
            id=WorkloadId(service.id),
            name=service.id,
            kind=Kind.SERVE,
            queue=QueueId(service.queue),
            roles=(Role(ROLE, service.each, service.least, service.most),),
            priority=service.priority,
            preemptible=service.preemptible,
            resizable=service.most > service.least,
            accelerators=service.models,
        )
        try:
            self._cluster.submit(spec)
        except RayorchError as error:
            one.refused = str(error)
            self._diary.write(f"{now_s!r} refuse {service.id} {error}\n")

    def _report(self, one: _Running, now_s: float) -> None:
        """What is asked of it now; where that is less than before, replicas go after a while."""
        if not one.attempt:
            return
        requests = math.ceil(one.service.demand[max(0, one.next - 1)][1])
        self._cluster.report(
            WorkloadId(one.service.id), one.attempt, DemandReported(requests, 0, now_s, ROLE, one.service.target)
        )
        self._look_when_low(one, now_s)

    def _look_when_low(self, one: _Running, now_s: float) -> None:
        low_since_s = self._cluster.tree.workloads[WorkloadId(one.service.id)].demand_low_since_s
        if low_since_s is not None:
            self._wakes.at(max(now_s, low_since_s + self._delay_s) + JUST_AFTER_S)

    # ------------------------------------------------------------ what the cluster tells

    def started(self, workload: Workload, members: tuple[Member, ...]) -> None:
        """It has its first replicas, and says what is asked of it."""
        one, now_s = self._by_id[workload.spec.id], self._cluster.now_s
        self._hold(one, workload.attempt, members)
        one.stamp += 1
        self._diary.write(f"{now_s!r} start {workload.id} {workload.attempt} {len(members)}\n")
        self._cluster.ready(workload.id, workload.attempt)
        self._report(one, now_s)
        self._wakes.started(workload)
        self._wakes.now()  # its demand is known from now on

    def resized(self, workload: Workload, members: tuple[Member, ...]) -> None:
        """It has other replicas."""
        one, now_s = self._by_id[workload.spec.id], self._cluster.now_s
        self._hold(one, workload.attempt, members)
        self._diary.write(f"{now_s!r} resize {workload.id} {len(members)}\n")
        self._wakes.resized(workload)
        self._look_when_low(one, now_s)

    def told_to_stop(self, workload: Workload, order: StopOrder) -> None:
        """All of its replicas are to end, which they do at once."""
        one, now_s = self._by_id[workload.spec.id], self._cluster.now_s
        one.stamp += 1
        one.stops += 1
        self._moments.put(now_s, Moment.STOPPED, workload.id, one.stamp)
        self._diary.write(f"{now_s!r} stop {workload.id} {order.cause.value}\n")

    def stopped(self, id: WorkloadId, stamp: int) -> None:
        """They have ended."""
        one = self._by_id.get(id)
        if one is None or one.stamp != stamp or not one.attempt:
            return
        self._end(one, id)

    def broken(self, id: WorkloadId) -> None:
        """Something under it has failed: replicas on GPUs that are lost have died, and the others go on."""
        one, held = self._by_id.get(id), None
        if one is not None and one.attempt:
            held = self._cluster.books.allocations.get((id, one.attempt))
        if one is None or held is None or self._cluster.state_of(id) is not State.RUNNING:
            return
        nodes = self._cluster.inventory.nodes
        lost = {(node, d.index) for node in {m.node for m in held.members} for d in nodes[node].devices if d.lost}
        dead = {m.surplus for m in held.members if any((m.node, index) in lost for index in m.devices)}
        if dead and len(dead) < len({m.surplus for m in held.members}):
            self._cluster.lose_seats(id, one.attempt, tuple(sorted(dead)), "its GPU is lost")
        elif dead:
            self._end(one, id)

    def _end(self, one: _Running, id: WorkloadId) -> None:
        workload = self._cluster.end(id, one.attempt, STOPPED_CODE)
        self._hold(one, 0, ())
        self._diary.write(f"{self._cluster.now_s!r} end {id} {workload.state.value}\n")
        if not workload.state.terminal:
            self._wakes.requeued(workload)

    def _hold(self, one: _Running, attempt: int, members: tuple[Member, ...]) -> None:
        now_s, units = self._cluster.now_s, sum(member.bundle.gpu_units for member in members)
        if one.attempt and now_s > one.since_s:
            one.runs.append(ReplicaRun(one.since_s, now_s, one.replicas))
        self._diary.allocated += units - one.units
        if self._diary.fragments is not None:
            self._diary.fragments.hold(WorkloadId(one.service.id), members)
        one.attempt, one.since_s, one.replicas, one.units = attempt, now_s, len(members), units

    # ------------------------------------------------------------ afterwards

    def records(self, now_s: float) -> tuple[ServiceRecord, ...]:
        """What became of each, in the trace's order."""
        return tuple(
            ServiceRecord(
                one.service,
                (*one.runs, *([ReplicaRun(one.since_s, now_s, one.replicas)] if one.attempt else ())),
                one.stops,
                one.refused,
            )
            for one in self._all
        )
