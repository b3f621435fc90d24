"""Where the GPU-seconds went, and how many steps were lost: a pure fold over the journal's events.

Every GPU-second that an attempt holds is in one class:

    restart     from its start (or resize) until its workers are up
    productive  work that counts: saved by a checkpoint, finished, or served
    lost        work after the last checkpoint of an attempt that ended without finishing
    checkpoint  from the order to stop or shrink until the checkpoint that answers it
    idle        held without use: after that checkpoint, or an application without any request

Work is not known to count until it is saved: until then it is `unsaved`, and becomes productive or lost later.
Amounts are integers of GPU-units × microseconds, so that the classes add up to the allocated time exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from rayorch.core.events import AttemptEnded, AttemptReady, Event, Reported, Resized, Started, StopOrdered, Submitted
from rayorch.core.lifecycle import Move
from rayorch.core.reports import AttemptReport, CheckpointCommitted, DemandReported, StepReported, WorkersStarted
from rayorch.core.sharing import counted
from rayorch.core.types import UNIT, Kind, Member, StopCause, WorkloadId, total

MICROSECONDS = 1_000_000


class Use(StrEnum):
    """What an attempt does with its GPUs at a moment."""

    RESTART = "restart"
    WORK = "work"
    CHECKPOINT = "checkpoint"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Account:
    """GPU-seconds of a workload by class, as exact integers of GPU-units × microseconds.

    `unsaved`: work of the running attempt that is neither saved nor lost yet.
    """

    productive: int = 0
    checkpoint: int = 0
    restart: int = 0
    lost: int = 0
    idle: int = 0
    unsaved: int = 0

    @property
    def total(self) -> int:
        """All classes together."""
        return self.productive + self.checkpoint + self.restart + self.lost + self.idle + self.unsaved

    def __add__(self, other: Account) -> Account:
        return Account(
            self.productive + other.productive,
            self.checkpoint + other.checkpoint,
            self.restart + other.restart,
            self.lost + other.lost,
            self.idle + other.idle,
            self.unsaved + other.unsaved,
        )

    def gpu_seconds(self) -> dict[str, float]:
        """The classes in GPU-seconds; what is unsaved counts as productive for now."""
        amounts = {
            "productive": self.productive + self.unsaved,
            "checkpoint": self.checkpoint,
            "restart": self.restart,
            "lost": self.lost,
            "idle": self.idle,
        }
        return {name: amount / UNIT / MICROSECONDS for name, amount in amounts.items()}


@dataclass(frozen=True, slots=True)
class StepsLost:
    """Steps that an attempt had made since its last checkpoint when it ended. `cause` None: its own failure."""

    workload: WorkloadId
    attempt: int
    cause: StopCause | None
    steps: int
    at_s: float


@dataclass(frozen=True, slots=True)
class _Attempt:
    number: int
    gpu_units: int
    since: int
    step: int
    use: Use = Use.RESTART
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class _Record:
    kind: Kind
    account: Account = Account()
    attempt: _Attempt | None = None
    saved_step: int = 0

    @property
    def keeps(self) -> bool:
        """Whether its work counts as it passes: what was served or held on a lease needs no checkpoint."""
        return self.kind in (Kind.SERVE, Kind.GANG)


AboutAttempt = AttemptReady | Resized | StopOrdered | AttemptEnded | Reported


class Ledger:
    """The fold's state; `apply` takes events in the order of the journal. Events that are not about use are ignored."""

    __slots__ = ("_records", "_steps_lost")

    def __init__(self) -> None:
        self._records: dict[WorkloadId, _Record] = {}
        self._steps_lost: list[StepsLost] = []

    @property
    def steps_lost(self) -> tuple[StepsLost, ...]:
        """Every attempt that ended with steps that no checkpoint contains."""
        return tuple(self._steps_lost)

    def apply(self, event: Event) -> None:
        """Count the time up to the event, then note what it changes."""
        if isinstance(event, Submitted):
            self._records[event.spec.id] = _Record(event.spec.kind)
        elif isinstance(event, Started):
            record = self._records[event.workload]
            attempt = _Attempt(
                event.attempt, _gpu_units(event.members), _microseconds(event.at_s), step=record.saved_step
            )
            self._records[event.workload] = replace(record, attempt=attempt)
        elif isinstance(event, AboutAttempt):
            found = self._records.get(event.workload)
            if found is None or found.attempt is None or found.attempt.number != event.attempt:
                return
            record, attempt = _advanced(found, found.attempt, _microseconds(event.at_s))
            if isinstance(event, AttemptEnded):
                self._records[event.workload] = self._ended(record, attempt, event)
            else:
                self._records[event.workload] = _noted(record, attempt, event)

    def accounts(self, now_s: float) -> Mapping[WorkloadId, Account]:
        """GPU-seconds per workload up to now, running attempts included."""
        return {id: _up_to(record, _microseconds(now_s)) for id, record in self._records.items()}

    def total(self, now_s: float) -> Account:
        """All workloads together."""
        return sum(self.accounts(now_s).values(), Account())

    def _ended(self, record: _Record, attempt: _Attempt, event: AttemptEnded) -> _Record:
        keeps = event.move is Move.SUCCEEDED or record.keeps
        steps = max(0, attempt.step - record.saved_step)
        if steps and not keeps:
            self._steps_lost.append(StepsLost(event.workload, event.attempt, event.cause, steps, event.at_s))
        return replace(record, account=_settled(record.account, keeps), attempt=None)


