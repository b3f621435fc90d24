"""What runs inside a job's own processes: the driver's hook, the workers' hook and the watch over the lease.

`runtime_env_hook` is named in RAY_RUNTIME_ENV_HOOK of the driver, `worker_setup` reaches the workers as the job's
`worker_process_setup_hook`. Hooks that the user has set are called as well.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray._common.utils import load_class

from rayorch.adapters.ray_job.attempt import AttemptIdentity, GrantReader, variables_of
from rayorch.adapters.ray_job.placement import install
from rayorch.core.reports import SeatInUse, SeatsInUse

log = logging.getLogger(__name__)

CHAINED_ENV_HOOK = "RAYORCH_CHAINED_RUNTIME_ENV_HOOK"
CHAINED_WORKER_HOOK = "RAYORCH_CHAINED_WORKER_SETUP_HOOK"
CHAINED_UV_RUN = "RAYORCH_CHAINED_UV_RUN"
WORKER_SETUP = "rayorch.adapters.ray_job.worker_setup"
DEVICES_SETUP = "rayorch.adapters.ray_devices.install"
DEVICES_SEEN = "rayorch.adapters.ray_devices.take_seen"
DEVICES_NOT_TOLD = "rayorch.adapters.ray_devices.put_back"

FENCED_EXIT_CODE = 75
"""Exit code of a process whose attempt is over (EX_TEMPFAIL: the work is not lost)."""
LEASE_PARTS = 3
"""A worker asks for its lease this many times per lease."""
KILL_WAIT_S = 2.0


# ---------------------------------------------------------------- the driver


def runtime_env_hook(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Called by `ray.init` in the driver: adds the workers' hook and the attempt's variables to the job's environment.

    In a process that no runner started, only the user's own hook is applied.
    """
    env: dict[str, Any] = dict(_user_hooks(runtime_env) or {})
    identity = AttemptIdentity.of_environment(os.environ)
    if identity is None:
        return env
    variables = {**(env.get("env_vars") or {}), **variables_of()}
    users = env.get("worker_process_setup_hook")
    if isinstance(users, str) and users != WORKER_SETUP:
        variables[CHAINED_WORKER_HOOK] = users
    env["worker_process_setup_hook"] = _with_users_setup(users) if callable(users) else WORKER_SETUP
    env["env_vars"] = variables
    install(GrantReader(identity))
    return env


def _user_hooks(runtime_env: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What the user's own hook makes of the environment, and under `uv run` what Ray's own one for it does."""
    if os.environ.get(CHAINED_UV_RUN):
        from ray._private.runtime_env.uv_runtime_env_hook import _get_uv_run_cmdline, hook

        if _get_uv_run_cmdline():
            # As Ray does it: under `uv run` no other hook is called.
            with_uv: Mapping[str, Any] = hook(dict(runtime_env) if runtime_env is not None else None)
            return with_uv
    users = os.environ.get(CHAINED_ENV_HOOK)
    if not users:
        return runtime_env
    changed: Mapping[str, Any] | None = load_class(users)(runtime_env)
    return changed


def _with_users_setup(users: Callable[[], None]) -> Callable[[], None]:
    """One function for both hooks; Ray pickles it by value, with the user's one inside."""

    def rayorch_worker_setup() -> None:
        from rayorch.adapters.ray_job import worker_setup as ours

        ours()
        users()

    rayorch_worker_setup.__module__ = "__main__"
    return rayorch_worker_setup


# ---------------------------------------------------------------- the workers


def worker_setup() -> None:
    """Called in each worker process of the job before its first task."""
    load_class(DEVICES_SETUP)()
    identity = AttemptIdentity.of_environment(os.environ)
    if identity is not None:
        reader = GrantReader(identity)
        install(reader)
        LeaseWatch(reader, end_worker, tell=lambda: tell_devices(reader)).start()
    users = os.environ.get(CHAINED_WORKER_HOOK)
    if users:
        load_class(users)()


def tell_devices(reader: GrantReader) -> None:
    """Tell the runner which GPUs Ray has bound to the seats that this process has worked in, if nobody chose them."""
    seats: tuple[SeatInUse, ...] = load_class(DEVICES_SEEN)()
    if not seats:
        return
    try:
        reader.report(SeatsInUse(seats, time.time()))
    except Exception as error:  # noqa: BLE001 - told again with the next sign of life
        log.info("runner %s was not told of %s: %s", reader.identity.runner, seats, error)
        load_class(DEVICES_NOT_TOLD)(seats)


class LeaseWatch:
    """Ends this process when its attempt is over: the runner says so, is gone, or is silent for a whole lease.

    It asks now and then instead of keeping a question open: a worker that owns an open call is never idle to Ray,
    and would never be ended when there are too many of them.
    """

    def __init__(
        self,
        reader: GrantReader,
        end: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader = reader
        self._end = end
        self._clock = clock
        self._pause = pause
        self._tell = tell

    def start(self) -> None:
        """Watch in a thread that does not hold up the end of the process."""
        threading.Thread(target=self.run, name="rayorch-lease", daemon=True).start()

    def run(self) -> None:
        """Watch until the attempt is over and `end` was called (a process that may stay is no longer watched)."""
        lease_s = self._reader.identity.lease_s
        confirmed_s = self._clock()
        while True:
            self._pause(lease_s / LEASE_PARTS)
            asked_s = self._clock()
            try:
                grant = self._reader.read()
            except ray.exceptions.ActorDiedError as error:
                self._end(f"runner {self._reader.identity.runner} is gone: {error}")
                return
            except Exception as error:  # noqa: BLE001 - whatever keeps the answer from us counts as silence
                silent_s = self._clock() - confirmed_s
                log.warning("no word from runner %s for %.1f s: %s", self._reader.identity.runner, silent_s, error)
                if silent_s >= lease_s:
                    self._end(f"runner {self._reader.identity.runner} has been silent for {silent_s:.1f} s: {error}")
                    return
                continue
            if grant.lapsed:
                self._end(f"the lease of attempt {grant.attempt} of {grant.workload} is over")
                return
            confirmed_s, lease_s = asked_s, grant.lease_s
            self._tell()


def end_worker(why: str) -> bool:
    """End this process; an actor in it is not restarted.

    Returns (False) only for a detached actor without GPUs: it outlives its job, and others may use it.
    """
    context = ray.get_runtime_context()
    actor_id = context.get_actor_id()
    if actor_id is not None and not context.get_accelerator_ids().get("GPU") and _is_detached(actor_id):
        log.warning("rayorch: %s; detached actor %s uses no GPU and stays", why, actor_id)
        return False
    sys.stderr.write(f"rayorch ends process {os.getpid()}: {why}\n")
    sys.stderr.flush()
    if actor_id is not None:
        # Without this, Ray would restart an actor with max_restarts into the next attempt's time.
        threading.Thread(target=_kill_own_actor, name="rayorch-kill", daemon=True).start()
        time.sleep(KILL_WAIT_S)
    os._exit(FENCED_EXIT_CODE)


def _is_detached(actor_id: str) -> bool:
    try:
        return bool(ray._private.state.actors(actor_id)["IsDetached"])
    except Exception as error:  # noqa: BLE001 - unreachable or unknown: then it is ended
        log.warning("can't tell whether actor %s is detached: %s", actor_id, error)
        return False


def _kill_own_actor() -> None:
    try:
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
    except Exception as error:  # noqa: BLE001 - the process ends anyway
        log.warning("could not end this process's actor: %s", error)
