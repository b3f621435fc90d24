"""What the current grant means for the worker group that runs: nothing, ask it to checkpoint, or give up its start.

No Ray in here: the group is reached through the `Group` port, the runner through `report`. One session exists per
Train controller process; the grant thread and Train's event loop both use it, under one lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Protocol

from rayorch.core.errors import RayorchError
from rayorch.core.grants import Grant, Seat
from rayorch.core.reports import AttemptReport, CheckpointCommitted, GrantApplied, StepReported, WorkersStarted
from rayorch.core.types import StopOrder

logger = logging.getLogger(__name__)

WORKER_ROLE = "worker"
NO_HURRY_S = 24 * 3600.0
"""The deadline that a group is told when nothing forces the change: it grows, at its next checkpoint."""


class Phase(StrEnum):
    """What the worker group of this process is doing."""

    IDLE = "idle"  # there is none
    STARTING = "starting"  # actors are being made; no user code runs yet
    RUNNING = "running"


class Reaction(Enum):
    """What a grant asks of the group that uses `used` seats."""

    APPLIED = "applied"  # the group already obeys it
    LATER = "later"  # once the group is up
    ASK = "ask"  # checkpoint, then start again at the new seats
    ABANDON = "abandon"  # the start is in vain; nothing is lost by ending it now


class Group(Protocol):
    """The workers that are starting or running."""

    def notify(self, deadline_s: float, version: int) -> None:
        """Tell every worker at once that the group ends at `deadline_s` (epoch seconds)."""

    def kill(self) -> None:
        """End every worker process; does not wait and does not raise."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The group was asked to checkpoint for grant `version`. `deadline_s` None: it is never forced."""

    version: int
    deadline_s: float | None


def worker_seats(grant: Grant, max_workers: int) -> tuple[Seat, ...]:
    """The seats that Train may use, at most `max_workers`: the first of the grant, in the order of their ranks."""
    ours = [seat for seat in grant.seats if seat.role == WORKER_ROLE][:max_workers]
    return tuple(sorted(ours, key=lambda seat: seat.rank))


def _places(seats: Iterable[Seat]) -> tuple[tuple[str, int], ...]:
    return tuple((seat.group_id, seat.bundle_index) for seat in seats)


def react(grant: Grant, used: tuple[Seat, ...], phase: Phase, max_workers: int) -> Reaction:
    """What `grant` asks of a group in `phase` on the seats `used`."""
    if phase is Phase.IDLE:
        return Reaction.APPLIED
    if grant.stop is not None:
        return Reaction.ABANDON if phase is Phase.STARTING else Reaction.ASK
    target = worker_seats(grant, max_workers)
    if _places(target) == _places(used):
        return Reaction.APPLIED
    if phase is Phase.STARTING:
        lost = set(_places(used)) - set(_places(target))
        return Reaction.ABANDON if lost else Reaction.LATER
    return Reaction.ASK


def deadline_of(grant: Grant) -> float | None:
    """By when a group must have obeyed `grant`, epoch seconds; None when it is not forced."""
    return grant.stop.deadline_s if grant.stop is not None else grant.release_by_s


