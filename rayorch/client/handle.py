"""A submitted workload in the shape of `concurrent.futures.Future`, and what can be asked of it beyond that."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from rayorch.client.errors import NotFoundError, WorkloadCancelledError, WorkloadFailedError
from rayorch.client.function import Outcome, pickling
from rayorch.client.notebook import table
from rayorch.client.tables import Explanation
from rayorch.client.transport import Http, JsonObject, Params, path_part, raise_for
from rayorch.core.errors import ClusterError, RayorchError

log = logging.getLogger(__name__)

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
STARTED = frozenset({"RUNNING", "STOPPING"})
WAIT_S = 20.0
"""One long poll; below every usual proxy's idle limit."""
AS_COMPLETED_POLL_S = 0.5
TAIL_CHARACTERS = 2000
EVENTS_PAGE = 500


class WorkloadHandle:
    """One workload. `result(timeout)` gives a function's value, or 0 for a command.

    A handle holds no state of the workload: each answer is asked for anew, so that it can be made from an id at
    any time (`client.workload(id)`).
    """

    def __init__(self, http: Http, id: str) -> None:
        self._http = http
        self.id = id
        self._path = f"/api/v1/workloads/{path_part(id)}"
        self._callbacks: list[Callable[[WorkloadHandle], object]] = []
        self._watcher: threading.Thread | None = None
        self._lock = threading.Lock()

    # ------------------------------------------------------------ as a Future

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.status in ENDED

    def running(self) -> bool:
        """Whether an attempt runs now."""
        return self.status in STARTED

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.status == "CANCELLED"

    def cancel(self, reason: str = "cancelled by its owner") -> bool:
        """Ask for its end; False when it had ended already."""
        if self.done():
            return False
        self._http.call("POST", f"{self._path}/cancel", json={"reason": reason})
        return True

    def wait(self, timeout: float | None = None, until: str = "ended") -> str:
        """The state once it has ended (`until="running"`: or runs); TimeoutError after `timeout` seconds."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = WAIT_S if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            state = str(self.look(until, min(WAIT_S, left_s))["state"])
            if state in ENDED or (until == "running" and state in STARTED):
                return state
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise TimeoutError(f"{self.id} is {state} after {timeout} s; explain() says why")

    def look(self, until: str, within_s: float) -> JsonObject:
        """One long poll: what is known of it once it has come that far (running, ready, ended), or after that time."""
        return self._http.call("GET", f"{self._path}/wait", params={"until": until, "timeout": within_s})

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the function raised, WorkloadFailedError for a command, None after success.

        WorkloadCancelledError is raised when it was cancelled, TimeoutError when it has not ended in time.
        """
        state = self.wait(timeout)
        if state == "CANCELLED":
            raise WorkloadCancelledError(f"{self.id} was cancelled: {self.info()['reason']}")
        if state == "SUCCEEDED":
            return None
        outcome = self._outcome()
        info = self.info()
        exit_code = info["exitCode"]
        failed = WorkloadFailedError(
            self.id, str(info["reason"]), exit_code if isinstance(exit_code, int) else None, self._log_tail()
        )
        if outcome is None or not isinstance(outcome[1], BaseException):
            return failed
        error = outcome[1]
        error.__cause__ = failed
        return error

    def result(self, timeout: float | None = None) -> Any:
        """What the function returned (0 for a command); raises what it raised, else as `exception` does.

        The value is unpickled here: take results only from a gateway that you trust.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        outcome = self._outcome()
        return 0 if outcome is None else outcome[1]

    def _outcome(self) -> Outcome | None:
        """(returned, value or exception, traceback) that the function's driver handed in, None when it did not."""
        answer = self._http.request("GET", f"{self._path}/result")
        if answer.status_code == 404:
            return None
        raise_for(answer)
        try:
            outcome: Outcome = pickling().loads(answer.content)
        except Exception as error:  # a module that is missing here, or anything else in the user's classes
            raise ClusterError(f"what {self.id} returned can't be unpickled here: {error!r}") from error
        return outcome

    def add_done_callback(self, callback: Callable[[WorkloadHandle], object]) -> None:
        """Call it with this handle once the workload has ended, in a thread of the client's."""
        with self._lock:
            self._callbacks.append(callback)
            if self._watcher is None or not self._watcher.is_alive():
                self._watcher = threading.Thread(target=self._call_back, name=f"rayorch-{self.id}", daemon=True)
                self._watcher.start()

    def _call_back(self) -> None:
        try:
            self.wait()
        except RayorchError:
            log.exception("can't tell when %s ends; its callbacks are not called", self.id)
            return
        while True:
            with self._lock:
                if not self._callbacks:
                    self._watcher = None
                    return
                callback = self._callbacks.pop(0)
            try:
                callback(self)
            except Exception:
                log.exception("a callback of %s failed", self.id)

    def __await__(self) -> Generator[Any, None, Any]:
        """`await handle` is `result()` without blocking the loop."""
        return asyncio.to_thread(self.result).__await__()

    # ------------------------------------------------------------ beyond a Future

    def info(self) -> JsonObject:
        """All that is known of it, as the API gives it."""
        return self._http.call("GET", self._path)

    @property
    def status(self) -> str:
        """PENDING, RUNNING, STOPPING, SUCCEEDED, FAILED or CANCELLED."""
        return str(self.info()["state"])

    def explain(self, changes: bool = False) -> Explanation:
        """Every reason why it is where it is; with `changes`, also what would let it start (takes a while)."""
        params: Params = {"changes": changes}
        return Explanation(self._http.call("GET", f"{self._path}/explain", params=params))

    def logs(self, follow: bool = False, attempt: int | None = None, notes: bool = False) -> Iterator[str]:
        """Lines of the driver's output, without their line ends.

        With `follow` until it has ended, across attempts; `notes` adds lines that say where it waits.
        """
        if follow:
            yield from self._http.lines(f"{self._path}/logs", {"follow": True, "notes": notes})
            return
        rest, offset = "", 0
        while True:
            params: dict[str, str | int | float | bool] = {"offset": offset}
            if attempt is not None:
                params["attempt"] = attempt
            chunk = self._http.call("GET", f"{self._path}/logs", params=params)
            *lines, rest = (rest + str(chunk["text"])).split("\n")
            yield from lines
            if chunk["nextOffset"] == offset:
                break
            offset = int(str(chunk["nextOffset"]))
        if rest:
            yield rest

    def _log_tail(self) -> str:
        try:
            return "\n".join(self.logs())[-TAIL_CHARACTERS:]
        except NotFoundError:
            return ""

    def events(self) -> list[JsonObject]:
        """What has happened to it, oldest first."""
        found: list[JsonObject] = []
        cursor: int = 0
        while True:
            params: Params = {"workload": self.id, "since": cursor, "limit": EVENTS_PAGE}
            page = self._http.call("GET", "/api/v1/events", params=params)
            events = page["events"]
            assert isinstance(events, list)
            found += [event for event in events if isinstance(event, dict)]
            cursor = int(str(page["nextCursor"]))
            if not page["more"]:
                return found

    def to_dict(self) -> JsonObject:
        """As `info`."""
        return self.info()

    def __repr__(self) -> str:
        return f"<WorkloadHandle {self.id}>"

    def _repr_html_(self) -> str:
        info = self.info()
        keys = ("id", "kind", "queue", "priority", "state", "attempt", "step", "reason")
        return table(("", ""), ((key, info.get(key)) for key in keys), f"workload {self.id}")


def as_completed(handles: Iterable[WorkloadHandle], timeout: float | None = None) -> Iterator[WorkloadHandle]:
    """The handles in the order in which they end; TimeoutError when some have not within `timeout` seconds."""
    waiting = list(handles)
    deadline_s = None if timeout is None else time.monotonic() + timeout
    while waiting:
        ended = [handle for handle in waiting if handle.done()]
        waiting = [handle for handle in waiting if handle not in ended]
        yield from ended
        if not waiting or ended:
            continue
        if deadline_s is not None and time.monotonic() >= deadline_s:
            raise TimeoutError(f"{len(waiting)} of the workloads have not ended after {timeout} s")
        time.sleep(AS_COMPLETED_POLL_S)
