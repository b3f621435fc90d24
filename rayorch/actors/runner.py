"""The actor that runs one attempt: it starts the work, holds the lease, and is the attempt's hub.

One per attempt, named after it, never restarted: when it is gone, the attempt is over. See docs/jobs.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rayorch.actors.logs import LogPump
from rayorch.actors.names import NAMESPACE, controller_name, find, find_or_none, logs_name, queues_name, runner_name
from rayorch.actors.rank_file import RankFile
from rayorch.actors.runner_command import CommandWork, Ended
from rayorch.actors.runner_hub import AttemptHub
from rayorch.actors.runner_serve import ServeWork
from rayorch.adapters.ray_groups import group_handle
from rayorch.adapters.ray_job import DriverIdentity, job_supervisor_env, prepare_packages, runner_runtime_env
from rayorch.adapters.ray_job.attempt import groups_in_use
from rayorch.core.arrays import array_variables
from rayorch.core.errors import ClusterError, RayorchError, SpecError
from rayorch.core.grants import Grant, Seat
from rayorch.core.payload import Payload
from rayorch.core.reports import AttemptReport, GrantApplied
from rayorch.core.requests import AttemptRef, Reply, ReportRequest
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.types import Kind, Workload, WorkloadId, WorkloadSpec

log = logging.getLogger(__name__)

LAPSE_LINGER_S = 1.0
"""How long a runner whose lease is over still answers, so that its readers hear it from itself."""
EXIT_WAIT_S = 5.0
ENFORCE_LEASES = 1.5
"""A runner whose work has not ended so many leases after the last renewal is ended from outside its event loop."""
ENFORCE_POLL_S = 0.5
LOG_FLUSH_S = 3.0
REPORT_FLUSH_S = 5.0
KILL_TIMEOUT_S = 10.0
SHRINK_POLL_S = 0.5
MAX_CALLS = 10_000
"""Calls at once; each worker of the attempt may have one open."""


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What is the same for all runners of an instance.

    `storage_path`: where checkpoints go if the user names no place. `packages`: the folder on this node with uploaded
    packages, from which Ray gets those again that it has lost; empty for none.
    """

    instance: str = "main"
    storage_path: str = ""
    packages: str = ""


@dataclass(frozen=True, slots=True)
class RunnerOrder:
    """What one attempt's runner is started with. `fault`: why its command can't run; then it says so and ends."""

    instance: str
    spec: WorkloadSpec
    grant: Grant
    storage_path: str = ""
    fault: str = ""

    @property
    def name(self) -> str:
        """The runner's actor name."""
        return runner_name(self.instance, self.spec.id, self.grant.attempt)


# ---------------------------------------------------------------- the others, as a runner sees them


