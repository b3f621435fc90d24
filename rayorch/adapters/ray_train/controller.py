"""Inside Train's controller process: the held seats in place of Train's own placement group and sizing.

Everything here subclasses a private class of Ray Train V2. `install` puts it in force in this process only, through
one replaced method, `TrainController._start`; a controller without our callback is left as it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import ray
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.train.constants import DEFAULT_STORAGE_PATH
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.controller.state import ReschedulingState
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingPolicy
from ray.train.v2.api.config import RunConfig, ScalingConfig
from ray.train.v2.api.exceptions import ControllerError, PreemptionError, TrainingFailedError, WorkerGroupError
from ray.train.v2.api.preemption import PreemptionInfo

from rayorch.adapters.ray_train.contact import AttemptIds
from rayorch.adapters.ray_train.seats import HeldWorkerGroup, check_shape
from rayorch.adapters.ray_train.session import GrantSession
from rayorch.core.errors import ClusterError

logger = logging.getLogger(__name__)

POLL_S = 0.25
"""Between two looks at the workers. Ray's default of 2 s would be most of the time that a preemption may take."""
NOTICE_POLL_S = 0.1
"""The same while a notice is open."""
WAIT_S = 0.25
"""Pause of the control loop while there is nothing to start; Ray's own loop has none and takes 72 % of a core."""
LOST_NODE_WAIT_S = 120.0
"""How long a group whose node died waits for other seats before fit() fails; the attempt is then queued again."""
NODE_VERDICT_S = 15.0
"""How long a silent worker's node may take to be declared dead; Ray's default detection needs 13 s."""
NODE_CHECK_S = 0.25
MAX_START_FAILURES = 5
"""Starts in a row that may fail on an unchanged grant."""

DEFAULT_NAME = re.compile(r"ray_train_run-\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}")
"""The name that Ray gives to a run whose script gives none; it changes with each start, so nothing would resume."""


class AttemptStopped(PreemptionError):
    """fit() ends because rayorch ordered this attempt to stop; the next one resumes from the last checkpoint."""

    def __init__(self, info: PreemptionInfo, drain_timed_out: bool, reason: str) -> None:
        super().__init__(info, drain_timed_out)
        self.reason = reason
        self.args = (f"rayorch stopped this attempt ({reason}); the next one resumes from the last checkpoint",)

    def __reduce__(self) -> tuple[type[AttemptStopped], tuple[PreemptionInfo, bool, str]]:
        return (type(self), (self.preemption_info, self.drain_timed_out, self.reason))


def preemption_error(session: GrantSession, timed_out: bool) -> PreemptionError:
    """How the running group's end is called inside Train: a stop of the attempt, or a restart elsewhere."""
    deadline_s = session.notice.deadline_s if session.notice is not None else None
    info = PreemptionInfo(None if deadline_s is None else int(deadline_s * 1000), {})
    if session.stop is not None:
        return AttemptStopped(info, timed_out, f"{session.stop.cause}: {session.stop.reason}")
    return PreemptionError(info, timed_out)


# ---------------------------------------------------------------- size


def dead_nodes() -> frozenset[str]:
    """Hex ids of the nodes that Ray has declared dead."""
    return frozenset(node["NodeID"] for node in ray.nodes() if not node["Alive"])


class GrantScalingPolicy(ScalingPolicy):
    """World size = seats granted. Never speaks to Ray's autoscaling coordinator: room is the allocator's business."""

    def __init__(self, scaling_config: ScalingConfig, session: GrantSession) -> None:
        super().__init__(scaling_config)
        self._session = session
        self._waiting_since_s: float | None = None

    def _get_num_workers_for_resource_request(self) -> int:
        return 0

    def after_controller_start(self, train_run_context: Any) -> None:
        """Nothing is requested."""

    async def before_controller_shutdown(self) -> None:
        """Nothing was requested."""

    def before_controller_abort(self) -> None:
        """Nothing was requested."""

    def make_decision_for_non_running_worker_group(self) -> NoopDecision | ResizeDecision:
        """Start on the newest grant's seats, or wait when there is none yet or one of its nodes is dead."""
        session = self._session
        if session.failure is not None:
            raise session.failure
        grant = session.grant
        if grant is None:
            return NoopDecision()
        if session.stop is not None:
            raise preemption_error(session, timed_out=False)
        seats = check_shape(self.scaling_config, grant)
        lost = sorted({seat.node_id for seat in seats} & dead_nodes())
        if lost:
            self._wait_for_other_seats(lost)
            return NoopDecision()
        self._waiting_since_s = None
        session.begin(seats)
        return ResizeDecision(num_workers=len(seats), resources_per_worker=seats[0].resources.to_floats())

    def _wait_for_other_seats(self, lost: list[str]) -> None:
        now_s = time.monotonic()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
            logger.warning("waiting for other seats: nodes %s are dead", lost)
        if now_s - self._waiting_since_s > LOST_NODE_WAIT_S:
            raise ClusterError(f"no seats in place of those on dead nodes {lost} within {LOST_NODE_WAIT_S:g} s")

    def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> NoopDecision:
        """A running group is changed by notice and checkpoint, never by Train's resize, which takes none."""
        return NoopDecision()


