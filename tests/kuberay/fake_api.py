"""A small Kubernetes API server for tests: the routes that KubeRay's objects and pods need, and faults on demand.

The same tests run against the real server where it can be built (`crd_server.py`), which keeps this one honest.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from rayorch.adapters.kuberay import KubeRaySettings
from tests.kuberay.crd import definitions
from tests.kuberay.store import Refused, Store, Thing, json_patched, merge_patched

POLL_S = 0.01
START_TIMEOUT_S = 20.0
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"


@dataclass
class Fault:
    """What goes wrong with the next `times` requests that match.

    `status`: this answer instead of the true one; 0: the connection is cut. `after`: the request is carried out first.
    `cut_body`: the true answer, cut off in the middle. `body`: this body instead.
    """

    status: int = 0
    method: str = ""
    path: str = ""
    query: str = ""  # a parameter that the request has
    times: int = 1
    after: bool = False
    cut_body: bool = False
    body: str | None = None
    delay_s: float = 0.0
    message: str = "a fault of the test's making"


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any


@dataclass
class FakeApi:
    """Start it as a context manager; `store` is what it keeps. `core` False: no pods, as on the real CRD server."""

    crds: Path | None = None
    core: bool = True
    token: str = ""  # asked of every request, empty: of none
    tls: tuple[Path, Path] | None = None  # certificate and key: https
    bookmark_s: float = 0.2
    page: int = 0  # items of a list's page at most, 0: as many as are asked for
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    forbidden: set[str] = field(default_factory=set)  # "patch rayclusters", "list pods"
    open_watches: int = 0

    name = "fake"  # no annotation: the same for all

    def __post_init__(self) -> None:
        self.store = Store(definitions(self.crds) if self.crds else {})
        self.url = ""
        self._pages: dict[str, tuple[list[Thing], str]] = {}
        self._cut: list[tuple[str, Thing | None]] = []  # watches to end: (plural, ERROR event or None to drop)
        self._cuts = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._started = threading.Event()

    def __enter__(self) -> FakeApi:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="fake-api", daemon=True)
        self._thread.start()
        assert self._started.wait(START_TIMEOUT_S)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._loop is not None and self._ended is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(START_TIMEOUT_S)

    def create(self, plural: str, thing: Thing, strict: bool = False) -> Thing:
        """A new object; Refused as the server says."""
        return self.store.create(plural, thing, strict=strict)

    def get(self, plural: str, name: str) -> Thing:
        """The object."""
        return self.store.get(plural, name)

    def list(self, plural: str) -> list[Thing]:
        """All of one kind."""
        return self.store.list(plural)

    def change(self, plural: str, name: str, edit: Callable[[Thing], None], status: bool = False) -> Thing:
        """Edit the newest version."""
        return self.store.change(plural, name, edit, status=status)

    def update(self, plural: str, name: str, thing: Thing) -> Thing:
        """Replace; 409 when `thing` carries an older version."""
        return self.store.update(plural, name, thing)

    def delete(self, plural: str, name: str) -> None:
        """Take it away."""
        self.store.delete(plural, name)

    def settings(self, folder: Path, cluster: str = "demo", **more: Any) -> KubeRaySettings:
        """How a client reaches this server."""
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig(self.url, {"token": self.token} if self.token else {})))
        return KubeRaySettings(cluster=cluster, kubeconfig=str(path), **more)

    def fail(self, **fault: Any) -> Fault:
        """Make something go wrong; see `Fault`."""
        made = Fault(**fault)
        self.faults.append(made)
        return made

    def end_watches(self, code: int = 0, plural: str = "") -> None:
        """End the open watches: with an ERROR event of that code, or by cutting the connection (0)."""
        error = Refused(code, "Expired" if code == 410 else "InternalError", "too old resource version").status()
        self._cut.append((plural, error if code else None))

    def sent(self, method: str) -> list[Request]:
        """The requests of one method."""
        return [request for request in self.requests if request.method == method]

    # ------------------------------------------------------------ serving

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**28)
        for prefix in ("/apis/ray.io/v1", "/api/v1"):
            base = prefix + "/namespaces/{namespace}/{plural}"
            for path in (base, base + "/{name}", base + "/{name}/{sub}"):
                app.router.add_route("*", path, self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if self.tls else None
        if secure is not None and self.tls is not None:
            secure.load_cert_chain(*self.tls)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=secure)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{port}"
        self._started.set()
        await self._ended.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        seen = Request(request.method, request.path, dict(request.query), request.content_type, text)
        self.requests.append(seen)
        fault = self._fault(seen)
        if fault is not None and fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        try:
            if fault is not None and not fault.after and not fault.cut_body:
                return self._faulty(request, fault)
            if self.token and request.headers.get("Authorization", "").split()[-1:] != [self.token]:
                raise Refused(401, "Unauthorized", "Unauthorized")
            if request.query.get("watch") in ("true", "True", "1"):
                self._allow("watch", request)
                return await self._watch(request)
            answer = self._answer(request, text)
        except Refused as refused:
            return web.json_response(refused.status(), status=refused.code)
        if fault is not None and fault.after:
            return self._faulty(request, fault)
        if fault is not None and fault.cut_body:
            return await _half(request, json.dumps(answer))
        return web.json_response(answer)

    def _fault(self, seen: Request) -> Fault | None:
        for fault in self.faults:
            matches = fault.method in ("", seen.method) and fault.path in seen.path
            if fault.times > 0 and matches and (not fault.query or fault.query in seen.query):
                fault.times -= 1
                return fault
        return None

    def _faulty(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.body is not None:
            return web.Response(text=fault.body, status=fault.status or 200, content_type="application/json")
        if fault.status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response(Refused(fault.status, "Fault", fault.message).status(), status=fault.status)

    def _allow(self, verb: str, request: web.Request) -> None:
        plural = request.match_info["plural"]
        if plural == "pods" and not self.core:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if f"{verb} {plural}" in self.forbidden:
            raise Refused(403, "Forbidden", f"{plural}.ray.io is forbidden: User cannot {verb} resource {plural!r}")

    def _answer(self, request: web.Request, text: str) -> Thing:
        plural, namespace = request.match_info["plural"], request.match_info["namespace"]
        name, sub = request.match_info.get("name"), request.match_info.get("sub")
        strict = request.query.get("fieldValidation") == "Strict"
        if name is None:
            if request.method == "POST":
                self._allow("create", request)
                return self.store.create(plural, json.loads(text), namespace, strict)
            self._allow("list", request)
            return self._list(request)
        if request.method == "GET":
            self._allow("get", request)
            return self.store.get(plural, name, namespace)
        if request.method == "DELETE":
            self._allow("delete", request)
            return self.store.delete(plural, name, namespace)
        if request.method == "PUT":
            self._allow("update", request)
            return self.store.update(plural, name, json.loads(text), namespace, sub == "status", strict)
        self._allow("patch", request)
        return self._patch(request, plural, name, namespace, json.loads(text), sub == "status", strict)

    def _patch(
        self, request: web.Request, plural: str, name: str, namespace: str, body: Any, status: bool, strict: bool
    ) -> Thing:
        with self.store.lock:
            old = self.store.get(plural, name, namespace)
            if request.content_type == JSON_PATCH:
                new = json_patched(old, body)
            elif request.content_type == MERGE_PATCH:
                if isinstance(body, list):
                    raise Refused(400, "BadRequest", "json: cannot unmarshal array into Go value of type map")
                new = merge_patched(old, body)
            else:
                raise Refused(415, "UnsupportedMediaType", f"the body of the request was in {request.content_type}")
            return self.store.update(plural, name, new, namespace, status, strict)

    def _list(self, request: web.Request) -> Thing:
        plural, token = request.match_info["plural"], request.query.get("continue", "")
        with self.store.lock:
            if token:
                if token not in self._pages or int(self._pages[token][1]) < self.store.expired_before:
                    raise Refused(410, "Expired", "The provided continue parameter is too old")
                items, version = self._pages.pop(token)
            else:
                items = self.store.list(plural, request.match_info["namespace"], _chosen(request))
                version = str(self.store.version)
        size = min(x for x in (self.page, int(request.query.get("limit", 0)), len(items) or 1) if x)
        meta: Thing = {"resourceVersion": version}
        if items[size:]:
            meta["continue"] = f"{version}-{len(items) - size}"
            meta["remainingItemCount"] = len(items) - size
            self._pages[meta["continue"]] = (items[size:], version)
        return {"apiVersion": "ray.io/v1", "kind": "List", "metadata": meta, "items": items[:size]}

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        plural, chosen = request.match_info["plural"], _chosen(request)
        since = int(request.query.get("resourceVersion") or self.store.version)
        if since < self.store.expired_before:
            raise Refused(410, "Expired", f"too old resource version: {since} ({self.store.expired_before})")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        ends = time.monotonic() + float(request.query.get("timeoutSeconds", 300))
        bookmark, cuts = time.monotonic() + self.bookmark_s, len(self._cut)
        self.open_watches += 1
        try:
            while self._ended is not None and not self._ended.is_set():
                for cut, event in self._cut[cuts:]:
                    cuts += 1
                    if cut in ("", plural):
                        if event is not None:
                            await _line(response, "ERROR", event)
                        elif request.transport is not None:
                            request.transport.abort()
                        return response
                with self.store.lock:
                    news = [entry for entry in self.store.log if entry[0] > since]
                    since = max(since, self.store.version)
                for _, kind, event_type, thing in news:
                    if kind == plural and chosen(thing):
                        await _line(response, event_type, thing)
                if time.monotonic() >= bookmark and request.query.get("allowWatchBookmarks") in ("true", "True"):
                    bookmark = time.monotonic() + self.bookmark_s
                    await _line(response, "BOOKMARK", {"metadata": {"resourceVersion": str(since)}})
                if time.monotonic() >= ends:
                    break
                await asyncio.sleep(POLL_S)
        except ConnectionError:
            pass  # the watcher has left
        finally:
            self.open_watches -= 1
        return response


def kubeconfig(url: str, user: Thing) -> Thing:
    """A file with one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


async def _line(response: web.StreamResponse, kind: str, thing: Thing) -> None:
    await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")


async def _half(request: web.Request, text: str) -> web.StreamResponse:
    """All of the header, half of the body, and the end of the connection."""
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(text))})
    await response.prepare(request)
    await response.write(text[: len(text) // 2].encode())
    assert request.transport is not None
    request.transport.close()
    return response


def _chosen(request: web.Request) -> Any:
    """The label and field selectors of a request as one test."""
    labels = [pair.split("=", 1) for pair in request.query.get("labelSelector", "").split(",") if pair]
    fields = [pair.split("=", 1) for pair in request.query.get("fieldSelector", "").split(",") if pair]

    def chosen(thing: Thing) -> bool:
        meta = thing["metadata"]
        return all(meta.get("labels", {}).get(k) == v for k, v in labels) and all(
            k == "metadata.name" and meta["name"] == v for k, v in fields
        )

    return chosen
