"""Following a RayCluster and its pods: list, then watch from that version on; list again when the version has expired.

Two streams run in threads of their own and hand on what they see; the caller's thread keeps the copies and calls back.
Nothing is concluded from silence: a stream that breaks makes the whole state unknown until its next list has arrived.
"""

from __future__ import annotations

import json
import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rayorch.adapters.kuberay.api import Api, ApiError, Stream
from rayorch.adapters.kuberay.models import Pod, RayCluster
from rayorch.core.errors import ClusterError

if TYPE_CHECKING:
    from rayorch.adapters.kuberay.client import ClusterState, KubeRayClient

log = logging.getLogger(__name__)

WATCH_S = 60  # the server ends a watch after this; a new one begins at the last version
BACK_OFF_S = 0.5
BACK_OFF_MAX_S = 30.0
NO_PODS_RETRY_S = 60.0  # how often the right to read pods is tried again
GATHER_S = 0.1  # changes that come within it are reported together
EXPIRED = 410
NO_PODS = (403, 404)
STOP_POLL_S = 0.25

Report = Callable[["Seen"], None]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a stream has to tell. `kind`: "cluster" or "pods".

    One of: `items`, the whole list; `event`, (type, object); `error`, why nothing is known.
    """

    kind: str
    items: list[Any] | None = None
    event: tuple[str, Any] | None = None
    error: ApiError | None = None


@dataclass
class Follower:
    """One stream: lists, watches and tells, until `stop` is set."""

    kind: str
    fetch: Callable[[], tuple[list[Any], str]]
    watch: Callable[[str, int], Stream]
    tell: Report
    stop: threading.Event
    _stream: Stream | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Never raises; each failure is told, and followed by a pause that doubles up to its bound."""
        failures = 0
        while not self.stop.is_set():
            try:
                items, version = self.fetch()
                self.tell(Seen(self.kind, items=items))
                failures = 0
                self._follow(version)
            except ApiError as error:
                if error.status == EXPIRED:
                    log.info("watch of the %s: its version has expired; listing again", self.kind)
                    # A server that refuses each version at once must not be asked in a circle.
                    self.stop.wait(_jitter(BACK_OFF_S))
                    continue
                failures += 1
                self._fail(error, failures)
            except Exception as error:
                log.exception("the watch of the %s failed in a way that it does not know", self.kind)
                failures += 1
                self._fail(ApiError(f"the watch of the {self.kind} failed: {type(error).__name__}"), failures)

    def close(self) -> None:
        """End the read that is waiting."""
        with self._lock:
            if self._stream is not None:
                self._stream.close()

    def _fail(self, error: ApiError, failures: int) -> None:
        if not self.stop.is_set():
            self.tell(Seen(self.kind, error=error))
            self.stop.wait(self._pause(error, failures))

    def _follow(self, version: str) -> None:
        while not self.stop.is_set():
            began, first = time.monotonic(), version
            stream = self.watch(version, WATCH_S)
            with self._lock:
                self._stream = stream
            try:
                for line in () if self.stop.is_set() else stream.lines():
                    version = self._event(line)
                    if self.stop.is_set():
                        return
                if version == first and time.monotonic() - began < BACK_OFF_S:
                    self.stop.wait(_jitter(BACK_OFF_S))  # something ends each watch at once: not in a circle
            finally:
                with self._lock:
                    self._stream = None
                stream.close()

    def _event(self, line: bytes) -> str:
        """Tell one event, and the version that it brings; ApiError for what is none or says that the watch is over."""
        try:
            raw = json.loads(line)
            kind, thing = raw["type"], raw["object"]
            if kind == "ERROR":
                raise ApiError(f"the watch ended: {thing.get('message', '')}", int(thing.get("code") or 500))
            version = str(thing["metadata"]["resourceVersion"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ApiError(f"the watch sent what is no event: {type(error).__name__}") from None
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self.tell(Seen(self.kind, event=(kind, thing)))
        elif kind != "BOOKMARK":
            raise ApiError(f"the watch sent an event of unknown type {str(kind)[:40]!r}")
        return version

    def _pause(self, error: ApiError, failures: int) -> float:
        if self.kind == "pods" and error.status in NO_PODS:
            return _jitter(NO_PODS_RETRY_S)
        return _jitter(min(BACK_OFF_MAX_S, BACK_OFF_S * 2.0 ** min(failures - 1, 16)))


class ClusterWatch:
    """Keeps copies of the cluster and its pods by two streams, and calls back with what they mean."""

    def __init__(
        self,
        client: KubeRayClient,
        on_change: Callable[[ClusterState | ClusterError], None],
        stop: threading.Event,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._stop = stop
        self._ending = threading.Event()
        self._queue: queue.Queue[Seen] = queue.Queue()
        self._cluster: RayCluster | None = None
        self._pods: dict[str, Pod] | None = None
        self._pods_error = ""
        self._broken: dict[str, ClusterError] = {}  # by stream: why its copy can't be trusted
        self._malformed: dict[str, ClusterError] = {}  # by pod, until it is seen in good form or gone
        self._told: object = None

    def run(self) -> None:
        """Blocks until `stop` is set. What `on_change` raises ends the watch and is raised here."""
        followers = self._followers(self._client.api)
        threads = [
            threading.Thread(target=follower.run, name=f"kuberay-{follower.kind}", daemon=True)
            for follower in followers
        ]
        for thread in threads:
            thread.start()
        try:
            while not self._stop.is_set():
                if self._take():
                    self._report()
        finally:
            self._ending.set()
            for follower in followers:
                follower.close()
            for thread in threads:
                thread.join(timeout=1.0)  # daemons: one that still connects ends by its own timeout

    def _followers(self, api: Api) -> tuple[Follower, ...]:
        return (
            Follower("cluster", api.list_clusters, api.watch_clusters, self._queue.put, self._ending),
            Follower("pods", api.list_pods, api.watch_pods, self._queue.put, self._ending),
        )

    def _take(self) -> bool:
        """Take in what has come, and a moment's more; False when nothing has."""
        try:
            seen = self._queue.get(timeout=STOP_POLL_S)
        except queue.Empty:
            return False
        until = time.monotonic() + GATHER_S
        while True:
            self._apply(seen)
            try:
                seen = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return True

    def _apply(self, seen: Seen) -> None:
        try:
            if seen.error is not None:
                self._fail(seen.kind, seen.error)
            elif seen.kind == "cluster":
                self._apply_cluster(seen)
            else:
                self._apply_pods(seen)
        except ClusterError as error:
            self._broken[seen.kind] = error

    def _fail(self, kind: str, error: ApiError) -> None:
        if kind == "pods" and error.status in NO_PODS:
            self._pods, self._pods_error = None, str(error)
            self._broken.pop(kind, None)
        else:
            self._broken[kind] = error

    def _apply_cluster(self, seen: Seen) -> None:
        name = self._client.settings.cluster
        if seen.items is not None and not seen.items:
            raise ClusterError(f"there is no RayCluster {name} in namespace {self._client.settings.namespace}")
        kind, raw = seen.event or ("LISTED", (seen.items or [None])[0])
        if kind == "DELETED":
            raise ClusterError(f"RayCluster {name} was deleted")
        self._cluster = self._client.identified(raw)
        self._broken.pop("cluster", None)

    def _apply_pods(self, seen: Seen) -> None:
        if seen.items is not None:
            self._pods, self._pods_error = {}, ""
            self._malformed.clear()
            self._broken.pop("pods", None)
            for raw in seen.items:
                self._apply_pod("LISTED", raw)
        elif seen.event is not None:
            self._apply_pod(*seen.event)

    def _apply_pod(self, kind: str, raw: Any) -> None:
        if self._pods is None:
            return
        name = (
            str(raw["metadata"].get("name")) if isinstance(raw, dict) and isinstance(raw.get("metadata"), dict) else ""
        )
        self._malformed.pop(name, None)
        if kind == "DELETED":
            self._pods.pop(name, None)
            return
        try:
            self._pods[name] = self._client.pod(raw)
        except ClusterError as error:
            self._malformed[name] = error

    def _news(self) -> ClusterState | ClusterError | None:
        """What is known now; None while the first lists are still on their way."""
        for errors in (self._broken, self._malformed):
            if errors:
                return errors[min(errors)]
        if self._cluster is None or (self._pods is None and not self._pods_error):
            return None
        try:
            pods = None if self._pods is None else list(self._pods.values())
            return self._client.state(self._cluster, pods, self._pods_error)
        except ClusterError as error:
            return error

    def _report(self) -> None:
        """Call back with the news, unless they are none: an operator writes its status often."""
        news = self._news()
        if news is None:
            return
        told = str(news) if isinstance(news, ClusterError) else replace(news, resource_version="")
        if told != self._told:
            self._told = told
            self._on_change(news)


def _jitter(seconds: float) -> float:
    """Half to one and a half times as long, so that many watchers don't return at once."""
    return seconds * random.uniform(0.5, 1.5)