class GrantFailurePolicy(FailurePolicy):
    """What we cause is retried without being counted; everything else is left to the user's FailureConfig."""

    def __init__(self, inner: FailurePolicy, session: GrantSession) -> None:
        super().__init__(inner.failure_config)
        self._inner = inner
        self._session = session
        self._start_failures = 0
        self._failed_version = -1

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        """RAISE ends fit(); RETRY starts the group again from the last committed checkpoint."""
        session = self._session
        if session.stop is not None:
            return FailureDecision.RAISE
        if session.disturbed or isinstance(training_failed_error, PreemptionError):
            logger.info("not counted as a failure, the grant has changed: %s", training_failed_error)
            return FailureDecision.RETRY
        if isinstance(training_failed_error, WorkerGroupError) and self._node_died(training_failed_error):
            logger.warning("not counted as a failure, a node died: %s", training_failed_error)
            return FailureDecision.RETRY
        if self._starts_in_vain(training_failed_error):
            return FailureDecision.RAISE
        return self._inner.make_decision(training_failed_error)

    def _starts_in_vain(self, error: TrainingFailedError) -> bool:
        cause = error.controller_failure if isinstance(error, ControllerError) else None
        if not isinstance(cause, WorkerGroupStartupFailedError | WorkerGroupStartupTimeoutError):
            return False
        version = self._session.grant.version if self._session.grant is not None else -1
        if version != self._failed_version:
            self._failed_version, self._start_failures = version, 0
        self._start_failures += 1
        return self._start_failures >= MAX_START_FAILURES

    def _node_died(self, error: WorkerGroupError) -> bool:
        """Whether workers were lost with a node. A worker that only fell silent gets NODE_VERDICT_S."""
        causes = [
            e.health_check_failure if isinstance(e, WorkerHealthCheckFailedError) else e
            for e in error.worker_failures.values()
        ]
        if not any(isinstance(cause, RayActorError) for cause in causes):
            return False
        nodes = {seat.node_id for seat in self._session.used}
        silent = any(isinstance(cause, ActorUnavailableError) for cause in causes)
        deadline_s = time.monotonic() + (NODE_VERDICT_S if silent else 0.0)
        while not nodes & dead_nodes():
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(NODE_CHECK_S)
        return True


# ---------------------------------------------------------------- the control loop


class GrantController:
    """Mixed in before Ray's TrainController: ends a group as soon as it has answered, and waits without spinning."""

    _session: GrantSession
    _poll_s: float

    async def _poll_workers(self) -> Any:
        controller = cast("Any", self)
        session = self._session
        controller._health_check_interval_s = self._poll_s if session.notice is None else NOTICE_POLL_S
        status = await cast("Any", super())._poll_workers()
        answering = [
            worker.training_report.checkpoint.path
            for worker in status.worker_statuses.values()
            if getattr(worker, "answers", False) and worker.training_report.checkpoint is not None
        ]
        polls = any(getattr(worker, "polls", False) for worker in status.worker_statuses.values())
        session.observed(polls, answering)
        if status.errors:
            return status
        # Ray takes a loop that saves and returns on request for a finished one; resuming it does no harm if it was.
        if controller._is_training_succeeded(status) and not (session.acknowledged and session.polls):
            return status
        if session.acknowledged or session.overdue:
            raise preemption_error(session, timed_out=not session.acknowledged)
        return status

    def _execute_failure_decision(
        self, failure_decision: Any, training_failed_error: Any, invoke_failure_decision_callbacks: bool = True
    ) -> Any:
        error = training_failed_error
        if self._session.stop is not None and not isinstance(error, PreemptionError):
            # What the end of the workers looks like to Train is not why it ends.
            error = preemption_error(self._session, timed_out=False)
        return cast("Any", super())._execute_failure_decision(
            failure_decision, error, invoke_failure_decision_callbacks
        )

    def _shutdown_worker_group(self) -> None:
        if self._session.disturbed:
            self._session.kill_group()
        try:
            cast("Any", super())._shutdown_worker_group()
        finally:
            self._session.released()

    def _make_and_handle_scaling_decision_for_non_running_worker_group(self, controller_state: Any) -> Any:
        if cast("Any", self)._worker_group is not None:
            # Ray keeps the old group, and its GPUs, until the next size is known.
            self._shutdown_worker_group()
        return cast("Any", super())._make_and_handle_scaling_decision_for_non_running_worker_group(controller_state)

    async def _step(self) -> Any:
        result = await cast("Any", super())._step()
        if result.next_state is result.previous_state or isinstance(result.next_state, ReschedulingState):
            await asyncio.sleep(WAIT_S)
        return result


