"""A cluster in memory for the gateway's tests and for looking at its pages: its user moves the states.

The planner runs for questions (`would`, changes) only.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace

from rayorch.config import load_profile
from rayorch.core.arrays import EntryRow
from rayorch.core.bypass import Bypass
from rayorch.core.capacity import Capacity
from rayorch.core.cron import Cron, CronSpec, CronView
from rayorch.core.decisions import Wait
from rayorch.core.devices import NodeReading
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.events import CancelRequested, Event, QueueSet, Submitted, workload_of
from rayorch.core.planner import plan
from rayorch.core.requests import (
    ACCEPTED,
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
    RecordedEvent,
    Reply,
    SubmitResult,
    UncordonRequest,
    WaitRequest,
    WorkloadPage,
)
from rayorch.core.reservations import ReservationView, window_of
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import (
    LIVE,
    Allocation,
    NodeHealth,
    NodeId,
    NodeSpec,
    QueueId,
    QueueMode,
    QueueSpec,
    State,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.core.views import AutoscalerView, ExplainView, LogChunk, NodeRow, Overview, PlanView, QueueRow, WorkloadRow
from rayorch.core.whatif import smallest_changes, would

DEFAULT = QueueSpec(QueueId("default"))
LOOK_S = 0.005
"""Between two looks of a long poll: its user moves the states from another thread."""


@dataclass
class FakeBackend:
    """Keeps what it is given. `advance`, `write_log`, `explain_as` play the cluster's part."""

    now_s: float = 1_000_000.0
    queues: dict[QueueId, QueueSpec] = field(
        default_factory=lambda: {QueueId("default"): QueueSpec(QueueId("default"))}
    )
    nodes: dict[NodeId, NodeSpec] = field(default_factory=dict)
    known: dict[WorkloadId, Workload] = field(default_factory=dict)
    waits: dict[WorkloadId, tuple[Wait, ...]] = field(default_factory=dict)
    seats: dict[WorkloadId, Allocation] = field(default_factory=dict)
    journal: list[Event] = field(default_factory=list)
    packages: dict[str, bytes] = field(default_factory=dict)
    results: dict[WorkloadId, bytes] = field(default_factory=dict)
    log_text: dict[tuple[WorkloadId, int], bytes] = field(default_factory=dict)
    lapsed: set[WorkloadId] = field(default_factory=set)
    renewals: int = 0
    bypasses: list[Bypass] = field(default_factory=list)
    refuse: Reply | None = None
    reservations: dict[str, ReservationSpec] = field(default_factory=dict)
    crons_set: dict[str, CronSpec] = field(default_factory=dict)
    capacity: Capacity = field(default_factory=Capacity)
    autoscaler: AutoscalerView | None = None
    readings: dict[NodeId, NodeReading] = field(default_factory=dict)
    cleared: list[tuple[NodeId, int]] = field(default_factory=list)

    # ------------------------------------------------------------ the cluster's part

    def advance(self, workload: str, state: State, **changes: object) -> None:
        """Move a workload to a state; RUNNING from PENDING begins a new attempt."""
        now = self.known[WorkloadId(workload)]
        fields: dict[str, object] = {"state": state, **changes}
        if state is State.RUNNING and now.state is State.PENDING:
            fields |= {"attempt": now.attempt + 1, "started_s": self.now_s, "ready_s": self.now_s}
        if state.terminal:
            fields["ended_s"] = self.now_s
        self.known[WorkloadId(workload)] = replace(now, **fields)  # type: ignore[arg-type]

    def write_log(self, workload: str, text: str) -> None:
        """The current attempt's driver prints something."""
        key = (WorkloadId(workload), self.known[WorkloadId(workload)].attempt)
        self.log_text[key] = self.log_text.get(key, b"") + text.encode()

    # ------------------------------------------------------------ Backend

    async def submit(self, specs: tuple[WorkloadSpec, ...]) -> tuple[SubmitResult, ...]:
        """Known queue, free id: accepted."""
        results = tuple(SubmitResult(spec.id, self._submit(spec)) for spec in specs)
        return tuple(replace(r, now=self.known[r.workload]) if r.reply.accepted else r for r in results)

    def _submit(self, spec: WorkloadSpec) -> Reply:
        if self.refuse is not None:
            return self.refuse
        before = self.known.get(spec.id)
        if before is not None:
            return ACCEPTED if before.spec == spec else Reply(False, "rejected", "id", f"{spec.id} is another workload")
        if spec.queue not in self.queues:
            return Reply(False, "rejected", "queue", f"there is no queue {spec.queue}")
        self.known[spec.id] = Workload(spec, State.PENDING, self.now_s)
        self.journal.append(Submitted(spec, self.now_s))
        return ACCEPTED

    async def cancel(self, request: CancelRequest) -> Reply:
        """At once."""
        workload = self.known.get(request.workload)
        if workload is None:
            return Reply(False, "rejected", "id", f"there is no workload {request.workload}")
        if not workload.state.terminal:
            self.journal.append(CancelRequested(request.workload, request.reason, self.now_s))
            self.advance(request.workload, State.CANCELLED, cancel_requested=True, reason=request.reason)
        return ACCEPTED

    async def workload(self, workload: WorkloadId) -> Workload | None:
        """From memory."""
        return self.known.get(workload)

    async def wait(self, request: WaitRequest) -> Workload | None:
        """As soon as its user has moved the state that far."""
        give_up_s = time.monotonic() + request.wait_s
        while True:
            known = self.known.get(request.workload)
            if known is None or request.met(known) or time.monotonic() >= give_up_s:
                return known
            await asyncio.sleep(LOOK_S)

    async def held(self, attempt: AttemptRef) -> Allocation | None:
        """What its user put into `seats`."""
        return self.seats.get(attempt.workload)

    async def workloads(self, request: ListRequest) -> WorkloadPage:
        """In the order of submission; the cursor is an offset."""
        found = [w for w in self.known.values() if request.filter.matches(w)]
        if request.newest_first:
            found.reverse()
        if request.cursor and not request.cursor.isdecimal():
            raise SpecError("cursor", f"{request.cursor!r} is not the next_cursor of a page")
        first = int(request.cursor or 0)
        page = tuple(found[first : first + request.limit])
        rest = first + len(page) < len(found)
        return WorkloadPage(page, str(first + len(page)) if rest else "")

    def _row(self, workload: Workload) -> WorkloadRow:
        pending = [w.id for w in self.known.values() if w.state is State.PENDING]
        position = pending.index(workload.id) + 1 if workload.id in pending else None
        return WorkloadRow(workload, position, self.waits.get(workload.id, ()), None, self.seats.get(workload.id))

    async def would(self, spec: WorkloadSpec) -> PlanView:
        """What a plan of these nodes and workloads says; the queues must exist."""
        if spec.queue not in self.queues:
            reply = Reply(False, "rejected", "queue", f"queue {spec.queue!r} does not exist")
            return PlanView(reply, None, 7, self.now_s)
        return PlanView(ACCEPTED, would(self._snapshot(), load_profile(), spec), 7, self.now_s)

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            versions=Versions(1, 1, 1),
            now_s=self.now_s,
            queues=tuple(self.queues[id] for id in sorted(self.queues)),
            workloads=tuple(w for _, w in sorted(self.known.items()) if not w.state.terminal),
            nodes=tuple(self.nodes[id] for id in sorted(self.nodes)),
            allocations=tuple(self.seats[id] for id in sorted(self.seats)),
        )

    async def explain(self, workload: WorkloadId, changes: bool = False) -> ExplainView | None:
        """What the test put into `waits` and `seats`."""
        known = self.known.get(workload)
        if known is None:
            return None
        row = self._row(known)
        found = None
        if changes:
            world, profile = self._snapshot(), load_profile()
            found = smallest_changes(world, profile, plan(world, profile), workload)
        return ExplainView(known, row.position, row.waits, None, row.held, 7, self.now_s, changes=found)

    async def overview(self) -> Overview:
        """All that is here."""
        rows = tuple(self._row(w) for w in self.known.values() if not w.state.terminal)
        queues = tuple(
            QueueRow(
                spec,
                pending=sum(r.workload.state is State.PENDING and r.workload.spec.queue == spec.id for r in rows),
                running=sum(r.workload.state is State.RUNNING and r.workload.spec.queue == spec.id for r in rows),
            )
            for spec in self.queues.values()
        )
        nodes = tuple(NodeRow(node) for node in self.nodes.values())
        versions = Versions(1, 1, 1)
        return replace(
            Overview(self.now_s, "main", 7, self.now_s, 0.01, versions, queues, nodes, rows),
            bypasses=tuple(self.bypasses),
            capacity=self.capacity,
            autoscaler=self.autoscaler,
            reservations=tuple(
                ReservationView(spec, window_of(spec, self.now_s)) for _, spec in sorted(self.reservations.items())
            ),
        )

    async def events(self, request: EventsRequest) -> EventsPage:
        """From the list; sequence numbers count from 1."""
        found = [
            RecordedEvent(n, event)
            for n, event in enumerate(self.journal, start=1)
            if n > request.cursor and request.workload in (None, workload_of(event))
        ]
        page = tuple(found[: request.limit])
        more = len(found) > len(page)
        return EventsPage(page, page[-1].sequence if more else max(request.cursor, len(self.journal)), more, 1)

    async def entries(self, request: EntriesRequest) -> EntriesPage:
        """All of them wait."""
        known = self.known.get(request.array)
        if known is None or known.spec.array is None:
            raise AdmissionError("id", f"there is no array {request.array!r}")
        last = known.spec.array.first + known.spec.array.count
        start = max(request.first, known.spec.array.first)
        end = min(start + request.limit, last)
        rows = tuple(EntryRow(index, State.PENDING) for index in range(start, end))
        return EntriesPage(rows, end if end < last else None)

    async def set_reservation(self, spec: ReservationSpec) -> Reply:
        """Put it in."""
        self.reservations[spec.id] = spec
        return ACCEPTED

    async def delete_reservation(self, reservation: str) -> Reply:
        """Take it out."""
        if self.reservations.pop(reservation, None) is None:
            return Reply(False, "rejected", "id", f"there is no reservation {reservation}")
        return ACCEPTED

    async def set_cron(self, spec: CronSpec) -> Reply:
        """Put it in; it is never due."""
        self.crons_set[spec.id] = spec
        return ACCEPTED

    async def delete_cron(self, cron: str) -> Reply:
        """Take it out."""
        if self.crons_set.pop(cron, None) is None:
            return Reply(False, "rejected", "id", f"there is no cron {cron}")
        return ACCEPTED

    async def crons(self) -> tuple[CronView, ...]:
        """From memory."""
        return tuple(CronView(Cron(self.crons_set[id], self.now_s), None) for id in sorted(self.crons_set))

    async def set_queue(self, spec: QueueSpec) -> Reply:
        """Put it in."""
        self.queues[spec.id] = spec
        self.journal.append(QueueSet(spec, self.now_s))
        return ACCEPTED

    async def set_queue_mode(self, request: QueueModeRequest) -> Reply:
        """Put it in with its mode."""
        if request.queue not in self.queues:
            return Reply(False, "rejected", "queue", f"there is no queue {request.queue}")
        return await self.set_queue(replace(self.queues[request.queue], mode=request.mode))

    async def delete_queue(self, request: DeleteQueueRequest) -> Reply:
        """Take it out; one that is in use only with `drain`, and then it is marked."""
        if request.queue not in self.queues:
            return Reply(False, "rejected", "queue", f"there is no queue {request.queue}")
        if not any(w.spec.queue == request.queue and not w.state.terminal for w in self.known.values()):
            del self.queues[request.queue]
            return ACCEPTED
        if not request.drain:
            return Reply(False, "rejected", "queue", f"queue {request.queue} has workloads that have not ended")
        return await self.set_queue(replace(self.queues[request.queue], mode=QueueMode.DELETING))

    async def renew(self, attempt: AttemptRef) -> bool:
        """True until the test puts the workload into `lapsed`."""
        self.renewals += 1
        workload = self.known.get(attempt.workload)
        return workload is not None and not workload.state.terminal and attempt.workload not in self.lapsed

    async def cordon(self, request: CordonRequest) -> Reply:
        """Mark the node."""
        node = self.nodes.get(request.node)
        if node is None:
            return Reply(False, "rejected", "node", f"there is no node {request.node}")
        health = NodeHealth.CORDONED if request.drain_by_s is None else NodeHealth.DRAINING
        self.nodes[request.node] = replace(
            node, health=health, reason=request.reason, drain_deadline_s=request.drain_by_s
        )
        return ACCEPTED

    async def uncordon(self, request: UncordonRequest) -> Reply:
        """Unmark the node."""
        node = self.nodes.get(request.node)
        if node is None:
            return Reply(False, "rejected", "node", f"there is no node {request.node}")
        self.nodes[request.node] = replace(node, health=NodeHealth.OK, reason="", drain_deadline_s=None)
        return ACCEPTED

    async def devices(self, node: NodeId) -> NodeReading:
        """What the test has put there."""
        return self.readings.get(node, NodeReading())

    async def clear_device(self, node: NodeId, index: int) -> bool:
        """Remembered in `cleared`."""
        self.cleared.append((node, index))
        return any(reading.device.index == index for reading in self.readings.get(node, NodeReading()).devices)

    async def logs(self, workload: WorkloadId, attempt: int, offset: int, wait_s: float = 0.0) -> LogChunk:
        """What was written, at once; it has ended when a later attempt runs or none will."""
        data = self.log_text.get((workload, attempt), b"")
        known = self.known.get(workload)
        running = known is not None and known.attempt == attempt and known.state in LIVE
        return LogChunk(data[offset:].decode(errors="replace"), len(data), not running)

    async def package_exists(self, uri: str) -> bool:
        """From memory."""
        return uri in self.packages

    async def put_package(self, uri: str, data: bytes) -> None:
        """Into memory."""
        if not uri.startswith("gcs://_ray_pkg_"):
            raise SpecError("package", f"{uri} is no package of Ray's")
        self.packages[uri] = data

    async def put_result(self, attempt: AttemptRef, data: bytes) -> Reply:
        """Into memory, if it is the running attempt's."""
        known = self.known.get(attempt.workload)
        if known is None or known.attempt != attempt.attempt:
            return Reply(False, "stale", "", f"attempt {attempt.attempt} of {attempt.workload} is not the current one")
        self.results[attempt.workload] = data
        return ACCEPTED

    async def result(self, workload: WorkloadId) -> bytes | None:
        """From memory."""
        return self.results.get(workload)