class RayOwners:
    """The queue owner and the controller, looked up by name when a call to them has failed.

    Ray looks a name up by a call that blocks for as long as its control store can't be reached. The event loop has to
    keep the lease meanwhile, so that is done in threads.
    """

    def __init__(self, instance: str, ref: AttemptRef) -> None:
        self._instance = instance
        self._ref = ref
        self._handles: dict[str, Any] = {}
        self._news: RunnerView | None = None
        self._telling: asyncio.Task[None] | None = None

    async def call(self, name: str, method: str, *args: object) -> Any:
        """One call; the handle is looked up anew after a failure. Raises what Ray raises."""
        try:
            if name not in self._handles:
                self._handles[name] = await asyncio.to_thread(find, name)
            return await getattr(self._handles[name], method).remote(*args)
        except Exception:
            self._handles.pop(name, None)
            raise

    async def renew(self) -> bool:
        """See `runner_hub.Owners`."""
        return bool(await self.call(queues_name(self._instance), "renew", self._ref))

    async def report(self, report: AttemptReport) -> Reply:
        """See `runner_hub.Owners`."""
        request = ReportRequest(self._ref.workload, self._ref.attempt, report)
        reply: Reply = await self.call(queues_name(self._instance), "report", request)
        return reply

    async def ready(self) -> Reply:
        """See `runner_hub.Owners`."""
        reply: Reply = await self.call(queues_name(self._instance), "ready", self._ref)
        return reply

    def changed(self, view: RunnerView) -> None:
        """See `runner_hub.Owners`. Of what comes while it is being told, only the newest is told next."""
        self._news = view
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        """What is lost here is made up for by the controller's own questions."""
        while self._news is not None:
            view, self._news = self._news, None
            try:
                # Looked up each time: a handle from before the controller's restart may not reach the new one.
                handle = await asyncio.to_thread(find_or_none, controller_name(self._instance))
                if handle is not None:
                    handle.runner_changed.remote(view)
            except Exception as error:  # noqa: BLE001 - whatever keeps it from the controller, it asks by itself
                log.info("the controller was not told of %s: %r", view.phase, error)

    async def append_log(self, offset: int, data: bytes) -> int:
        """Bring output to the log store; returns where it goes on."""
        name = logs_name(self._instance)
        return int(
            await asyncio.wait_for(
                self.call(name, "append", self._ref.workload, self._ref.attempt, offset, data), REPORT_FLUSH_S
            )
        )

    async def finish_log(self) -> None:
        """Tell the log store that nothing follows."""
        try:
            call = self.call(logs_name(self._instance), "finish", self._ref.workload, self._ref.attempt)
            await asyncio.wait_for(call, LOG_FLUSH_S)
        except Exception as error:  # noqa: BLE001 - readers also learn it from the workload's state
            log.warning("the log store was not told of the end: %r", error)


class Work(Protocol):
    """What a runner runs."""

    async def run(self) -> Ended:
        """Begin, and return when nothing of it is left."""
        ...

    async def kill(self) -> None:
        """End it at once."""
        ...


# ---------------------------------------------------------------- the actor


