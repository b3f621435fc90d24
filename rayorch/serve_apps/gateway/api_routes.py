"""/api/v1: what the command line, the Python client and programs use. Errors are problem documents."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version as version_of
from typing import Annotated, TypeVar

from fastapi import APIRouter, Header, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from rayorch.config import (
    ClusterDocument,
    Document,
    duration_s,
    load_json,
    parse_document,
)
from rayorch.config.queues import mode_of
from rayorch.core.errors import RayorchError, SpecError
from rayorch.core.payload import Json
from rayorch.core.requests import (
    AttemptRef,
    CancelRequest,
    CordonRequest,
    DeleteQueueRequest,
    EventsRequest,
    ListRequest,
    QueueModeRequest,
    Reply,
    UncordonRequest,
    Until,
    WorkloadFilter,
)
from rayorch.core.types import Kind, MemberPhase, NodeId, QueueId, State, Workload, WorkloadId, WorkloadSpec
from rayorch.core.views import Overview, WorkloadRow
from rayorch.serve_apps.gateway.applying import SETTINGS, apply_document, rank, refused, reply_json, workload_spec
from rayorch.serve_apps.gateway.backend import Backend
from rayorch.serve_apps.gateway.capacity_views import capacity_json
from rayorch.serve_apps.gateway.device_views import reading_json
from rayorch.serve_apps.gateway.follow import RecentOverview, follow_output, wait_for
from rayorch.serve_apps.gateway.json_views import (
    API_VERSION,
    bypass_json,
    event_json,
    explain_json,
    node_json,
    node_names,
    overview_json,
    plan_json,
    workload_json,
)
from rayorch.serve_apps.gateway.problems import NotFoundError, problem, raise_unless_accepted
from rayorch.serve_apps.gateway.queue_views import queue_json
from rayorch.serve_apps.gateway.repartition_views import repartition_json
from rayorch.serve_apps.gateway.settings import GatewaySettings

MAX_PAGE = 1000
MAX_REASON = 1000
KEEP_ALIVE_S = 15.0

MAX_COUNT = 2**63 - 1

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Place = Annotated[int, Query(ge=0, le=MAX_COUNT)]
"""A byte's place in a log, or an event's in the journal."""
Attempt = Annotated[int, Query(ge=1, le=MAX_COUNT)]
Word = TypeVar("Word", State, Kind)


class ApiRoutes:
    """The routes over one backend."""

    def __init__(
        self, backend: Backend, settings: GatewaySettings, recent: RecentOverview, clock: Callable[[], float]
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._recent = recent
        self._clock = clock

    def router(self) -> APIRouter:
        """Everything below /api/v1."""
        router = APIRouter(prefix="/api/v1")
        add = router.add_api_route
        add("/workloads", self.submit, methods=["POST"], status_code=201)
        add("/workloads:batch", self.submit_batch, methods=["POST"])
        add("/workloads", self.list_workloads, methods=["GET"])
        add("/workloads/{workload}", self.get, methods=["GET"])
        add("/workloads/{workload}/explain", self.explain, methods=["GET"])
        add("/plan", self.plan, methods=["POST"])
        add("/workloads/{workload}/wait", self.wait, methods=["GET"])
        add("/workloads/{workload}/cancel", self.cancel, methods=["POST"])
        add("/workloads/{workload}/renew", self.renew, methods=["POST"])
        add("/workloads/{workload}/logs", self.logs, methods=["GET"])
        add("/workloads/{workload}/result", self.put_result, methods=["PUT"])
        add("/workloads/{workload}/result", self.get_result, methods=["GET"])
        add("/events", self.events, methods=["GET"])
        add("/queues", self.queues, methods=["GET"])
        add("/queues/{queue:path}", self.delete_queue, methods=["DELETE"])
        add("/queues/{queue:path}", self.change_queue, methods=["PATCH"])
        add("/nodes", self.nodes, methods=["GET"])
        add("/capacity", self.capacity, methods=["GET"])
        add("/bypasses", self.bypasses, methods=["GET"])
        add("/repartition", self.repartition, methods=["GET"])
        add("/nodes/{node}/devices", self.devices, methods=["GET"])
        add("/nodes/{node}/devices/{index}/clear", self.clear_device, methods=["POST"])
        add("/nodes/{node}/{verb}", self.change_node, methods=["POST"])
        add("/documents", self.apply, methods=["POST"])
        add("/overview", self.overview, methods=["GET"])
        add("/version", self.version, methods=["GET"])
        return router

    # ------------------------------------------------------------ workloads

    async def submit(
        self, request: Request, idempotency_key: Annotated[str | None, Header(max_length=256)] = None
    ) -> Response:
        """One Workload or ServeApp document. The same id (or Idempotency-Key) again is the same workload."""
        document = parse_document(_with_key(load_json(await request.body()), idempotency_key))
        spec = workload_spec(document)
        (result,) = await self._backend.submit((spec,))
        raise_unless_accepted(result.reply)
        known = result.now or await self._known(spec.id)
        return JSONResponse(workload_json(known), 201, {"Location": f"/api/v1/workloads/{spec.id}"})

    async def submit_batch(self, request: Request) -> Response:
        """{"documents": [...]}: each is accepted or refused by itself, in order."""
        documents = self._documents(load_json(await request.body()))
        results: list[Json] = []
        specs: list[tuple[int, WorkloadSpec]] = []
        for n, value in enumerate(documents):
            results.append(None)
            try:
                specs.append((n, workload_spec(parse_document(value))))
            except SpecError as error:
                results[n] = refused("", error.code, error.field, error.message)
        for (n, _), outcome in zip(specs, await self._backend.submit(tuple(s for _, s in specs)), strict=True):
            results[n] = reply_json(outcome.workload, outcome.reply)
        return JSONResponse({"results": results})

    async def list_workloads(
        self,
        state: Annotated[list[str] | None, Query()] = None,
        kind: Annotated[list[str] | None, Query()] = None,
        queue: str = "",
        owner: str = "",
        name: str = "",
        limit: Limit = 100,
        cursor: str = "",
        newest: bool = False,
    ) -> Response:
        """A page of workloads; those that wait come with their reasons."""
        wanted = WorkloadFilter(
            states=tuple(_word(State, s.upper(), "state") for s in state or ()),
            kinds=tuple(_word(Kind, k, "kind") for k in kind or ()),
            queue=QueueId(queue) if queue else None,
            owner=owner,
            name=name,
        )
        page = await self._backend.workloads(ListRequest(wanted, limit, cursor, newest))
        view = await self._recent.get()
        rows, names = {row.workload.id: row for row in view.workloads}, node_names(view)
        items = [workload_json(w, _same_attempt(rows.get(w.id), w), names) for w in page.workloads]
        return JSONResponse({"apiVersion": API_VERSION, "items": items, "nextCursor": page.next_cursor})

    async def _known(self, workload: str) -> Workload:
        known = await self._backend.workload(WorkloadId(workload))
        if known is None:
            raise NotFoundError(f"there is no workload {workload}")
        return known

    async def get(self, workload: str) -> Response:
        """One workload, with its place and its seats."""
        known = await self._known(workload)
        view = await self._recent.get()
        row = next((r for r in view.workloads if r.workload.id == known.id), None)
        return JSONResponse(workload_json(known, _same_attempt(row, known), node_names(view)))

    async def plan(self, request: Request) -> Response:
        """What submitting one Workload or ServeApp document would do; nothing is submitted."""
        spec = workload_spec(parse_document(load_json(await request.body())))
        view = await self._backend.would(spec)
        return JSONResponse(plan_json(view, node_names(await self._recent.get())))

    async def explain(self, workload: str, changes: bool = False) -> Response:
        """All reasons why it is where it is; with `changes=true`, also every single change that would let it start."""
        found = await self._backend.explain(WorkloadId(workload), changes)
        if found is None:
            raise NotFoundError(f"there is no workload {workload}")
        return JSONResponse(explain_json(found, node_names(await self._recent.get())))

    async def wait(
        self, workload: str, until: str = "ended", timeout: Annotated[float, Query(ge=0, le=3600)] = 30.0
    ) -> Response:
        """Answer as soon as it has ended (`until=running`: or runs; `ready`: or its work has begun, with the id of its
        group), or after `timeout` seconds with what it is then."""
        words = {word.value: word for word in (Until.ENDED, Until.RUNNING, Until.READY)}
        if until not in words:
            raise SpecError("until", f"must be one of {', '.join(words)}, got {until!r}")
        timeout = min(timeout, self._settings.max_wait_s)
        known = await wait_for(self._backend, WorkloadId(workload), words[until], timeout)
        group = await self._group_of(known) if words[until] is Until.READY else None
        return JSONResponse(workload_json(known, group_id=group))

    async def _group_of(self, known: Workload) -> str | None:
        """The id of the group of a gang's minimum, None before it is ready."""
        if known.state is not State.RUNNING or known.ready_s is None:
            return None
        held = await self._backend.held(AttemptRef(known.id, known.attempt))
        base = [m for m in held.members if m.surplus == 0] if held is not None else []
        return base[0].group_id if base and all(m.phase is MemberPhase.READY for m in base) else None

    async def cancel(self, workload: str, request: Request) -> Response:
        """Ask for its end; asking again changes nothing."""
        reason = _reason(await _object(request), "cancelled by its owner")
        known = await self._known(workload)
        raise_unless_accepted(await self._backend.cancel(CancelRequest(known.id, reason)))
        return JSONResponse(workload_json(await self._known(workload)))

    async def renew(self, workload: str, request: Request) -> Response:
        """The sign of life of a leased gang's client: {"attempt": n}."""
        attempt = _integer(await _object(request), "attempt")
        return JSONResponse({"alive": await self._backend.renew(AttemptRef(WorkloadId(workload), attempt))})

    async def logs(
        self,
        workload: str,
        attempt: Attempt | None = None,
        offset: Place = 0,
        follow: bool = False,
        notes: bool = False,
    ) -> Response:
        """A piece of an attempt's output as JSON; with `follow`, plain text until the workload has ended."""
        known = await self._known(workload)
        if follow:
            output = follow_output(self._backend, known.id, self._settings, notes)
            return StreamingResponse(_until_error(output), media_type="text/plain; charset=utf-8")
        number = attempt or known.attempt
        if not number:
            return JSONResponse({"attempt": 0, "text": "", "nextOffset": 0, "ended": known.state.terminal})
        chunk = await self._backend.logs(known.id, number, offset)
        return JSONResponse(
            {"attempt": number, "text": chunk.text, "nextOffset": chunk.next_offset, "ended": chunk.ended}
        )

    async def put_result(self, workload: str, request: Request, attempt: Attempt) -> Response:
        """What a submitted function returned or raised, from its driver; refused for a replaced attempt."""
        data = await request.body()
        raise_unless_accepted(await self._backend.put_result(AttemptRef(WorkloadId(workload), attempt), data))
        return Response(status_code=204)

    async def get_result(self, workload: str) -> Response:
        """The bytes that `put_result` got; unpickling them is the client's choice."""
        known = await self._known(workload)
        data = await self._backend.result(known.id)
        if data is None:
            raise NotFoundError(f"workload {workload} has left no result")
        return Response(data, media_type="application/octet-stream")

    # ------------------------------------------------------------ events

    async def events(
        self,
        request: Request,
        since: Place = 0,
        workload: str = "",
        limit: Limit = 100,
        watch: bool = False,
        last_event_id: Annotated[int | None, Header(ge=0, le=MAX_COUNT)] = None,
    ) -> Response:
        """A page of the journal; with `watch` or Accept: text/event-stream, a stream that resumes by event id."""
        since = since if last_event_id is None else last_event_id
        asked = EventsRequest(since, limit, WorkloadId(workload) if workload else None)
        if watch or "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(self._stream(asked), media_type="text/event-stream")
        page = await self._backend.events(asked)
        return JSONResponse(
            {
                "events": [event_json(e) for e in page.events],
                "nextCursor": page.next_cursor,
                "more": page.more,
                "oldest": page.oldest,
            }
        )

    async def _stream(self, asked: EventsRequest) -> AsyncIterator[str]:
        """Server-sent events, with a comment now and then so that a dead client is noticed."""
        cursor, silent_s = asked.cursor, 0.0
        while True:
            page = await self._backend.events(EventsRequest(cursor, asked.limit, asked.workload))
            for event in page.events:
                data = event_json(event)
                yield f"id: {event.sequence}\nevent: {data['type']}\ndata: {json.dumps(data)}\n\n"
            cursor = page.next_cursor
            silent_s = 0.0 if page.events else silent_s + self._settings.poll_s
            if silent_s >= KEEP_ALIVE_S:
                silent_s = 0.0
                yield ": still here\n\n"
            if not page.more:
                await asyncio.sleep(self._settings.poll_s)

    # ------------------------------------------------------------ queues and nodes

    async def queues(self) -> Response:
        """All queues in the order of their paths."""
        view = await self._backend.overview()
        rows = sorted(view.queues, key=lambda row: row.spec.id)
        return JSONResponse({"apiVersion": API_VERSION, "items": [queue_json(q) for q in rows]})

    async def change_queue(self, queue: str, request: Request) -> Response:
        """{"mode": "open" | "hold" | "drain"}: what of the queue starts, and whether what runs stays."""
        mode = mode_of(load_json(await request.body()))
        raise_unless_accepted(await self._backend.set_queue_mode(QueueModeRequest(QueueId(queue), mode)))
        return JSONResponse({"queue": queue, "mode": mode.value})

    async def delete_queue(self, queue: str, drain: bool = False) -> Response:
        """Remove a queue: an empty one at once; with `drain`, one that is in use when its last work has ended."""
        raise_unless_accepted(await self._backend.delete_queue(DeleteQueueRequest(QueueId(queue), drain)))
        return Response(status_code=204)

    async def nodes(self) -> Response:
        """All nodes by name."""
        view = await self._backend.overview()
        rows = sorted(view.nodes, key=lambda row: (row.node.name, row.node.id))
        return JSONResponse({"apiVersion": API_VERSION, "items": [node_json(n) for n in rows]})

    async def capacity(self) -> Response:
        """Node groups with what is under way in them, and what Ray's autoscaler has asked for."""
        view = await self._backend.overview()
        return JSONResponse({"apiVersion": API_VERSION, "kind": "Capacity", **capacity_json(view)})

    async def bypasses(self) -> Response:
        """Ray jobs that run or wait here and did not come through the queues."""
        view = await self._recent.get()
        return JSONResponse({"apiVersion": API_VERSION, "items": [bypass_json(b) for b in view.bypasses]})

    async def repartition(self) -> Response:
        """Which idle MIG GPUs to cut anew for what waits, and how; nothing here does it."""
        view = await self._recent.get()
        return JSONResponse({"apiVersion": API_VERSION, "kind": "Repartition", **repartition_json(view)})

    async def devices(self, node: str) -> Response:
        """Everything that was read last of a node's GPUs, from its agent."""
        view = await self._backend.overview()
        found = _node(view, node)
        name = next(row.node.name for row in view.nodes if row.node.id == found)
        return JSONResponse(
            {"apiVersion": API_VERSION, **reading_json(await self._backend.devices(found), found, name)}
        )

    async def clear_device(self, node: str, index: Annotated[int, Path(ge=0, le=MAX_COUNT)]) -> Response:
        """Forget the XIDs of a device that somebody has dealt with (reset, tested): it is judged anew."""
        found = _node(await self._backend.overview(), node)
        if not await self._backend.clear_device(found, index):
            raise NotFoundError(f"node {node} has no device {index} that is read")
        return JSONResponse({"node": found, "index": index, "cleared": True})

    async def change_node(self, node: str, verb: str, request: Request) -> Response:
        """cordon, drain ({"deadline": "10m"}) or uncordon a node, named by its id, an id's beginning or its name."""
        body = await _object(request)
        view = await self._backend.overview()
        found = _node(view, node)
        reason = _reason(body, f"{verb} by an operator")
        reply: Reply
        if verb == "uncordon":
            reply = await self._backend.uncordon(UncordonRequest(found, reason))
        elif verb == "cordon":
            reply = await self._backend.cordon(CordonRequest(found, reason))
        elif verb == "drain":
            try:
                deadline_s = duration_s(body.get("deadline", "10m"))
            except ValueError as error:
                raise SpecError("deadline", str(error)) from error
            reply = await self._backend.cordon(CordonRequest(found, reason, self._clock() + deadline_s))
        else:
            return problem("not_found", f"a node can't be asked to {verb}; cordon, drain or uncordon it")
        raise_unless_accepted(reply)
        return JSONResponse({"node": found, "verb": verb, "reason": reason})

    # ------------------------------------------------------------ documents, overview, version

    def _documents(self, body: Json) -> list[Json]:
        if not isinstance(body, dict) or set(body) != {"documents"} or not isinstance(body["documents"], list):
            raise SpecError("", 'must be {"documents": [...]}')
        documents = body["documents"]
        if len(documents) > self._settings.max_batch:
            raise SpecError("documents", f"has {len(documents)} entries, at most {self._settings.max_batch}")
        return documents

    async def apply(self, request: Request) -> Response:
        """{"documents": [...]}: all are checked first, then queues are set and workloads submitted, in order."""
        parsed: list[Document] = []
        for n, value in enumerate(self._documents(load_json(await request.body()))):
            document = parse_document(value, f"documents[{n}]")
            if isinstance(document, ClusterDocument):
                raise SpecError(f"documents[{n}].kind", "Cluster is read when rayorch starts: rayorch up -f")
            try:
                _ = document.to_core() if isinstance(document, SETTINGS) else workload_spec(document)
            except SpecError as error:
                raise SpecError(f"documents[{n}].{error.field}", error.message) from error
            parsed.append(document)
        results: list[Json] = []
        # Parents before children, queues and reservations before what is submitted to them.
        parsed.sort(key=rank)
        for document in parsed:
            results.append({"kind": document.kind, **await apply_document(self._backend, document)})
        return JSONResponse({"results": results})

    async def overview(self) -> Response:
        """What the page shows, as data."""
        return JSONResponse(overview_json(await self._recent.get()))

    async def version(self) -> Response:
        """What speaks here."""
        return JSONResponse(
            {
                "apiVersion": API_VERSION,
                "rayorch": version_of("rayorch"),
                "ray": version_of("ray"),
                "instance": self._settings.instance,
            }
        )


