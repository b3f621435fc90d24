"""The line to the runner: follow the grant, send reports, and end this process when the lease is over.

Both threads are daemons of a process that Train owns (its controller or one worker). They call the runner actor
only; what a new grant means is decided by whoever passed `on_grant`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import ray

from rayorch.core.grants import Grant
from rayorch.core.reports import AttemptReport, StepReported

logger = logging.getLogger(__name__)

FENCED_EXIT_CODE = 75
"""A process whose attempt is over ends with this code (EX_TEMPFAIL: the work is not lost, try again)."""

DEFAULT_LEASE_S = 10.0
POLLS_PER_LEASE = 3.0
MIN_ANSWER_S = 1.0
"""A call to the runner may take at least this long, however little of the lease is left."""
RETRY_PAUSE_S = 0.3
REPORT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class AttemptIds:
    """Which attempt this process belongs to, and the actor that speaks for it.

    `storage_path`: where runs go whose script names no place, empty for Ray's own default.
    """

    workload: str
    attempt: int
    runner: str
    namespace: str = "rayorch"
    lease_s: float = DEFAULT_LEASE_S
    storage_path: str = ""

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> AttemptIds | None:
        """What a runner gives to its child; None for a process that no runner started."""
        runner = environment.get("RAYORCH_RUNNER", "")
        if not runner:
            return None
        return AttemptIds(
            workload=environment["RAYORCH_WORKLOAD"],
            attempt=int(environment["RAYORCH_ATTEMPT"]),
            runner=runner,
            namespace=environment.get("RAYORCH_NAMESPACE", "rayorch"),
            lease_s=float(environment.get("RAYORCH_LEASE_S", DEFAULT_LEASE_S)),
            storage_path=environment.get("RAYORCH_STORAGE_PATH", ""),
        )


def end_process(why: str) -> NoReturn:
    """End this process at once: nothing that it still does may count, so nothing is flushed or handed over."""
    logger.error("rayorch ends process %d: %s", os.getpid(), why)
    sys.stderr.write(f"rayorch ends process {os.getpid()}: {why}\n")
    sys.stderr.flush()
    os._exit(FENCED_EXIT_CODE)


class Line(Protocol):
    """A way to call the runner."""

    def call(self, method: str, *args: object, timeout_s: float) -> Any:
        """The answer of `runner.<method>(*args)`; raises when there is none within `timeout_s`."""


class RunnerLine:
    """Calls the runner, which is looked up by name once: it is never restarted, so its handle stays good.

    Ray looks a name up by a call that blocks for as long as its control store can't be reached, far beyond a lease.
    So that is done in a thread of its own, and a call that waits for it ends in time.
    """

    def __init__(self, ids: AttemptIds) -> None:
        self._ids = ids
        self._handle: Any = None
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None
        self._error: Exception | None = None

    def call(self, method: str, *args: object, timeout_s: float) -> Any:
        """The answer of `runner.<method>(*args)`. Raises whatever Ray raises, ValueError when there is no runner."""
        until_s = time.monotonic() + timeout_s
        handle = self._found(timeout_s)
        return ray.get(getattr(handle, method).remote(*args), timeout=max(0.0, until_s - time.monotonic()))

    def _found(self, timeout_s: float) -> Any:
        with self._lock:
            if self._handle is not None:
                return self._handle
            if self._looking is None or not self._looking.is_alive():
                self._error = None
                self._looking = threading.Thread(target=self._look, name="rayorch-find-runner", daemon=True)
                self._looking.start()
            looking = self._looking
        looking.join(timeout_s)
        handle, error = self._outcome()
        if handle is None:
            raise error or TimeoutError(f"runner {self._ids.runner} was not found within {timeout_s:.1f} s")
        return handle

    def _outcome(self) -> tuple[Any, Exception | None]:
        with self._lock:
            return self._handle, self._error

    def _look(self) -> None:
        try:
            found = ray.get_actor(self._ids.runner, namespace=self._ids.namespace)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the call was made
            with self._lock:
                self._error = error
        else:
            with self._lock:
                self._handle = found


class GrantFollower:
    """Long-polls the grant and passes each newer one on.

    Calls `on_over` when the runner says that the attempt is over, `on_lost` when the lease can't be confirmed.

    A process is late when no call has succeeded for `lease_s`; it is ended only by a call that fails then, so a
    process that got no CPU for a while is not taken for a fenced one. The end comes at most `MIN_ANSWER_S` plus
    one pause after the lease.
    """

    def __init__(
        self,
        ids: AttemptIds,
        on_grant: Callable[[Grant], None],
        on_lost: Callable[[str], None] = end_process,
        on_over: Callable[[str], None] = end_process,
        line: Line | None = None,
    ) -> None:
        self._ids = ids
        self._on_grant = on_grant
        self._on_lost = on_lost
        self._on_over = on_over
        self._line = line or RunnerLine(ids)
        self._lease_s = ids.lease_s

    def start(self) -> None:
        """Follow in a daemon thread until the process ends."""
        threading.Thread(target=self.follow, name="rayorch-grant", daemon=True).start()

    def follow(self) -> None:
        """The thread's work; returns only after `on_lost` or `on_over` did."""
        known = -1
        confirmed_s = time.monotonic()
        failing = False
        while True:
            wait_s = self._lease_s / POLLS_PER_LEASE
            left_s = confirmed_s + self._lease_s - time.monotonic()
            try:
                grant = self._line.call("grant", known, wait_s, timeout_s=max(MIN_ANSWER_S, min(2 * wait_s, left_s)))
            except Exception as error:
                logger.warning("runner %s does not answer: %s", self._ids.runner, error, exc_info=not failing)
                failing = True
                if time.monotonic() - confirmed_s >= self._lease_s:
                    self._on_lost(f"no answer from runner {self._ids.runner} for {self._lease_s:g} s: {error}")
                    return
                time.sleep(RETRY_PAUSE_S)
                continue
            failing = False
            confirmed_s = time.monotonic()
            self._lease_s = grant.lease_s
            if why := self._over(grant):
                self._on_over(why)
                return
            if grant.version > known:
                known = grant.version
                self._on_grant(grant)

    def _over(self, grant: Grant) -> str:
        """Why this attempt is over by the runner's own word; empty while it is not."""
        if grant.lapsed:
            return f"the lease of attempt {self._ids.attempt} of {self._ids.workload} is over"
        if (grant.workload, grant.attempt) != (self._ids.workload, self._ids.attempt):
            return f"runner {self._ids.runner} now serves attempt {grant.attempt} of {grant.workload}"
        return ""


