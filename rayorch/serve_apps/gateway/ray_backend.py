"""The port over the named actors of a running cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from rayorch.actors.names import agent_name, allocator_name, controller_name, find, logs_name, queues_name
from rayorch.actors.packages import check_runtime_env, package_exists, store_package
from rayorch.actors.results import ResultSettings, results_name, start_result_store
from rayorch.core.cron import CronSpec, CronView
from rayorch.core.devices import NodeReading
from rayorch.core.errors import ClusterError, RayorchError, SpecError
from rayorch.core.payload import Payload
from rayorch.core.queues import QueueChanges
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
    refusal,
)
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import Allocation, NodeId, QueueSpec, Workload, WorkloadId, WorkloadSpec
from rayorch.core.views import ExplainView, LogChunk, Overview, PlanView

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 30.0
WHAT_IF_S = 120.0
"""Further time for answers that plan anew some tens of times."""
"""How long an owner may take to answer; one restart of an actor fits in."""
WATCH_AGE_S = 0.2
"""How old the copy of the workloads may be that watchers share, so that a thousand log tails ask once."""
LOG_BYTES = 2**20

T = TypeVar("T")


class RayBackend:
    """Every question goes to the fact's owner. `folder`: where packages and results are kept, on the head node."""

    def __init__(self, instance: str = "main", folder: Path | None = None) -> None:
        self._instance = instance
        self._folder = folder
        self._handles: dict[str, Any] = {}
        self._copy = _WorkloadCopy(self._changes_since)

    def _actor(self, name: str) -> Any:
        if name not in self._handles:
            self._handles[name] = find(name)
        return self._handles[name]

    async def _call(self, name: str, method: str, *arguments: object, wait_s: float = 0.0) -> Any:
        """Ask an actor; ClusterError when it does not answer, the owner's own error when it refuses.

        `wait_s`: how long it was asked to wait before it answers.
        """
        try:
            handle = self._actor(name)
            answer = _awaited(getattr(handle, method).remote(*arguments))
            return await asyncio.wait_for(answer, wait_s + CALL_TIMEOUT_S)
        except RayTaskError as error:
            if isinstance(error.cause, RayorchError):
                raise error.cause from error
            raise ClusterError(f"{name} failed at {method}: {error.cause}") from error
        except (RayActorError, GetTimeoutError, TimeoutError) as error:
            self._handles.pop(name, None)  # the actor may have been made anew
            raise ClusterError(f"{name} does not answer: {error}") from error
        except RayError as error:
            raise ClusterError(f"{name}: {error}") from error

    async def _owner(self, method: str, *arguments: object, wait_s: float = 0.0) -> Any:
        return await self._call(queues_name(self._instance), method, *arguments, wait_s=wait_s)

    async def _changes_since(self, version: int, renewals: int) -> QueueChanges:
        changes: QueueChanges = await self._owner("changes_since", (version, renewals))
        return changes

    # ------------------------------------------------------------ workloads

    async def submit(self, specs: tuple[WorkloadSpec, ...]) -> tuple[SubmitResult, ...]:
        """One journal write for all. A single one is answered with the workload, which saves asking for it."""
        refused = {n: reply for n, spec in enumerate(specs) if (reply := _environment_refused(spec)) is not None}
        good = tuple(spec for n, spec in enumerate(specs) if n not in refused)
        taken: tuple[SubmitResult, ...] = ()
        if len(good) == 1:
            taken = (await self._owner("submit", good[0]),)
        elif good:
            taken = await self._owner("submit_many", good)
        self._copy.expire()
        rest = iter(taken)
        return tuple(SubmitResult(s.id, refused[n]) if n in refused else next(rest) for n, s in enumerate(specs))

    async def cancel(self, request: CancelRequest) -> Reply:
        """To the queue owner."""
        reply: Reply = await self._owner("cancel", request)
        self._copy.expire()
        return reply

    async def workload(self, workload: WorkloadId) -> Workload | None:
        """From a copy that is at most WATCH_AGE_S old, newer than any command that went through this gateway."""
        known = await self._copy.get(workload)
        if known is None and "." in workload:  # perhaps an array's entry that is no workload of its own now
            known = await self._owner("workload", workload)
        return known

    async def wait(self, request: WaitRequest) -> Workload | None:
        """A long poll at the queue owner, which answers when it happens."""
        workload: Workload | None = await self._owner("wait", request, wait_s=request.wait_s)
        self._copy.expire()  # whoever has heard of a change must not be told an older state afterwards
        return workload

    async def held(self, attempt: AttemptRef) -> Allocation | None:
        """From the allocator, whose books are ahead of everyone's view of them."""
        allocation: Allocation | None = await self._call(allocator_name(self._instance), "held", attempt)
        return allocation

    async def workloads(self, request: ListRequest) -> WorkloadPage:
        """To the queue owner."""
        page: WorkloadPage = await self._owner("list_workloads", request)
        return page

    async def would(self, spec: WorkloadSpec) -> PlanView:
        """The door's answer is the queue owner's, the plan is the controller's."""
        refused = _environment_refused(spec)
        reply: Reply = refused if refused is not None else await self._owner("check", spec)
        if not reply.accepted:
            overview = await self.overview()
            return PlanView(reply, None, overview.cycle, overview.last_cycle_s)
        view: PlanView | None = await self._call(controller_name(self._instance), "would", spec, wait_s=WHAT_IF_S)
        if view is None:
            raise ClusterError("the controller has not looked at the cluster yet; ask again in a moment")
        return view

    async def explain(self, workload: WorkloadId, changes: bool = False) -> ExplainView | None:
        """The controller's view; the queue owner's state when the controller does not know the workload."""
        wait_s = WHAT_IF_S if changes else 0.0
        view: ExplainView | None = await self._call(
            controller_name(self._instance), "explain", workload, changes, wait_s=wait_s
        )
        known = await self.workload(workload)
        if known is None:
            return None
        if view is None or (view.workload.state, view.workload.attempt) != (known.state, known.attempt):
            overview = await self.overview()
            return ExplainView(known, None, (), None, None, overview.cycle, overview.last_cycle_s)
        return view

    async def overview(self) -> Overview:
        """The controller's view of its last turn."""
        view: Overview = await self._call(controller_name(self._instance), "overview")
        return view

    async def events(self, request: EventsRequest) -> EventsPage:
        """From the journal."""
        page: EventsPage = await self._owner("events_since", request)
        return page

    async def renew(self, attempt: AttemptRef) -> bool:
        """To the queue owner."""
        alive: bool = await self._owner("renew", attempt)
        return alive

    # ------------------------------------------------------------ queues and nodes

    async def set_queue(self, spec: QueueSpec) -> Reply:
        """To the queue owner."""
        reply: Reply = await self._owner("set_queue", spec)
        return reply

    async def set_queue_mode(self, request: QueueModeRequest) -> Reply:
        """To the queue owner."""
        reply: Reply = await self._owner("set_queue_mode", request)
        return reply

    async def delete_queue(self, request: DeleteQueueRequest) -> Reply:
        """To the queue owner."""
        reply: Reply = await self._owner("delete_queue", request)
        return reply

    async def entries(self, request: EntriesRequest) -> EntriesPage:
        """To the queue owner."""
        page: EntriesPage = await self._owner("entries", request)
        return page

    async def set_reservation(self, spec: ReservationSpec) -> Reply:
        """To the queue owner."""
        reply: Reply = await self._owner("set_reservation", spec)
        return reply

    async def delete_reservation(self, reservation: str) -> Reply:
        """To the queue owner."""
        reply: Reply = await self._owner("delete_reservation", reservation)
        return reply

    async def set_cron(self, spec: CronSpec) -> Reply:
        """To the queue owner."""
        reply: Reply = await self._owner("set_cron", spec)
        return reply

    async def delete_cron(self, cron: str) -> Reply:
        """To the queue owner."""
        reply: Reply = await self._owner("delete_cron", cron)
        return reply

    async def crons(self) -> tuple[CronView, ...]:
        """To the queue owner."""
        found: tuple[CronView, ...] = await self._owner("crons")
        return found

    async def cordon(self, request: CordonRequest) -> Reply:
        """To the queue owner, which journals it."""
        reply: Reply = await self._owner("cordon", request)
        return reply

    async def uncordon(self, request: UncordonRequest) -> Reply:
        """To the queue owner, which journals it."""
        reply: Reply = await self._owner("uncordon", request)
        return reply

    async def devices(self, node: NodeId) -> NodeReading:
        """From the node's agent."""
        reading: NodeReading = await self._call(agent_name(self._instance, node), "reading")
        return reading

    async def clear_device(self, node: NodeId, index: int) -> bool:
        """To the node's agent."""
        cleared: bool = await self._call(agent_name(self._instance, node), "clear_device", index)
        return cleared

    # ------------------------------------------------------------ output, packages, results

    async def logs(self, workload: WorkloadId, attempt: int, offset: int, wait_s: float = 0.0) -> LogChunk:
        """From the log store; with `wait_s` it answers as soon as something comes."""
        name = logs_name(self._instance)
        chunk: LogChunk
        if wait_s > 0:
            chunk = await self._call(name, "follow", workload, attempt, offset, wait_s)
        else:
            chunk = await self._call(name, "read", workload, attempt, offset, LOG_BYTES)
        return chunk

    async def package_exists(self, uri: str) -> bool:
        """Asks Ray's control store, which then keeps it for a while."""
        return await asyncio.to_thread(package_exists, uri, self._subfolder("packages"))

    async def put_package(self, uri: str, data: bytes) -> None:
        """Into our folder and Ray's control store."""
        await asyncio.to_thread(store_package, uri, data, self._subfolder("packages"))

    async def put_result(self, attempt: AttemptRef, data: bytes) -> Reply:
        """To the result store."""
        self._ensure_results()
        reply: Reply = await self._call(results_name(self._instance), "put", attempt, data)
        return reply

    async def result(self, workload: WorkloadId) -> bytes | None:
        """From the result store."""
        self._ensure_results()
        data: bytes | None = await self._call(results_name(self._instance), "get", workload)
        return data

    def start_results(self) -> None:
        """Make sure that the result store runs, so that drivers can hand their results in."""
        self._ensure_results()

    def _ensure_results(self) -> None:
        name = results_name(self._instance)
        folder = self._subfolder("results")
        if name in self._handles:
            return
        if folder is None:
            raise ClusterError("this gateway was given no folder for results")
        self._handles[name] = start_result_store(ResultSettings(str(folder), self._instance))

    def _subfolder(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / name


def _environment_refused(spec: WorkloadSpec) -> Reply | None:
    """The refusal of a runtime environment that Ray itself would refuse at every start, None for a good one."""
    try:
        check_runtime_env(Payload.of_text(spec.payload).runtime_env)
    except SpecError as error:
        return refusal(error)
    return None


async def _awaited(reference: Awaitable[T]) -> T:
    """wait_for wants a coroutine, not an object reference."""
    return await reference


class _WorkloadCopy:
    """All workloads by id, brought up to date with one question however many ask."""

    def __init__(self, changes_since: Callable[[int, int], Awaitable[QueueChanges]]) -> None:
        self._changes_since = changes_since
        self._version = 0
        self._renewals = 0
        self._known: dict[WorkloadId, Workload] = {}
        self._asked_s = float("-inf")
        self._expired = 0
        self._lock = asyncio.Lock()

    def expire(self) -> None:
        """Whoever asks next sees at least what is true now."""
        self._asked_s = float("-inf")
        self._expired += 1

    async def get(self, workload: WorkloadId) -> Workload | None:
        async with self._lock:
            if time.monotonic() - self._asked_s > WATCH_AGE_S:
                asked_s, expired = time.monotonic(), self._expired
                changes = await self._changes_since(self._version, self._renewals)
                if changes.full:
                    self._known = {}
                self._known.update((w.id, w) for w in changes.workloads)
                for gone in (*changes.forgotten, *changes.folded):
                    self._known.pop(gone, None)
                self._version, self._renewals = changes.version, changes.renewals
                if expired == self._expired:  # else a command went through while the owner answered
                    self._asked_s = asked_s
            return self._known.get(workload)
