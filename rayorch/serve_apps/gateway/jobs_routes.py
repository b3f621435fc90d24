"""Ray's Jobs routes, so that the stock `ray job` command and JobSubmissionClient submit to our queues.

The paths, statuses and error bodies (plain text) are those of Ray's own dashboard. A log tail stays open until
the workload has ended, because Ray's command takes an early end for success.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from rayorch.core.errors import AdmissionError, ClusterError, RayorchError, SpecError
from rayorch.core.requests import CancelRequest, ListRequest
from rayorch.core.types import QueueId, State, Workload, WorkloadId
from rayorch.core.views import WorkloadRow
from rayorch.serve_apps.gateway.backend import Backend
from rayorch.serve_apps.gateway.follow import RecentOverview, follow_output
from rayorch.serve_apps.gateway.jobs_form import (
    QUEUE_HEADER,
    asked_for,
    job_details,
    refused_details,
    workload_of_request,
)
from rayorch.serve_apps.gateway.problems import ConflictError, NotFoundError, raise_unless_accepted
from rayorch.serve_apps.gateway.refusals import Refusals
from rayorch.serve_apps.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

JOBS_API_VERSION = "4"
LIST_LIMIT = 10_000
PAGE = 1000
MESSAGE_WAIT_S = 1.0
"""KubeRay's operator gives each answer two seconds; the view of all workloads may take longer when there are many."""
LOGS_LIMIT_BYTES = 64 * 1024 * 1024
NORMAL_CLOSURE, TRY_AGAIN_LATER, INTERNAL_ERROR = 1000, 1013, 1011

_STATUS: tuple[tuple[type[RayorchError], int], ...] = (
    (SpecError, 400),
    (ConflictError, 400),  # as Ray answers for a submission id that is taken
    (AdmissionError, 400),
    (NotFoundError, 404),
    (ClusterError, 503),
)


