"""The callback that RAY_TRAIN_CALLBACKS names: how rayorch gets into an unmodified Ray Train script."""

from __future__ import annotations

import asyncio
import itertools
import logging
import operator
import os
from typing import Any

from ray.train import Checkpoint
from ray.train.v2._internal.execution.callback import ControllerCallback, ReportCallback, WorkerGroupCallback

from rayorch.adapters.ray_train.contact import AttemptIds, GrantFollower, Reporter, end_process
from rayorch.adapters.ray_train.controller import install
from rayorch.adapters.ray_train.session import GrantSession
from rayorch.core.errors import ClusterError

logger = logging.getLogger(__name__)

FLUSH_S = 5.0
"""How long the end of a run waits for its last reports to be delivered."""

_fits = itertools.count()


def step_of(metrics: dict[str, Any], reports: int) -> int:
    """The step that a report stands for: its "step" if that is a whole number, else the count of reports."""
    value = metrics.get("step")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        return reports if value is None or isinstance(value, bool) else operator.index(value)
    except TypeError:
        return reports


def checkpoint_uri(checkpoint: Checkpoint, storage_path: str) -> str:
    """Where a checkpoint can be read from outside: a path for local and mounted storage, else with its scheme."""
    filesystem = checkpoint.filesystem
    if filesystem is None or filesystem.type_name == "local":
        return str(checkpoint.path)
    scheme = storage_path.partition("://")[0] if "://" in storage_path else filesystem.type_name
    return f"{scheme}://{checkpoint.path}"


class GrantCallback(ControllerCallback, WorkerGroupCallback, ReportCallback):
    """Ties a Train run to the grant of its attempt.

    Made in the driver, without arguments, from the RAYORCH_* variables; unpickled in the process of Train's
    controller, where it puts `controller.py` in force and starts to follow the grant. Where no runner is named it
    does nothing. Where one is named that can't be reached, fit() fails instead of taking GPUs that nobody granted.
    """

    def __init__(self) -> None:
        self._ids = AttemptIds.from_environment(os.environ)
        self._fit_index = next(_fits) if self._ids is not None else 0
        self._session: GrantSession | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_ids": self._ids, "_fit_index": self._fit_index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session = None
        if self._ids is not None:
            self._enter(self._ids)

    def _enter(self, ids: AttemptIds) -> None:
        self._reporter = Reporter(ids)
        self._session = session = GrantSession(self._reporter.send)
        self._storage_path = ""
        self._checkpoints: Any = None

        def on_lost(why: str) -> None:
            if session.grant is not None:
                end_process(why)
            session.failure = ClusterError(f"the runner of this attempt can't be reached: {why}")

        self._follower = GrantFollower(ids, session.accept, on_lost)
        install(self._session_of, ids, self._fit_index)

    def _session_of(self, controller: Any) -> GrantSession | None:
        """Called when a controller of this process starts; its own callback is the one in its list."""
        if self._session is None or self not in controller._callbacks:
            return None
        self._checkpoints = controller._checkpoint_manager
        self._storage_path = controller._run_config.storage_path
        self._reporter.start()
        self._follower.start()
        return self._session

    def after_controller_start(self, train_run_context: Any) -> None:
        """Refuse to run in a controller that was not adopted: it would take GPUs that nobody granted."""
        if self._session is not None and self._checkpoints is None:
            raise ClusterError("this Ray release starts Train's controller in a way that rayorch does not know")

    def after_worker_group_training_start(self, worker_group: Any) -> None:
        """User code runs in every worker."""
        if self._session is not None:
            self._session.started(len(worker_group))

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """All workers have reported, and Train has recorded the checkpoint, if there is one, in its snapshot."""
        if self._session is None:
            return
        # Train's count goes on where the last attempt's snapshot ends.
        step = step_of(training_report.metrics, self._checkpoints._current_report_index)
        self._session.progressed(step)
        checkpoint = training_report.checkpoint
        if checkpoint is not None:
            self._session.committed(step, checkpoint.path, checkpoint_uri(checkpoint, self._storage_path))

    async def before_controller_shutdown(self) -> None:
        """Deliver what is queued before the driver ends this process."""
        if self._session is None:
            return
        if not await asyncio.to_thread(self._reporter.flush, FLUSH_S):
            logger.warning("the last reports were not delivered within %g s", FLUSH_S)
