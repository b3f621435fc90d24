"""Deadlines: what can't make it is refused when it is submitted, and given up when that becomes certain later.

The door knows three reasons, each certain by what owners say of their work (`expected_s`) and by the most GPUs that
there can be: the deadline has passed; even a start at once (or at `begin_s`) would be too late; or all that has to be
done by some deadline, this work included, is more than the GPUs can do until then. The last is the demand bound of
EDF with work that could be divided at will, so that it refuses nothing that could be done.

What waits and can't make it any more is cancelled, as Slurm does at its deadline. What runs is not stopped.
"""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.errors import AdmissionError
from rayorch.core.types import GPU, UNIT, State, Workload, WorkloadId, WorkloadSpec


class Deadlines:
    """The workloads with a deadline that have not ended, kept up to date by the queue tree."""

    def __init__(self) -> None:
        self._open: dict[WorkloadId, Workload] = {}
        self._first_s: float | None = None  # when the first of those that wait must have started
        self._fresh = True

    @property
    def watches(self) -> bool:
        """Whether anybody with a deadline has not ended."""
        return bool(self._open)

    def put(self, workload: Workload) -> None:
        """The workload is new, or another one than before."""
        if workload.spec.deadline_s is None or workload.spec.array is not None:
            return  # an array's entries are judged one by one
        if workload.state.terminal:
            self._open.pop(workload.id, None)
        else:
            self._open[workload.id] = workload
        self._fresh = False

    def missed(self, now_s: float) -> Mapping[WorkloadId, str]:
        """Those that wait and can't make it any more, with the reason. O(1) while nothing changes."""
        if not self._fresh:
            self._first_s = min((latest_start_s(w) for w in self._open.values() if _waits(w)), default=None)
            self._fresh = True
        if self._first_s is None or now_s <= self._first_s:
            return {}
        late = sorted(w.id for w in self._open.values() if _waits(w) and now_s > latest_start_s(w))
        return {id: f"its deadline can't be met any more: {_needs(self._open[id], now_s)}" for id in late}

    def check(self, spec: WorkloadSpec, now_s: float, gpus: float | None) -> None:
        """AdmissionError for a deadline that can't be met. `gpus`: the most that there can be, None: not known."""
        deadline_s = spec.deadline_s
        if deadline_s is None:
            return
        if deadline_s <= now_s:
            raise AdmissionError("deadline_s", f"has passed {now_s - deadline_s:.0f} s ago")
        begin_s = max(now_s, spec.begin_s or 0.0)
        takes_s = spec.expected_s or 0.0
        if begin_s + takes_s > deadline_s:
            message = f"can't be met: it is expected to take {takes_s:.0f} s, {deadline_s - begin_s:.0f} s are left"
            raise AdmissionError("deadline_s", message)
        if gpus is None or spec.array is not None or not spec.least(GPU):
            return
        self._check_demand(spec, deadline_s, now_s, gpus)

    def _check_demand(self, spec: WorkloadSpec, deadline_s: float, now_s: float, gpus: float) -> None:
        own = (spec.expected_s or 0.0) * spec.least(GPU) / UNIT
        needs: dict[float, float] = {deadline_s: own}
        for other in self._open.values():
            at_s = other.spec.deadline_s or 0.0
            needs[at_s] = needs.get(at_s, 0.0) + _left_gpu_s(other, now_s)
        done = 0.0
        for at_s in sorted(needs):
            done += needs[at_s]
            room = gpus * (at_s - now_s)
            # Where the others alone are too much already, only what must be done by then comes too late as well.
            if at_s >= deadline_s and done > room and (done - own <= room or at_s == deadline_s):
                raise AdmissionError("deadline_s", _overload(own, done - own, room, at_s - now_s))


def latest_start_s(workload: Workload) -> float:
    """When it must have started to be done by its deadline; what former attempts saved need not be done again."""
    assert workload.spec.deadline_s is not None
    return workload.spec.deadline_s - max(0.0, (workload.spec.expected_s or 0.0) - workload.progress_s)


def _left_gpu_s(workload: Workload, now_s: float) -> float:
    """GPU-seconds that it still needs by what its owner expects; a running one goes on from what it has done."""
    done_s = workload.progress_s
    if workload.state is not State.PENDING and workload.ready_s is not None:
        done_s += max(0.0, now_s - workload.ready_s)
    return max(0.0, (workload.spec.expected_s or 0.0) - done_s) * workload.spec.least(GPU) / UNIT


def _needs(workload: Workload, now_s: float) -> str:
    deadline_s = workload.spec.deadline_s or 0.0
    takes_s = deadline_s - latest_start_s(workload)
    if deadline_s <= now_s:
        return f"it passed {now_s - deadline_s:.0f} s ago"
    return f"{takes_s:.0f} s of work are left, {deadline_s - now_s:.0f} s of time"


def _overload(own: float, others: float, room: float, left_s: float) -> str:
    return (
        f"can't be met: it needs {own:.0f} GPU-seconds and others with deadlines {others:.0f}"
        f" in the next {left_s:.0f} s, where at most {room:.0f} can be had"
    )


def _waits(workload: Workload) -> bool:
    return workload.state is State.PENDING and not workload.cancel_requested
