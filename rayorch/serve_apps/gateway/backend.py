"""The port between HTTP and the owners: everything that the gateway asks of a cluster.

`RayBackend` (ray_backend.py) asks the named actors; `FakeBackend` (fake.py) is its sibling in memory.
Refusals are values (`Reply`); ClusterError means that the world failed and the caller may try again.
"""

from __future__ import annotations

from typing import Protocol

from rayorch.core.cron import CronSpec, CronView
from rayorch.core.devices import NodeReading
from rayorch.core.requests import (
    AttemptRef,
    CancelRequest,
    CordonRequest,
    DeleteQueueRequest,
    EntriesPage,
    EntriesRequest,
    EventsPage,
    EventsRequest,
    ListRequest,
    QueueModeRequest,
    Reply,
    SubmitResult,
    UncordonRequest,
    WaitRequest,
    WorkloadPage,
)
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import Allocation, NodeId, QueueSpec, Workload, WorkloadId, WorkloadSpec
from rayorch.core.views import ExplainView, LogChunk, Overview, PlanView


class Backend(Protocol):
    """A cluster as the gateway sees it. Every method is safe to repeat."""

    async def submit(self, specs: tuple[WorkloadSpec, ...]) -> tuple[SubmitResult, ...]:
        """Accept or refuse each; accepted means durable."""
        ...

    async def cancel(self, request: CancelRequest) -> Reply:
        """Ask for a workload's end."""
        ...

    async def workload(self, workload: WorkloadId) -> Workload | None:
        """The newest state of one, None when there is none of that id."""
        ...

    async def wait(self, request: WaitRequest) -> Workload | None:
        """The workload once it has come as far as asked, or as it is after `wait_s`; None when there is none."""
        ...

    async def held(self, attempt: AttemptRef) -> Allocation | None:
        """The seats of an attempt, at least as new as anything that was heard of it."""
        ...

    async def workloads(self, request: ListRequest) -> WorkloadPage:
        """A page of them."""
        ...

    async def explain(self, workload: WorkloadId, changes: bool = False) -> ExplainView | None:
        """Why it is where it is, None when there is none of that id; with `changes`, also what would let it start."""
        ...

    async def would(self, spec: WorkloadSpec) -> PlanView:
        """What submitting it would do, which it does not."""
        ...

    async def overview(self) -> Overview:
        """Queues, nodes and all workloads that have not ended."""
        ...

    async def events(self, request: EventsRequest) -> EventsPage:
        """A page of the journal."""
        ...

    async def set_queue(self, spec: QueueSpec) -> Reply:
        """Create a queue or replace its settings."""
        ...

    async def set_queue_mode(self, request: QueueModeRequest) -> Reply:
        """Open, hold or drain a queue."""
        ...

    async def delete_queue(self, request: DeleteQueueRequest) -> Reply:
        """Remove a queue: an empty one, or with `drain` when its last work has ended."""
        ...

    async def entries(self, request: EntriesRequest) -> EntriesPage:
        """Entries of an array; AdmissionError when there is none of that id."""
        ...

    async def set_reservation(self, spec: ReservationSpec) -> Reply:
        """Hold room in advance, or change what is held."""
        ...

    async def delete_reservation(self, reservation: str) -> Reply:
        """Hold it no longer."""
        ...

    async def set_cron(self, spec: CronSpec) -> Reply:
        """Submit by a schedule from now on."""
        ...

    async def delete_cron(self, cron: str) -> Reply:
        """Submit no more of it."""
        ...

    async def crons(self) -> tuple[CronView, ...]:
        """What is submitted by a schedule, by id."""
        ...

    async def renew(self, attempt: AttemptRef) -> bool:
        """A client's sign of life for its leased gang; False: the lease is over."""
        ...

    async def cordon(self, request: CordonRequest) -> Reply:
        """Keep new work off a node, and with a deadline make what is there leave."""
        ...

    async def uncordon(self, request: UncordonRequest) -> Reply:
        """Let a node take work again."""
        ...

    async def devices(self, node: NodeId) -> NodeReading:
        """The last look of the node's agent at its GPUs."""
        ...

    async def clear_device(self, node: NodeId, index: int) -> bool:
        """Forget what an operator has dealt with on one device. False where there is no such device."""
        ...

    async def logs(self, workload: WorkloadId, attempt: int, offset: int, wait_s: float = 0.0) -> LogChunk:
        """The driver's output from a byte offset on; an empty chunk when nothing comes within `wait_s`."""
        ...

    async def package_exists(self, uri: str) -> bool:
        """Whether a working directory of that URI has been uploaded."""
        ...

    async def put_package(self, uri: str, data: bytes) -> None:
        """Store a working directory's archive; SpecError for a URI that is none of Ray's."""
        ...

    async def put_result(self, attempt: AttemptRef, data: bytes) -> Reply:
        """Keep what a submitted function returned; refused for an attempt that is not the current one."""
        ...

    async def result(self, workload: WorkloadId) -> bytes | None:
        """What the function returned, pickled; None when it returned nothing (yet)."""
        ...