def adopt(controller: Any, session: GrantSession, ids: AttemptIds) -> None:
    """Make a controller that is about to start live on the grant."""
    policy = GrantScalingPolicy(controller._scaling_policy.scaling_config, session)
    hooks = controller._controller_callbacks
    hooks[hooks.index(controller._scaling_policy)] = policy
    controller._scaling_policy = policy
    controller._failure_policy = GrantFailurePolicy(controller._failure_policy, session)
    for callbacks in (hooks, controller._worker_group_callbacks_to_propagate, controller._callbacks):
        callbacks[:] = [c for c in callbacks if not isinstance(c, PlacementGroupCleanerCallback)]
    session.max_workers = policy.scaling_config.max_workers
    controller.worker_group_cls = type("HeldWorkerGroup", (HeldWorkerGroup,), {"session": session, "ids": ids})
    controller._session = session
    controller._poll_s = min(POLL_S, controller._health_check_interval_s)
    controller.__class__ = type("GrantTrainController", (GrantController, type(controller)), {})


def storage_name(workload: str) -> str:
    """A name for the workload's runs that no other workload's is, and that storage of any kind takes."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", workload)
    return plain if plain == workload else f"{plain}-{hashlib.sha256(workload.encode()).hexdigest()[:12]}"


def settle_run_config(config: RunConfig, ids: AttemptIds, fit_index: int) -> None:
    """Give a run that names no place one that the workload's next attempt finds again.

    Explicit names and paths stay. `fit_index`: how many fit() this driver has called before.
    """
    own = storage_name(ids.workload)
    named = DEFAULT_NAME.fullmatch(config.name or "") is None
    if ids.storage_path and config.storage_path == DEFAULT_STORAGE_PATH:
        # Two workloads that run one script with one name must not meet in one folder.
        config.storage_path = f"{ids.storage_path.rstrip('/')}/{own}" if named else ids.storage_path
    if not named:
        config.name = f"{own}@{fit_index + 1}" if fit_index else own  # "@" is in no storage name


def _classes_with_own_start() -> list[Any]:
    """TrainController and what Ray derives from it for the actor: Ray copies every method into that class."""
    found, waiting = [], [cast("Any", TrainController)]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if "_start" in cls.__dict__:
            found.append(cls)
    return found


def _patch_start(cls: Any, session_of: Callable[[Any], GrantSession | None], ids: AttemptIds) -> None:
    original = cls._start

    def start(controller: Any) -> None:
        session = session_of(controller)
        if session is not None and not isinstance(controller, GrantController):
            adopt(controller, session, ids)
        original(controller)

    cls._start = start


def install(session_of: Callable[[Any], GrantSession | None], ids: AttemptIds, fit_index: int) -> None:
    """Patch this process, which is about to make a TrainController. `session_of(controller)` finds its session."""
    for cls in _classes_with_own_start():
        _patch_start(cls, session_of, ids)
    run_config_class = cast("Any", RunConfig)
    original = run_config_class.__dict__["storage_context"].func

    def storage_context(config: RunConfig) -> Any:
        settle_run_config(config, ids, fit_index)
        return original(config)

    settled = cached_property(storage_context)
    settled.__set_name__(RunConfig, "storage_context")
    run_config_class.storage_context = settled