class GrantSession:
    """The attempt's grant against the worker group of this process."""

    def __init__(self, report: Callable[[AttemptReport], None], now_s: Callable[[], float] = time.time) -> None:
        self._report = report
        self._now_s = now_s
        self._lock = threading.RLock()
        self._grant: Grant | None = None
        self._phase = Phase.IDLE
        self._used: tuple[Seat, ...] = ()
        self._group: Group | None = None
        self._notice: Notice | None = None
        self._abandoned = False
        self._committed: set[str] = set()
        self._answering: set[str] = set()
        self._polls = False
        self.max_workers = 1
        self.failure: RayorchError | None = None
        """Set when the attempt can't go on; the scaling policy raises it inside Train."""

    # ------------------------------------------------------------ what others read

    @property
    def grant(self) -> Grant | None:
        """The newest grant, None until the runner has answered once."""
        return self._grant

    @property
    def stop(self) -> StopOrder | None:
        """The order to end the attempt, if there is one."""
        return self._grant.stop if self._grant is not None else None

    @property
    def notice(self) -> Notice | None:
        """The request that the running group has not obeyed yet."""
        return self._notice

    @property
    def abandoned(self) -> bool:
        """The group that was starting was given up because of a newer grant."""
        return self._abandoned

    @property
    def used(self) -> tuple[Seat, ...]:
        """The seats of the group that starts or runs."""
        return self._used

    @property
    def polls(self) -> bool:
        """Whether the loop of the current group reads notices."""
        return self._polls

    @property
    def disturbed(self) -> bool:
        """Whether what goes wrong with the group now is our doing, not the user's failure."""
        return self._notice is not None or self._abandoned

    @property
    def acknowledged(self) -> bool:
        """Whether a checkpoint that answers the notice has been committed.

        Once the loop has called `get_preemption_info` only a report that began after it saw the notice counts;
        for a loop that never calls it, any checkpoint committed since the notice does.
        """
        with self._lock:
            if self._notice is None:
                return False
            return bool(self._committed & self._answering if self._polls else self._committed)

    @property
    def overdue(self) -> bool:
        """Whether the notice's deadline has passed."""
        notice = self._notice
        return notice is not None and notice.deadline_s is not None and self._now_s() >= notice.deadline_s

    # ------------------------------------------------------------ from the grant thread

    def accept(self, grant: Grant) -> None:
        """A newer grant has arrived: act on it as far as the group's phase allows."""
        with self._lock:
            self._grant = grant
            self._react()

    def _react(self) -> None:
        grant = self._grant
        if grant is None:
            return
        reaction = react(grant, self._used, self._phase, self.max_workers)
        logger.info(
            "grant %d with %d seats%s: %s", grant.version, len(grant.seats), ", stop" if grant.stop else "", reaction
        )
        match reaction:
            case Reaction.APPLIED if self._notice is None:
                self._applied(grant)
            case Reaction.APPLIED | Reaction.ASK:
                # After a notice the group restarts even if the seats are the old ones again: its loop may have ended.
                self._ask(grant)
            case Reaction.ABANDON:
                self._abandoned = True
                if self._group is not None:
                    self._group.kill()
            case Reaction.LATER:
                pass

    def _ask(self, grant: Grant) -> None:
        if self._notice is None:
            self._committed.clear()
            self._answering.clear()
        self._notice = Notice(grant.version, deadline_of(grant))
        if self._group is not None:
            deadline_s = self._notice.deadline_s
            self._group.notify(self._now_s() + NO_HURRY_S if deadline_s is None else deadline_s, grant.version)

    def _applied(self, grant: Grant) -> None:
        """No seat outside the grant is used; after a stop order, none at all, and none will be."""
        self._report(GrantApplied(grant.version, self._now_s()))

    # ------------------------------------------------------------ from Train's event loop

    def begin(self, seats: tuple[Seat, ...]) -> None:
        """A group is about to be made on these seats of the newest grant."""
        with self._lock:
            self._phase = Phase.STARTING
            self._used = seats
            self._group = None
            self._abandoned = False
            self._polls = False

    def starting(self, group: Group) -> None:
        """The actors of the group exist; they are ended at once if the start was given up meanwhile."""
        with self._lock:
            self._group = group
            if self._abandoned:
                group.kill()

    def started(self, count: int) -> None:
        """User code runs in `count` workers. A grant that came in between is acted on now."""
        with self._lock:
            self._phase = Phase.RUNNING
            self._report(WorkersStarted(count, self._now_s()))
            grant = self._grant
            if grant is not None and react(grant, self._used, self._phase, self.max_workers) is Reaction.ASK:
                self._ask(grant)

    def kill_group(self) -> None:
        """End the workers without ceremony: there is nothing left to save, and their GPUs are wanted."""
        with self._lock:
            if self._group is not None:
                self._group.kill()

    def released(self) -> None:
        """The group is down and uses no seat any more."""
        with self._lock:
            if self._phase is Phase.IDLE:
                return
            was_disturbed = self.disturbed
            self._phase = Phase.IDLE
            self._used = ()
            self._group = None
            self._notice = None
            if was_disturbed and self._grant is not None:
                self._applied(self._grant)

    def progressed(self, step: int) -> None:
        """All workers have reported `step`."""
        self._report(StepReported(step, self._now_s()))

    def committed(self, step: int, path: str, uri: str) -> None:
        """A checkpoint is in storage and in Train's snapshot."""
        with self._lock:
            if self._notice is not None:
                self._committed.add(path)
        self._report(CheckpointCommitted(step, uri, self._now_s()))

    def observed(self, polls: bool, answering: Iterable[str]) -> None:
        """From the workers: whether the loop reads notices, and the checkpoints that answer one."""
        with self._lock:
            self._polls = self._polls or polls
            self._answering.update(answering)
