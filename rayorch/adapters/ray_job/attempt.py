"""Which attempt this process belongs to, and its runner's word on what it may use."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from rayorch.core.errors import ClusterError
from rayorch.core.grants import Grant
from rayorch.core.reports import AttemptReport
from rayorch.core.types import Resources

log = logging.getLogger(__name__)

VARIABLES = (
    "RAYORCH_INSTANCE",
    "RAYORCH_NAMESPACE",
    "RAYORCH_WORKLOAD",
    "RAYORCH_ATTEMPT",
    "RAYORCH_RUNNER",
    "RAYORCH_LEASE_S",
    "RAYORCH_STORAGE_PATH",
)
"""What a runner gives to the driver, and the driver's hook to every worker process of the job."""

GRANT_FRESH_S = 1.0
"""A grant read within this time is not read again before a task is placed."""
GRANT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class AttemptIdentity:
    """The attempt that a process works for. `runner` is the name of the actor that speaks for it."""

    workload: str
    attempt: int
    runner: str
    namespace: str
    lease_s: float

    @staticmethod
    def of_environment(environment: Mapping[str, str]) -> AttemptIdentity | None:
        """What a runner wrote into the environment; None in a process that no runner started."""
        runner = environment.get("RAYORCH_RUNNER")
        if not runner:
            return None
        return AttemptIdentity(
            workload=environment["RAYORCH_WORKLOAD"],
            attempt=int(environment["RAYORCH_ATTEMPT"]),
            runner=runner,
            namespace=environment.get("RAYORCH_NAMESPACE", "rayorch"),
            lease_s=float(environment["RAYORCH_LEASE_S"]),
        )


class GrantReader:
    """The grant of this process's attempt, read from the runner when the last answer is no longer fresh."""

    def __init__(self, identity: AttemptIdentity, clock: Callable[[], float] = time.monotonic) -> None:
        self.identity = identity
        self._clock = clock
        self._lock = threading.Lock()
        self._handle: Any = None
        self._grant: Grant | None = None
        self._read_s = 0.0

    def read(self) -> Grant:
        """Ask the runner now. Raises what Ray raises when it can't be reached."""
        asked_s = self._clock()
        with self._lock:
            if self._handle is None:
                self._handle = ray.get_actor(self.identity.runner, namespace=self.identity.namespace)
            handle = self._handle
        # The handle is good for ever: a runner is never restarted.
        grant: Grant = ray.get(handle.grant.remote(-1, 0.0), timeout=GRANT_TIMEOUT_S)
        with self._lock:
            self._grant, self._read_s = grant, asked_s
        return grant

    def report(self, report: AttemptReport) -> None:
        """Tell the runner, which `read` has found. Raises what Ray raises when it can't be reached."""
        with self._lock:
            handle = self._handle
        ray.get(handle.report.remote(report), timeout=GRANT_TIMEOUT_S)

    def current(self, may_wait: bool = True) -> Grant:
        """The grant, at most GRANT_FRESH_S old if the runner answers, else the last one known.

        With `may_wait` false (in an event loop) an older one is taken rather than asking, unless none is known.
        Raises ClusterError when the runner never answered.
        """
        with self._lock:
            grant, fresh = self._grant, self._clock() - self._read_s < GRANT_FRESH_S
        if grant is not None and (fresh or not may_wait):
            return grant
        try:
            return self.read()
        except Exception as error:  # Ray raises several unrelated classes for an actor that can't be reached
            if grant is None:
                raise ClusterError(
                    f"runner {self.identity.runner} does not say which GPUs are ours: {error}"
                ) from error
            log.warning("runner %s does not answer, its last grant is used: %s", self.identity.runner, error)
            return grant


def groups_in_use(group_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the placement groups in which a task or actor holds something now.

    Ray books a group's resources on its nodes as `<resource>_group_<index>_<group id>`; what is available of them
    below their total is in use.
    """
    totals = ray._private.state.total_resources_per_node()
    available = ray._private.state.available_resources_per_node()
    used: set[str] = set()
    for node, resources in totals.items():
        for name, amount in resources.items():
            group = name.rpartition("_")[2]
            if group in group_ids and available.get(node, {}).get(name, 0.0) < amount:
                used.add(group)
    return tuple(group for group in group_ids if group in used)


def request_of(resources: Mapping[str, Any]) -> Resources:
    """What a task or actor asks for, in stored units; zero amounts drop out."""
    return Resources.of({name: float(amount) for name, amount in resources.items() if amount})


def variables_of(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that name the attempt, as they are in `environment`."""
    return {name: environment[name] for name in VARIABLES if environment.get(name)}
