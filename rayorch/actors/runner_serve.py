"""A Serve application as a runner's work: deploy it, watch it, drain it when the grant says stop.

Serve's controller itself follows the runner's grant and reports demand, seats in use and obeyed grants.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from rayorch.actors.runner_command import Attempt, Ended
from rayorch.adapters import ray_serve
from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.types import StopOrder, WorkloadSpec

log = logging.getLogger(__name__)

WATCH_STARTING_S = 0.5
WATCH_RUNNING_S = 2.0
"""Time between two looks at the application."""
UNDEPLOY_LEAST_S = 5.0
"""Draining is given at least this long, whatever is left until the deadline."""
GONE_LOOKS = 3
"""Looks in a row without a trace of the application until it counts as removed by somebody."""


MAX_REASON = 500


def last_line(text: str) -> str:
    """What a message of Serve's comes to: it often is a whole traceback, which the log has."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:MAX_REASON] if lines else text


class ServeWork:
    """Kind serve."""

    def __init__(
        self, spec: WorkloadSpec, runner: str, namespace: str, attempt: Attempt, on_output: Callable[[bytes], None]
    ) -> None:
        self._spec = spec
        self._runner = runner
        self._namespace = namespace
        self._attempt = attempt
        self._on_output = on_output
        self._told = ""

    async def run(self) -> Ended:
        """Deploy and return when the application is gone: stopped, broken, or removed by somebody."""
        try:
            app = ray_serve.app_spec(self._spec)
            await asyncio.to_thread(ray_serve.ensure_serve_started)
            if self._stop() is not None:
                return Ended(0, "stopped before it was deployed")
            self._say(f"deploying {app.import_path} as {app.name}")
            await asyncio.to_thread(ray_serve.deploy, app, self._attempt.grant, self._runner, namespace=self._namespace)
        except (SpecError, ClusterError) as error:
            self._say(str(error))
            return Ended(1, f"could not be deployed: {last_line(str(error))}")
        ended = await self._watch(app.name)
        left_s = UNDEPLOY_LEAST_S
        if (stop := self._stop()) is not None:
            left_s = max(left_s, stop.deadline_s - time.time())
        try:
            await asyncio.to_thread(ray_serve.undeploy, app.name, self._namespace, left_s)
        except ClusterError as error:
            self._say(f"could not be removed from Serve: {error}")
            return Ended(ended.exit_code or 1, f"{ended.message}; {error}")
        self._say(ended.message)
        return ended

    def _stop(self) -> StopOrder | None:
        return self._attempt.grant.stop

    async def _watch(self, app: str) -> Ended:
        """Return when the application must leave."""
        least = sum(role.min_count for role in self._spec.roles)
        up, gone = False, 0
        while (stop := self._stop()) is None:
            try:
                status = await asyncio.to_thread(ray_serve.app_status, app)
            except ClusterError as error:
                log.warning("the state of %s is unknown: %s", app, error)
            else:
                self._say_once(f"{status.state} {status.message}".strip())
                if status.state == "DEPLOY_FAILED":
                    return Ended(1, f"deployment failed: {last_line(status.message)}")
                gone = gone + 1 if status.state == "NOT_DEPLOYED" else 0
                if gone >= GONE_LOOKS:
                    return Ended(1, f"application {app} was removed from Serve by somebody else")
                if status.state == "RUNNING" and status.running() >= least and not up:
                    up = True
                    self._attempt.begun()
            await self._attempt.wait_change(WATCH_RUNNING_S if up else WATCH_STARTING_S)
        return Ended(0, f"drained: {stop.reason}")

    def _say(self, text: str) -> None:
        self._on_output(f"[rayorch: {text}]\n".encode())

    def _say_once(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._say(text)

    async def kill(self) -> None:
        """Nothing to end here: Serve's controller drops the application itself when its runner's lease is over, and
        by then the name may belong to the next attempt."""
