"""Inside a Train worker: the lease, and what the training loop did about a notice to checkpoint.

Ray's controller learns from a worker that a report was made, not whether the loop had seen the notice when it made
it. Acting on a periodic checkpoint that was under way when the notice came would lose the steps after it, so the
worker says which checkpoints are answers.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray.train import Checkpoint
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils, set_train_fn_utils
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker, Worker
from ray.train.v2.api.preemption import PreemptionInfo

from rayorch.adapters.ray_train.contact import AttemptIds, GrantFollower

logger = logging.getLogger(__name__)

HOLD_S = 120.0
"""How long a loop that has answered a notice waits to be ended before it goes on after all."""
HOLD_CHECK_S = 0.5


@dataclass(frozen=True)
class GrantNotice(PreemptionInfo):
    """A notice of ours; plain `PreemptionInfo`s come from Ray's own watcher of draining nodes."""

    version: int = 0


@dataclass
class NoticedStatus(WorkerStatus):
    """What a poll brings back. `answers`: its checkpoint was reported by a loop that had seen a notice."""

    polls: bool = False
    answers: bool = False


class NoticeDesk:
    """What the loop of this worker knows about notices. Reports are counted as Train counts them, from 1."""

    def __init__(self) -> None:
        self.polls = False
        self._answers_from: int | None = None
        self._ours = False
        self._answered_at_s: float | None = None

    def saw(self, info: PreemptionInfo | None, reports_begun: int) -> None:
        """The loop asked, and was told `info`, after `reports_begun` reports."""
        self.polls = True
        if info is None:
            return
        self._ours = self._ours or isinstance(info, GrantNotice)
        if self._answers_from is None:
            self._answers_from = reports_begun + 1

    def is_answer(self, report_index: int) -> bool:
        """Whether the loop had seen a notice when it began report `report_index`."""
        return self._answers_from is not None and report_index >= self._answers_from

    def checkpointed(self) -> None:
        """The loop has reported a checkpoint; if that answers a notice of ours, its work is done."""
        if self._ours and self._answered_at_s is None:
            self._answered_at_s = time.monotonic()

    def hold(self, gone: threading.Event) -> None:
        """Keep a loop that has answered from going on: steps after its checkpoint would be thrown away.

        It ends with the process, which is near; after HOLD_S something is wrong and training continues.
        """
        if self._answered_at_s is None:
            return
        while time.monotonic() - self._answered_at_s < HOLD_S:
            if gone.wait(HOLD_CHECK_S):
                return
        logger.warning("no end came within %g s of the checkpoint that was asked for; training goes on", HOLD_S)
        self._answered_at_s = None


class NoticedTrainFnUtils(DistributedTrainFnUtils):
    """What `ray.train.report` and `ray.train.get_preemption_info` call, watched."""

    def __init__(self, desk: NoticeDesk) -> None:
        self._desk = desk
        self._gone = threading.Event()

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None = None, *args: Any, **kwargs: Any) -> None:
        """Report as Ray does, and note when that was the checkpoint that was asked for."""
        self._desk.hold(self._gone)
        super().report(metrics, checkpoint, *args, **kwargs)
        if checkpoint is not None:
            self._desk.checkpointed()
            self._desk.hold(self._gone)  # here, before the loop computes a step that would be thrown away

    def get_preemption_info(self) -> PreemptionInfo | None:
        """Ray's answer; from here on the loop is known to read notices."""
        self._desk.hold(self._gone)
        info = super().get_preemption_info()
        self._desk.saw(info, get_train_context().report_call_index)
        return info


class GrantTrainWorker(RayTrainWorker):
    """Train's worker actor in a held seat."""

    def __init__(self) -> None:
        cast("Any", super()).__init__()
        self._desk = NoticeDesk()
        self._reports_taken = 0

    def keep_lease(self, ids: AttemptIds) -> None:
        """End this process when the attempt's lease is over, so that a replaced attempt writes no checkpoint."""
        GrantFollower(ids, on_grant=_ignore).start()

    def init_train_context(self, *args: Any, **kwargs: Any) -> None:
        """Ray's, then watch what the loop does about notices."""
        super().init_train_context(*args, **kwargs)
        self._desk = NoticeDesk()
        self._reports_taken = get_train_context().current_report_index
        set_train_fn_utils(NoticedTrainFnUtils(self._desk))

    def poll_status(self) -> NoticedStatus:
        """Ray's poll, with what the loop did about a notice. Train takes reports in the order they were made."""
        status = super().poll_status()
        answers = False
        if status.training_report is not None:
            self._reports_taken += 1
            answers = self._desk.is_answer(self._reports_taken)
        return NoticedStatus(**vars(status), polls=self._desk.polls, answers=answers)


def _ignore(grant: object) -> None:
    """A worker needs the lease only."""


class ActorGroup:
    """The worker actors of one group, as the session reaches them."""

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors
        self._workers: list[Worker] = []

    def ranked(self, workers: list[Worker]) -> None:
        """The workers have their ranks."""
        self._workers = workers

    def notify(self, deadline_s: float, version: int) -> None:
        """Mark every worker as about to end: all of them restart, whichever seats are wanted."""
        ranks: dict[str, list[int]] = {}
        for worker in self._workers:
            assert worker.distributed_context is not None, "workers are ranked before anyone is notified"
            ranks.setdefault(worker.metadata.node_id, []).append(worker.distributed_context.world_rank)
        info = GrantNotice(int(deadline_s * 1000), ranks, version)
        for worker in self._workers:
            worker.actor.mark_preempt.remote(info)

    def kill(self) -> None:
        """SIGKILL to each worker process; a dead one is no error."""
        for actor in self._actors:
            ray.kill(actor)