class Reporter:
    """Sends reports in order from a thread, so that Train's loop never waits for the runner.

    Steps that wait behind a newer step are dropped. A failed call is repeated until the lease is over, which
    `GrantFollower` finds out.
    """

    def __init__(
        self, ids: AttemptIds, on_refused: Callable[[str], None] = end_process, line: Line | None = None
    ) -> None:
        self._ids = ids
        self._on_refused = on_refused
        self._line = line or RunnerLine(ids)
        self._waiting: deque[AttemptReport] = deque()
        self._changed = threading.Condition()
        self._sending = False

    def start(self) -> None:
        """Send in a daemon thread until the process ends."""
        threading.Thread(target=self._run, name="rayorch-report", daemon=True).start()

    def send(self, report: AttemptReport) -> None:
        """Queue a report; returns at once."""
        with self._changed:
            if isinstance(report, StepReported) and self._waiting and isinstance(self._waiting[-1], StepReported):
                self._waiting.pop()
            self._waiting.append(report)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued was delivered; False when that took longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._sending, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                report = self._waiting.popleft()
                self._sending = True
            self._deliver(report)
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _deliver(self, report: AttemptReport) -> None:
        while True:
            try:
                accepted = self._line.call("report", report, timeout_s=REPORT_TIMEOUT_S)
            except Exception as error:
                logger.warning("report %s not delivered, tried again: %s", report, error, exc_info=True)
                time.sleep(RETRY_PAUSE_S)
                continue
            if accepted is False:
                self._on_refused(f"runner {self._ids.runner} refused {report}: the attempt is over")
            return