class RunnerShell:
    """One attempt. Every method may be repeated."""

    def __init__(self, order: RunnerOrder) -> None:
        self._order = order
        me = ray.get_runtime_context().get_actor_id() or ""
        self._owners = RayOwners(order.instance, AttemptRef(order.spec.id, order.grant.attempt, me))
        self._hub = AttemptHub(order.spec.kind, order.grant, self._owners)
        self._pump = LogPump(self._owners.append_log)
        self._ranks: RankFile | None = None
        self._tasks = [asyncio.create_task(self._live())]
        threading.Thread(target=self._enforce_lease, name="lease", daemon=True).start()

    def _enforce_lease(self) -> None:
        """Last resort, in a thread: whatever holds up the event loop, the work does not go on without a lease.

        The work may go on for two leases after the last renewal before another attempt takes its place.
        """
        while self._hub.view.phase is not RunnerPhase.ENDED:
            time.sleep(ENFORCE_POLL_S)
            if self._hub.silent_s > ENFORCE_LEASES * self._hub.grant.lease_s:
                log.critical("runner %s: not ended %.1f s after its last renewal", self._order.name, self._hub.silent_s)
                os._exit(1)  # the guard of its command then ends that

    # ------------------------------------------------------------ the attempt's own processes

    @ray.method
    async def grant(self, known_version: int, wait_s: float) -> Grant:
        """What the attempt may use: at once when newer than `known_version`, else after `wait_s` as it is."""
        return await self._hub.wait_grant(known_version, wait_s)

    @ray.method
    async def report(self, report: AttemptReport) -> bool:
        """Pass on what the work says of itself. False: the attempt is over and the reporter must end itself."""
        return await self._hub.report(report)

    # ------------------------------------------------------------ the controller

    @ray.method
    async def update(self, grant: Grant) -> int:
        """Take over new seats or a stop order; returns the number that the grant has from now on."""
        if self._ranks is not None:
            self._ranks.follow(grant)
        return self._hub.update(grant)

    @ray.method
    async def status(self) -> RunnerView:
        """How the runner is."""
        return self._hub.view

    @ray.method
    async def ping(self) -> RunnerView:
        """The same, as a sign of life."""
        return self._hub.view

    # ------------------------------------------------------------ the attempt's life

    async def _live(self) -> None:
        """Lease, work, end. Whatever goes wrong in it, this process does not outlive its lease."""
        try:
            await self._until_lapsed()
            await asyncio.sleep(LAPSE_LINGER_S)
        except Exception:
            log.exception("runner %s failed", self._order.name)
        if self._ranks is not None:
            self._ranks.remove()
        await _end_this_actor()

    async def _until_lapsed(self) -> None:
        """Nothing is started before the queue owner has confirmed that the attempt is current."""
        self._tasks += [asyncio.create_task(self._hub.keep_lease()), asyncio.create_task(self._hub.deliver_reports())]
        lapsed = asyncio.create_task(self._hub.lapsed.wait())
        leased = asyncio.create_task(self._hub.leased.wait())
        await asyncio.wait({lapsed, leased}, return_when=asyncio.FIRST_COMPLETED)
        if not self._hub.lapsed.is_set():
            await self._work(lapsed)
        await lapsed  # after the end of the work, the controller ends us; this is for when it does not
        if self._hub.view.phase is not RunnerPhase.ENDED:
            self._hub.ended(None, f"the lease is over: {self._hub.why_lapsed}")

    async def _work(self, lapsed: asyncio.Task[Any]) -> None:
        try:
            work = self._make_work()
        except RayorchError as error:
            await self._say_ended(Ended(1, f"could not be run: {error}"))
            return
        running = asyncio.create_task(work.run())
        self._tasks += [asyncio.create_task(self._tell_ready()), asyncio.create_task(self._obey_shrinks())]
        await asyncio.wait({running, lapsed}, return_when=asyncio.FIRST_COMPLETED)
        if self._hub.lapsed.is_set():
            running.cancel()
            await asyncio.wait_for(work.kill(), KILL_TIMEOUT_S)
            return
        try:
            ended = running.result()
        except Exception as error:
            log.exception("attempt %s could not be run", self._order.name)
            await asyncio.wait_for(work.kill(), KILL_TIMEOUT_S)
            ended = Ended(1, f"could not be run: {error!r}")
        await self._say_ended(ended)

    async def _say_ended(self, ended: Ended) -> None:
        """Everything that the work said is delivered before the word that it has ended."""
        self._pump.write(f"[rayorch: {ended.message}]\n".encode())
        await self._pump.close(LOG_FLUSH_S)
        await self._owners.finish_log()
        await self._hub.flush(REPORT_FLUSH_S)
        self._hub.ended(ended.exit_code, ended.message)

    def _make_work(self) -> Work:
        order = self._order
        if order.fault:
            raise ClusterError(order.fault)
        if order.spec.kind is Kind.SERVE:
            return ServeWork(order.spec, order.name, NAMESPACE, self._hub, self._pump.write)
        payload = Payload.of_text(order.spec.payload)
        if not payload.entrypoint:
            raise SpecError("payload.entrypoint", "must be given")
        self._ranks = RankFile.make(order.grant)
        identity = DriverIdentity(
            instance=order.instance,
            namespace=NAMESPACE,
            workload=order.spec.id,
            attempt=order.grant.attempt,
            runner=order.name,
            lease_s=order.grant.lease_s,
            storage_path=order.storage_path,
            rank_map=str(self._ranks.path) if self._ranks is not None else "",
        )
        env = job_supervisor_env(payload, identity) | array_variables(order.spec)
        return CommandWork(order.spec.kind, payload.entrypoint, env, self._hub, self._pump.write)

    async def _tell_ready(self) -> None:
        """As soon as the work runs; the controller does it too, a turn later."""
        while self._hub.view.phase is RunnerPhase.STARTING:
            await self._hub.wait_view_change()
        if self._hub.view.phase is RunnerPhase.RUNNING:
            await self._hub.tell_ready()

    async def _obey_shrinks(self) -> None:
        """Kind job: its tasks are placed by the grant, so a seat outside it is left when nothing runs there."""
        if self._hub.kind is not Kind.JOB:
            return
        known = {seat.group_id for seat in self._hub.grant.seats}
        applied = 0
        while not self._hub.lapsed.is_set():
            grant = self._hub.grant
            granted = {seat.group_id for seat in grant.seats}
            known |= granted
            left = tuple(sorted(known - granted))
            if grant.version > applied:
                busy = await asyncio.to_thread(groups_in_use, left) if left else ()
                if not busy:
                    applied, known = grant.version, granted
                    await self._hub.report(GrantApplied(grant.version, self._hub.now_s()))
            await self._hub.wait_change(None if applied >= self._hub.grant.version else SHRINK_POLL_S)