def ledger_of(events: Iterable[Event]) -> Ledger:
    """The ledger after all these events."""
    ledger = Ledger()
    for event in events:
        ledger.apply(event)
    return ledger


def allocated(events: Iterable[Event], now_s: float) -> Mapping[WorkloadId, int]:
    """GPU-units × microseconds that each workload held, straight from starts, resizes and ends.

    Computed without the ledger, so that a checker can hold its classes against it.
    """
    held: dict[WorkloadId, tuple[int, int, int]] = {}  # attempt, GPU units, since
    found: dict[WorkloadId, int] = {}
    for event in events:
        if not isinstance(event, Started | Resized | AttemptEnded):
            continue
        at = _microseconds(event.at_s)
        attempt, units, since = held.get(event.workload, (event.attempt, 0, at))
        if attempt != event.attempt and not isinstance(event, Started):
            continue
        at = max(at, since)
        found[event.workload] = found.get(event.workload, 0) + units * (at - since)
        if isinstance(event, AttemptEnded):
            held.pop(event.workload, None)
        else:
            held[event.workload] = (event.attempt, _gpu_units(event.members), at)
    for id, (_, units, since) in held.items():
        found[id] = found.get(id, 0) + units * (max(_microseconds(now_s), since) - since)
    return found


# ---------------------------------------------------------------- one attempt


def _advanced(record: _Record, attempt: _Attempt, at: int) -> tuple[_Record, _Attempt]:
    """With the time since the last event booked under what the attempt was doing."""
    at = max(at, attempt.since)
    amount = attempt.gpu_units * (at - attempt.since)
    return replace(record, account=record.account + _booked(attempt.use, amount)), replace(attempt, since=at)


def _noted(record: _Record, attempt: _Attempt, event: AttemptReady | Resized | StopOrdered | Reported) -> _Record:
    """With what the event says of the attempt from here on."""
    match event:
        case AttemptReady():
            attempt = _begun(attempt)
        case Resized():
            attempt = replace(attempt, gpu_units=_gpu_units(event.members))
            if record.kind is Kind.TRAIN:  # its workers start anew, after a checkpoint where seats are given up
                use = Use.CHECKPOINT if event.release_by_s is not None else Use.RESTART
                attempt = replace(attempt, use=use)
        case StopOrdered():
            attempt = replace(attempt, stopping=True, use=attempt.use if record.keeps else Use.CHECKPOINT)
        case Reported():
            return _reported(record, attempt, event.report)
    return replace(record, attempt=attempt)


def _booked(use: Use, amount: int) -> Account:
    match use:
        case Use.RESTART:
            return Account(restart=amount)
        case Use.CHECKPOINT:
            return Account(checkpoint=amount)
        case Use.IDLE:
            return Account(idle=amount)
        case Use.WORK:
            return Account(unsaved=amount)


def _up_to(record: _Record, now: int) -> Account:
    attempt = record.attempt
    if attempt is None or now <= attempt.since:
        return record.account
    return record.account + _booked(attempt.use, attempt.gpu_units * (now - attempt.since))


def _settled(account: Account, keeps: bool) -> Account:
    """Unsaved work becomes productive, or lost."""
    settled = Account(productive=account.unsaved) if keeps else Account(lost=account.unsaved)
    return account + settled + Account(unsaved=-account.unsaved)


def _begun(attempt: _Attempt) -> _Attempt:
    return replace(attempt, use=Use.WORK) if attempt.use is Use.RESTART else attempt


def _reported(record: _Record, attempt: _Attempt, report: AttemptReport) -> _Record:
    match report:
        case WorkersStarted():
            attempt = _begun(attempt)
        case StepReported(step=step):
            attempt = replace(_begun(attempt), step=max(attempt.step, step))
        case CheckpointCommitted(step=step):
            record = replace(record, account=_settled(record.account, keeps=True), saved_step=step)
            attempt = replace(attempt, step=max(attempt.step, step))
            if attempt.use is Use.CHECKPOINT:
                attempt = replace(attempt, use=Use.IDLE if attempt.stopping else Use.RESTART)
        case DemandReported(ongoing=ongoing, queued=queued):
            if record.kind is Kind.SERVE and attempt.use in (Use.WORK, Use.IDLE):
                attempt = replace(attempt, use=Use.WORK if ongoing + queued else Use.IDLE)
        case _:
            pass
    return replace(record, attempt=attempt)


def _gpu_units(members: tuple[Member, ...]) -> int:
    return counted(total(m.bundle for m in members)).gpu_units


def _microseconds(at_s: float) -> int:
    return round(at_s * MICROSECONDS)