class JobsRoutes:
    """The routes over one backend."""

    def __init__(self, backend: Backend, settings: GatewaySettings, recent: RecentOverview) -> None:
        self._backend = backend
        self._settings = settings
        self._recent = recent
        self._refusals = Refusals(time.time)
        self._streams = 0
        self._asked: set[asyncio.Task[WorkloadRow | None]] = set()

    def router(self) -> APIRouter:
        """Everything that Ray's clients ask for."""
        router = APIRouter(include_in_schema=False)
        add = router.add_api_route
        add("/api/version", self.version, methods=["GET"])
        add("/api/packages/{protocol}/{name}", self.get_package, methods=["GET"])
        add("/api/packages/{protocol}/{name}", self.put_package, methods=["PUT"])
        for path in ("/api/jobs/", "/api/jobs"):
            add(path, self.submit, methods=["POST"])
            add(path, self.list, methods=["GET"])
        add("/api/jobs/{job}", self.get, methods=["GET"])
        add("/api/jobs/{job}", self.delete, methods=["DELETE"])
        add("/api/jobs/{job}/stop", self.stop, methods=["POST"])
        add("/api/jobs/{job}/logs", self.logs, methods=["GET"])
        # KubeRay writes an id into the path as it is: one with a slash is no id of ours, and it must hear so.
        add("/api/jobs/{job:path}", self.get, methods=["GET"])
        router.add_api_websocket_route("/api/jobs/{job}/logs/tail", self.tail)
        return router

    async def version(self) -> Response:
        """What Ray's client checks before anything else."""
        ray_version = version("ray")
        return JSONResponse(
            {
                "version": JOBS_API_VERSION,
                "ray_version": ray_version,
                "ray_commit": "",
                "session_name": f"rayorch-{self._settings.instance}",
            }
        )

    async def get_package(self, protocol: str, name: str) -> Response:
        """200 when it is there, 404 when it must be uploaded."""

        async def work() -> Response:
            uri = f"{protocol}://{name}"
            if await self._backend.package_exists(uri):
                return Response()
            return PlainTextResponse(f"Package {uri} does not exist", 404)

        return await _as_ray_answers(work)

    async def put_package(self, protocol: str, name: str, request: Request) -> Response:
        """Store an archive."""

        async def work() -> Response:
            await self._backend.put_package(f"{protocol}://{name}", await request.body())
            return Response()

        return await _as_ray_answers(work)

    async def submit(
        self, request: Request, queue: Annotated[str | None, Header(alias=QUEUE_HEADER)] = None
    ) -> Response:
        """Enqueue; a repeated submission id with the same request is the same job."""

        async def work() -> Response:
            body = await request.body()
            try:
                spec = workload_of_request(body, queue, self._settings.default_queue, "")
            except SpecError as error:
                self._refusals.note(*asked_for(body), str(error))
                raise
            (result,) = await self._backend.submit((spec,))
            try:
                raise_unless_accepted(result.reply)
            except (SpecError, AdmissionError) as error:
                if not await self._full(spec.queue):
                    self._refusals.note(*asked_for(body), str(error))
                raise
            self._refusals.forget(spec.id)
            return JSONResponse({"job_id": spec.id, "submission_id": spec.id})

        return await _as_ray_answers(work)

    async def _full(self, queue: QueueId) -> bool:
        """Whether the queue, or one above it, has as many waiting as it may: the same request may be taken later."""
        return any(
            row.spec.max_pending is not None and row.pending >= row.spec.max_pending
            for row in (await self._recent.get()).queues
            if queue == row.spec.id or queue.startswith(f"{row.spec.id}/")
        )

    async def list(self) -> Response:
        """All of them, newest first, ended ones included, up to a bound."""
        found: list[Workload] = []
        cursor = ""
        while len(found) < LIST_LIMIT:
            page = await self._backend.workloads(ListRequest(limit=PAGE, cursor=cursor, newest_first=True))
            found += page.workloads
            cursor = page.next_cursor
            if not cursor:
                break
        return JSONResponse([job_details(w) for w in found])

    async def _known(self, job: str) -> Workload:
        known = await self._backend.workload(WorkloadId(job))
        if known is None:
            raise NotFoundError(f"Job {job} does not exist")
        return known

    async def get(self, job: str) -> Response:
        """One job; while it waits, the message says where in the queue and why. One that was refused has failed."""

        async def work() -> Response:
            known = await self._backend.workload(WorkloadId(job))
            if known is not None:
                return JSONResponse(job_details(known, await self._waiting_message(known)))
            refusal = self._refusals.get(job)
            if refusal is None:
                raise NotFoundError(f"Job {job} does not exist")
            return JSONResponse(refused_details(refusal))

        return await _as_ray_answers(work)

    def _answered(self, asked: asyncio.Task[WorkloadRow | None]) -> None:
        self._asked.discard(asked)
        error = None if asked.cancelled() else asked.exception()
        if isinstance(error, ClusterError):
            log.info("why a workload waits is not known: %s", error)
        elif error is not None:
            log.error("why a workload waits was not found out", exc_info=error)

    async def _waiting_message(self, workload: Workload) -> str:
        """Where it waits and why; empty when that takes too long or can't be had: the state is not held up by it."""
        if workload.state is not State.PENDING:
            return ""
        asked = asyncio.create_task(self._recent.row(workload.id))
        self._asked.add(asked)  # it goes on when nobody waits for it any more, and the next one finds what it found
        asked.add_done_callback(self._answered)
        done, _ = await asyncio.wait({asked}, timeout=MESSAGE_WAIT_S)
        row = asked.result() if done and asked.exception() is None else None
        if row is None:
            return ""
        reasons = "; ".join(f"{w.reason.value}: {w.detail}" for w in row.waits if w.blocks)
        return f"In queue {workload.spec.queue}, position {row.position}. {reasons}".strip()

    async def stop(self, job: str) -> Response:
        """Cancel; False when it had ended already."""

        async def work() -> Response:
            known = await self._known(job)
            if known.state.terminal:
                return JSONResponse({"stopped": False})
            raise_unless_accepted(await self._backend.cancel(CancelRequest(known.id, "stopped through the Jobs API")))
            return JSONResponse({"stopped": True})

        return await _as_ray_answers(work)

    async def delete(self, job: str) -> Response:
        """Refused: what was accepted stays in the journal."""

        async def work() -> Response:
            known = await self._known(job)
            if not known.state.terminal:
                raise SpecError("", f"Job {job} is {JOB_RUNNING}; stop it first")
            return PlainTextResponse("rayorch keeps the records of ended jobs; nothing was deleted", 400)

        return await _as_ray_answers(work)

    async def logs(self, job: str) -> Response:
        """The current attempt's output so far."""

        async def work() -> Response:
            known = await self._known(job)
            text, offset = "", 0
            while known.attempt and len(text) < LOGS_LIMIT_BYTES:
                chunk = await self._backend.logs(known.id, known.attempt, offset)
                text += chunk.text
                if chunk.next_offset == offset:
                    break
                offset = chunk.next_offset
            return JSONResponse({"logs": text})

        return await _as_ray_answers(work)

    async def tail(self, websocket: WebSocket, job: str) -> None:
        """Queue position while it waits, then output, until the job has ended."""
        if await self._backend.workload(WorkloadId(job)) is None:
            await websocket.close(INTERNAL_ERROR)
            return
        await websocket.accept()
        if self._streams >= self._settings.max_streams:
            await websocket.close(TRY_AGAIN_LATER, "too many log tails")
            return
        self._streams += 1
        gone = asyncio.create_task(_until_gone(websocket))
        sender = asyncio.create_task(self._send_output(websocket, WorkloadId(job)))
        try:
            await asyncio.wait((gone, sender), return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                failure = sender.exception()
                if failure is not None:
                    log.error("tail of %s failed", job, exc_info=failure)
                await websocket.close(NORMAL_CLOSURE if failure is None else INTERNAL_ERROR)
        finally:
            self._streams -= 1
            for task in (gone, sender):
                task.cancel()
            await asyncio.gather(gone, sender, return_exceptions=True)

    async def _send_output(self, websocket: WebSocket, workload: WorkloadId) -> None:
        async for text in follow_output(self._backend, workload, self._settings):
            await websocket.send_text(text)


JOB_RUNNING = "not in a terminal state"


async def _until_gone(websocket: WebSocket) -> None:
    """Return when the client has hung up; what it sends is not looked at."""
    try:
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass
    except WebSocketDisconnect:
        return


async def _as_ray_answers(work: Callable[[], Awaitable[Response]]) -> Response:
    """Errors as plain text with Ray's statuses."""
    try:
        return await work()
    except RayorchError as error:
        for kind, status in _STATUS:
            if isinstance(error, kind):
                return PlainTextResponse(str(error), status)
        raise
