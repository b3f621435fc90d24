"""What is asked of time: arrays, dependencies, retries, reservations in advance, repeated submissions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rayorch.core.gang_shape import TopologyRequest
from rayorch.core.ids import QueueId, WorkloadId
from rayorch.core.resources import Resources


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One submission that stands for `count` workloads of the same spec, entries `first` to `first + count - 1`.

    `max_running`: the most entries that run at a time, None: no cap. Entry 7 of `sweep` has the id `sweep.7` and
    finds its index in the environment variable RAYORCH_ARRAY_INDEX.
    """

    count: int
    max_running: int | None = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """Which entry of which array a workload is, and how many of that run at a time at most."""

    array: WorkloadId
    index: int
    max_running: int | None = None


@dataclass(frozen=True, slots=True)
class ArrayProgress:
    """How far the entries of an array have come; all five numbers add up to its count.

    `listed`: of those that wait, how many are workloads of their own by now.
    """

    waiting: int
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    listed: int = 0


class After(StrEnum):
    """When a dependency is met; Slurm's names."""

    STARTED = "after"  # the other one has started, or has ended
    OK = "afterok"  # it has succeeded
    ANY = "afterany"  # it has ended
    NOT_OK = "afternotok"  # it has failed or was cancelled
    CORRESPONDING = "aftercorr"  # the entry of the same index of the other array has succeeded
    SINGLETON = "singleton"  # no earlier workload of the same name and owner is left; names no other one


@dataclass(frozen=True, slots=True)
class Dependency:
    """What must have happened to `workload` (an array: to all its entries) before this one may start.

    One that can't be met any more ends the dependent as CANCELLED, with the reason.
    """

    kind: After
    workload: WorkloadId | None = None


@dataclass(frozen=True, slots=True)
class RetryRule:
    """What to do about a failure of the workload's own: the first rule that names its exit code counts.

    `exit_codes` empty: every code. `max_retries`: how many failures of this kind are retried, 0: none. Preemptions
    and infrastructure faults never count.
    """

    exit_codes: tuple[int, ...] = ()
    max_retries: int = 0
    backoff_s: float | None = None  # before the first retry, doubled each time; None: the profile's


@dataclass(frozen=True, slots=True)
class ReservationSpec:
    """Room held in advance: `count` bundles, from `start_s` until `end_s`, for a queue (and those below it).

    `standing`: from `start_s` on without end; what is taken or lost is replaced (hot spares). `owners`: who may use it,
    empty: everyone of the queue. `every_s`: repeated with this period, None: once.
    """

    id: str
    queue: QueueId
    bundle: Resources
    count: int
    start_s: float
    end_s: float | None = None
    standing: bool = False
    owners: tuple[str, ...] = ()
    topology: TopologyRequest = TopologyRequest()
    accelerators: tuple[str, ...] = ()
    every_s: float | None = None
