"""What is asked of the queue owner, and what it answers: one frozen value each way.

An expected refusal is a value (`Reply.accepted` false, with the stable `code` of the error tree, the field that
is wrong and a sentence), so that a caller on the other side of a process boundary needs no exception to read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rayorch.core.arrays import EntryRow, shown_state
from rayorch.core.decisions import Resize, Start
from rayorch.core.errors import AdmissionError, RayorchError, SpecError
from rayorch.core.events import Event
from rayorch.core.reports import AttemptReport
from rayorch.core.snapshot import Versions
from rayorch.core.types import Kind, Member, NodeId, QueueId, QueueMode, State, Workload, WorkloadId

# ---------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End this workload; `reason` is shown to whoever asks what became of it."""

    workload: WorkloadId
    reason: str


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Commit a start that was planned on these versions of the facts, with those of its joint gang or not at all."""

    start: Start
    versions: Versions
    partners: tuple[Start, ...] = ()


@dataclass(frozen=True, slots=True)
class ResizeRequest:
    """Commit a resize; `members` is the attempt's full new list of seats."""

    resize: Resize
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """One attempt of one workload. `runner`: which of its runners asks, where one does."""

    workload: WorkloadId
    attempt: int
    runner: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """What an attempt says of itself."""

    workload: WorkloadId
    attempt: int
    report: AttemptReport


@dataclass(frozen=True, slots=True)
class CordonRequest:
    """Nothing new on a node; with `drain_by_s`, what is there leaves by then."""

    node: NodeId
    reason: str
    drain_by_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueModeRequest:
    """Open, hold or drain a queue."""

    queue: QueueId
    mode: QueueMode


@dataclass(frozen=True, slots=True)
class DeleteQueueRequest:
    """Remove a queue; with `drain`, one that is in use goes when the last of its work has ended."""

    queue: QueueId
    drain: bool = False


@dataclass(frozen=True, slots=True)
class UncordonRequest:
    """A node may take work again."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a command. Accepted means durable: it survives the owner's death.

    `code` is empty when accepted, else "invalid", "rejected", "stale", "transition" or "cluster" (the owner could
    not write; ask again later). `field` names what has to change, where there is one.
    """

    accepted: bool
    code: str = ""
    field: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """What became of one submission; `reply.accepted` is true for a repeat of the same spec too.

    `now`: the accepted workload as it is then, with a single submission only.
    """

    workload: WorkloadId
    reply: Reply
    now: Workload | None = None


ACCEPTED = Reply(accepted=True)


def refusal(error: RayorchError) -> Reply:
    """The reply that says what an error says."""
    match error:
        case SpecError() | AdmissionError():
            return Reply(False, error.code, error.field, error.message)
        case _:
            return Reply(False, error.code, "", str(error))


# ---------------------------------------------------------------- questions


class Until(StrEnum):
    """What to wait for. An ended workload is waited for no longer, whatever was asked."""

    RUNNING = "running"
    """An attempt runs."""
    READY = "ready"
    """An attempt runs and its work has begun."""
    ENDED = "ended"
    """It is over."""
    CHANGED = "changed"
    """Its state or attempt is another one than was seen."""


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """A long poll: answer when the workload has come that far, and after `wait_s` as it is then.

    `seen`: (state, attempt), for CHANGED.
    """

    workload: WorkloadId
    until: Until
    wait_s: float
    seen: tuple[State, int] | None = None

    def met(self, workload: Workload) -> bool:
        """Whether there is nothing to wait for."""
        if workload.state.terminal:
            return True
        match self.until:
            case Until.RUNNING:
                return shown_state(workload) is State.RUNNING
            case Until.READY:
                return workload.state is State.RUNNING and workload.ready_s is not None
            case Until.CHANGED:
                return (workload.state, workload.attempt) != self.seen
            case Until.ENDED:
                return False


@dataclass(frozen=True, slots=True)
class WorkloadFilter:
    """Which workloads to list; an empty tuple or string, or None, means any. `queue` includes the queues below it."""

    states: tuple[State, ...] = ()
    kinds: tuple[Kind, ...] = ()
    queue: QueueId | None = None
    owner: str = ""
    name: str = ""

    def matches(self, workload: Workload) -> bool:
        """Whether the workload passes every condition."""
        spec = workload.spec
        return (
            (not self.states or shown_state(workload) in self.states)
            and (not self.kinds or spec.kind in self.kinds)
            and (not self.queue or spec.queue == self.queue or spec.queue.startswith(f"{self.queue}/"))
            and (not self.owner or spec.owner == self.owner)
            and (not self.name or spec.name == self.name)
        )


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A page of workloads in the order of submission (`newest_first`: the other way).

    `cursor` is the `next_cursor` of the page before, empty for the first.
    """

    filter: WorkloadFilter = WorkloadFilter()
    limit: int = 100
    cursor: str = ""
    newest_first: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadPage:
    """One page; `next_cursor` is empty when it is the last."""

    workloads: tuple[Workload, ...]
    next_cursor: str = ""


@dataclass(frozen=True, slots=True)
class EntriesRequest:
    """Entries of an array, from index `first` on."""

    array: WorkloadId
    first: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class EntriesPage:
    """Some entries in the order of their indices; `next_first` None: there are no further ones."""

    entries: tuple[EntryRow, ...]
    next_first: int | None = None


@dataclass(frozen=True, slots=True)
class EventsRequest:
    """Events after `cursor` (0: from the oldest kept), of one workload or of all."""

    cursor: int = 0
    limit: int = 100
    workload: WorkloadId | None = None


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event and its place in the journal."""

    sequence: int
    event: Event


@dataclass(frozen=True, slots=True)
class EventsPage:
    """Some events in order; ask again with `next_cursor`. `more`: there are further ones already.

    `oldest`: the first sequence number that the journal still holds; what lies before was compacted away.
    """

    events: tuple[RecordedEvent, ...]
    next_cursor: int
    more: bool
    oldest: int


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """How the queue owner is. `journal_error` is empty while it can write."""

    instance: str
    journal_id: str
    journal_path: str
    format_version: int
    version: int
    sequence: int
    snapshot_sequence: int
    states: tuple[tuple[State, int], ...]
    queues: int
    started_s: float
    recovery_s: float
    journal_error: str = ""
