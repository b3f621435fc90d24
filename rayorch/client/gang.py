"""A gang leased for a notebook: a real placement group that is held while its client shows signs of life."""

from __future__ import annotations

import logging
import os
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rayorch.client.address import read_state
from rayorch.client.errors import GangLostError
from rayorch.client.handle import ENDED, WAIT_S, WorkloadHandle
from rayorch.client.transport import Http, path_part
from rayorch.core.device_binding import device_index
from rayorch.core.errors import ClusterError, RayorchError

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

log = logging.getLogger(__name__)

DEVICES_SETUP = "rayorch.adapters.ray_devices.install"
"""Ray's workers call it: where a gang has particular GPUs, its actors and tasks then see those."""
RENEW_S = 3.0
"""Between two signs of life: about a third of the default lease."""
READY_POLL_S = 0.2
END_WAIT_S = 10.0


class GangLease:
    """`with client.gang(...) as pg`: `pg` is the group, held until the block ends or the lease is lost.

    `lost` says why it was taken away, empty while it is held; leaving the block then raises GangLostError.
    """

    def __init__(self, http: Http, handle: WorkloadHandle, timeout_s: float | None) -> None:
        self._http = http
        self._timeout_s = timeout_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._attempt = 0
        self.workload = handle
        self.lost = ""

    def __enter__(self) -> PlacementGroup:
        """Wait for the gang; TimeoutError when it is not there in time, and then nothing is left in the queue."""
        try:
            return self._group(self._when_ready())
        except BaseException:
            self._end("the client gave up waiting")
            raise

    def _when_ready(self) -> str:
        """The id of the group, once its seats exist. Heartbeats begin with the attempt, not with the group.

        One question is answered with the group if it can be had at once. Else the next one waits for the attempt,
        and then short ones for the group, so that an attempt is never without signs of life for long.
        """
        deadline_s = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        until, patience_s = "ready", RENEW_S
        while True:
            left_s = patience_s if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            info = self.workload.look(until, min(patience_s, left_s))
            state = str(info["state"])
            if state in ENDED:
                raise GangLostError(f"{self.workload.id} ended before it was ready: {info['reason']}")
            if state == "RUNNING":
                self._attempt = int(str(info["attempt"]))
                self._start_heartbeats()
                if group := info.get("groupId"):
                    return str(group)
                if info["readyAt"] is not None:  # the allocator is being started again, and will know its group
                    self._over.wait(READY_POLL_S)
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise TimeoutError(f"{self.workload.id} is {state} after {self._timeout_s} s; explain() says why")
            until, patience_s = ("running", WAIT_S) if state == "PENDING" else ("ready", RENEW_S)

    def _start_heartbeats(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name=f"lease-{self.workload.id}", daemon=True)
            self._thread.start()

    def _renew(self) -> None:
        path = f"/api/v1/workloads/{path_part(self.workload.id)}/renew"
        while not self._over.is_set():
            try:
                alive = self._http.call("POST", path, json={"attempt": self._attempt}, answer_within_s=RENEW_S)["alive"]
            except RayorchError as error:
                log.warning("no sign of life got through for %s: %s", self.workload.id, error)
            else:
                if not alive and not self._over.is_set():
                    self.lost = self._why()
                    log.warning("the gang %s was lost: %s", self.workload.id, self.lost)
                    return
            self._over.wait(RENEW_S)

    def _why(self) -> str:
        try:
            info = self.workload.info()
        except RayorchError as error:
            return f"the gateway can't tell: {error}"
        stop = info.get("stop")
        return str(stop["reason"] if isinstance(stop, dict) else info["reason"] or info["state"])

    def _group(self, group_id: str) -> PlacementGroup:
        import ray
        from ray.util.placement_group import PlacementGroup

        group = PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)))
        ours = not ray.is_initialized()
        if ours:
            ray.init(address=_ray_address(), log_to_driver=True)
        # Ray itself reads the bundles when something is put into them, and the handle keeps them for that.
        named = any(device_index(name) is not None for bundle in group.bundle_specs for name in bundle)
        if named and DEVICES_SETUP not in str(ray.get_runtime_context().runtime_env):
            if ours:
                # Only now, because Ray starts no workers in advance for those that have an environment of their own.
                ray.shutdown()
                hook = {"worker_process_setup_hook": DEVICES_SETUP}
                ray.init(address=_ray_address(), log_to_driver=True, runtime_env=hook)
            else:
                log.warning(
                    "this gang has particular GPUs. This process connected to Ray by itself and without the hook, so "
                    "actors and tasks may see other GPUs, and use those of others: pass "
                    'runtime_env={"worker_process_setup_hook": "%s"} to ray.init',
                    DEVICES_SETUP,
                )
        return group

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the gang back. GangLostError when it was lost before that and nothing else was raised."""
        self._end("the client left its block")
        if self.lost and error is None:
            raise GangLostError(f"{self.workload.id} was lost: {self.lost}")

    def _end(self, reason: str) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(END_WAIT_S)
        try:
            self.workload.cancel(reason)
        except ClusterError as error:
            # Without signs of life the lease lapses, so nothing is leaked.
            log.warning("%s could not be given back at once: %s", self.workload.id, error)


def _ray_address() -> str:
    state = read_state(os.environ.get("RAYORCH_INSTANCE") or "main") or {}
    return os.environ.get("RAY_ADDRESS") or str(state.get("address") or "auto")