async def _end_this_actor() -> None:
    """Leave in Ray's own way, and if that does not happen in time, in the system's."""
    log.info("this runner ends")
    try:
        await asyncio.wait_for(asyncio.to_thread(_ask_ray_to_end_this_actor), EXIT_WAIT_S)
    except Exception as error:  # noqa: BLE001 - ended in any case, below
        log.info("Ray was not told: %r", error)
    await asyncio.sleep(EXIT_WAIT_S)
    os._exit(0)


def _ask_ray_to_end_this_actor() -> None:
    handle: Any = ray.get_runtime_context().current_actor
    handle.__ray_terminate__.remote()


Runner = ray.remote(RunnerShell)


# ---------------------------------------------------------------- how the controller starts one


def driver_seat(seats: tuple[Seat, ...], role: str) -> Seat | None:
    """The seat beside which the runner lives: of the gang's own group, and of `role` if that is given.

    Without a role the first seat that has a CPU. None when no group is held (Serve makes its own).
    """
    own = [seat for seat in seats if seat.surplus == 0 and seat.group_id and role in ("", seat.role)]
    if role and not own:
        raise SpecError("payload.driver_role", f"the gang has no member of role {role!r}")
    with_cpu = [seat for seat in own if seat.resources.units("CPU")]
    return next(iter(with_cpu or own), None)


def runner_options(order: RunnerOrder, payload: Payload) -> Mapping[str, Any]:
    """Ray's options of the runner's actor.

    It lies in a bundle of its gang, so that it ends when the allocator takes the gang back, and takes nothing of it
    but what the payload gives to the command itself.
    """
    serve = order.spec.kind is Kind.SERVE  # its application is built in a process of its own
    seat = None if serve else driver_seat(order.grant.seats, payload.driver_role)
    strategy: Any = None
    if seat is not None:
        strategy = PlacementGroupSchedulingStrategy(
            group_handle(seat.group_id), seat.bundle_index, placement_group_capture_child_tasks=False
        )
    elif order.grant.seats:
        strategy = NodeAffinitySchedulingStrategy(order.grant.seats[0].node_id, soft=True)
    takes = {} if serve else {name: float(str(amount)) for name, amount in payload.driver_resources.items()}
    return {
        "name": order.name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": MAX_CALLS,
        "num_cpus": takes.pop("CPU", 0),
        "num_gpus": takes.pop("GPU", 0),
        "resources": takes,
        "enable_task_events": False,
        "runtime_env": runner_runtime_env(Payload() if serve else payload),
        "scheduling_strategy": strategy,
    }


def start_runner(settings: RunnerSettings, workload: Workload, grant: Grant) -> Any:
    """Start the attempt's runner, or find the one that is there; returns its handle before it is up.

    A payload that can't be run starts a runner that says so and ends with exit code 1, so that it counts as the
    work's own failure. Raises ClusterError when Ray can't be reached.
    """
    order = RunnerOrder(settings.instance, workload.spec, grant, settings.storage_path)
    try:
        payload = Payload.of_text(workload.spec.payload)
        options = runner_options(order, payload)
        prepare_packages(payload, Path(settings.packages) if settings.packages else None)
    except SpecError as error:
        order = replace(order, fault=str(error))
        options = runner_options(order, Payload())
    return Runner.options(**options).remote(order)


def failed_start(workload: WorkloadId, attempt: int, error: Exception) -> RunnerView | None:
    """What a failure to start a runner says of the workload: ended by its own fault, or None (look again later).

    An environment that can't be set up fails in the same way on each attempt, so it counts as the work's own failure.
    """
    if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
        message = f"could not be started: {error}"
        return RunnerView(workload, attempt, RunnerPhase.ENDED, exit_code=1, message=message)
    return None