# ---------------------------------------------------------------- request parts


def _with_key(value: Json, key: str | None) -> Json:
    """With an Idempotency-Key and no id of its own, a document gets an id that the key determines."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if key is None or not isinstance(value, dict) or not isinstance(metadata, dict) or metadata.get("id"):
        return value
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return {**value, "metadata": {**metadata, "id": f"{str(metadata.get('name'))[:100]}-{digest}"}}


def _same_attempt(row: WorkloadRow | None, workload: Workload) -> WorkloadRow | None:
    """The row, unless it was taken when the workload was in another state: then its reasons are not today's."""
    if row is None or (row.workload.state, row.workload.attempt) != (workload.state, workload.attempt):
        return None
    return row


async def _object(request: Request) -> dict[str, Json]:
    body = await request.body()
    value = load_json(body) if body else {}
    if not isinstance(value, dict):
        raise SpecError("", "must be a JSON object")
    return value


def _reason(body: dict[str, Json], default: str) -> str:
    reason = body.get("reason", default)
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        raise SpecError("reason", f"must be text of at most {MAX_REASON} characters")
    return reason


def _integer(body: dict[str, Json], name: str) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(name, f"must be a whole number, got {value!r}")
    return value


def _word(words: type[Word], value: str, field: str) -> Word:
    try:
        return words(value)
    except ValueError as error:
        raise SpecError(field, f"must be one of {', '.join(words)}, got {value!r}") from error


def _node(view: Overview, wanted: str) -> NodeId:
    """By id, by name, or by an unambiguous beginning of an id."""
    exact = [row.node.id for row in view.nodes if wanted in (row.node.id, row.node.name)]
    found = exact or [row.node.id for row in view.nodes if len(wanted) >= 4 and row.node.id.startswith(wanted)]
    if not found:
        raise NotFoundError(f"there is no node {wanted}")
    if len(found) > 1:
        raise SpecError("node", f"{wanted} names {len(found)} nodes; use the id")
    return found[0]


async def _until_error(output: AsyncIterator[str]) -> AsyncIterator[str]:
    """A stream that has begun can't change its status: the error becomes its last line."""
    try:
        async for text in output:
            yield text
    except RayorchError as error:
        yield f"[rayorch] the log ends here: {error}\n"
