"""The invariants that need the whole journal, kept up event by event: each event is looked at once.

`take` new events as they come, `now` what must hold of the queue owner's state after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rayorch.core.events import (
    AttemptEnded,
    CancelRequested,
    Event,
    Forgotten,
    NodeCordoned,
    NodeUncordoned,
    Reported,
    Resized,
    Started,
    StopOrdered,
    Submitted,
)
from rayorch.core.joint import JointKey, joint_key
from rayorch.core.lifecycle import Move
from rayorch.core.reports import CheckpointCommitted
from rayorch.core.timing import After
from rayorch.core.types import NodeId, State, Workload, WorkloadId, WorkloadSpec
from rayorch.sim.checkers import EVICTIONS, Violation


class HistoryWatch:
    """What is known of the past: open attempts, places, committed checkpoints, drains, who evicted whom."""

    def __init__(self) -> None:
        self._attempt: dict[WorkloadId, int] = {}
        self._submitted: dict[WorkloadId, float] = {}
        self._saved: dict[WorkloadId, int] = {}
        self._drains: dict[NodeId, float] = {}
        self._last_s: dict[WorkloadId, float] = {}
        self._turns: dict[tuple[WorkloadId, WorkloadId], list[WorkloadId]] = {}
        self._touched: set[WorkloadId] = set()
        self._specs: dict[WorkloadId, WorkloadSpec] = {}  # of those that depend on others, or start with others
        self._ended: dict[WorkloadId, Move] = {}
        self._begun: set[WorkloadId] = set()
        self._arrays: set[WorkloadId] = set()
        self._joint: dict[JointKey, set[WorkloadId]] = {}

    def take(self, event: Event) -> Iterator[Violation]:
        """What one more event violates."""
        match event:
            case Submitted(spec=spec, at_s=at_s):
                self._submitted[spec.id] = at_s
                self._touched.add(spec.id)
                if spec.array is not None:
                    self._arrays.add(spec.id)
                if spec.after or spec.joint is not None:
                    self._specs[spec.id] = spec
            case Forgotten(workloads=ids):
                for id in ids:
                    self._forget(id)
            case Started(workload=id, attempt=attempt, members=members, at_s=at_s):
                if id in self._attempt:
                    yield Violation(4, id, f"attempt {attempt} began during attempt {self._attempt[id]}")
                self._attempt[id] = attempt
                late = sorted({m.node for m in members if m.node in self._drains and at_s > self._drains[m.node]})
                for node in late:
                    yield Violation(5, id, f"started on drained node {node}")
                yield from self._too_early(id)
                self._begun.add(id)
            case CancelRequested(workload=id) if id not in self._attempt:
                self._ended[id] = Move.CANCELLED
            case AttemptEnded(workload=id, attempt=attempt, move=move, cause=cause):
                if self._attempt.pop(id, None) != attempt:
                    yield Violation(4, id, f"attempt {attempt} ended without having begun")
                if cause in EVICTIONS and move is Move.FAILED:
                    yield Violation(8, id, "a victim counts as failed")
                if move is not Move.REQUEUED:
                    self._ended[id] = move
            case Reported(workload=id, report=CheckpointCommitted(step=step)):
                self._saved[id] = step
            case NodeCordoned(node=node, drain_by_s=by_s) if by_s is not None:
                self._drains[node] = by_s
            case NodeUncordoned(node=node):
                self._drains.pop(node, None)
            case StopOrdered():
                yield from self._evictions(event)
            case _:
                pass
        if isinstance(event, Started | Resized | StopOrdered | AttemptEnded):
            yield from self._times(event)
        if not isinstance(event, Submitted) and (subject := getattr(event, "workload", None)) is not None:
            self._touched.add(subject)

    def now(self, workloads: Mapping[WorkloadId, Workload]) -> Iterator[Violation]:
        """What the queue owner's state violates, of those about whom something was heard since the last call.

        4: what was accepted is known. 8: everyone has its place and its last committed checkpoint. Every workload
        that is known was accepted.
        """
        for (_, name), members in sorted(self._joint.items()):
            count = max(spec.joint.count for id in members if (spec := self._specs[id]).joint is not None)
            if len(members) < count:
                yield Violation(2, min(members), f"{len(members)} of {count} of the joint gang {name} have begun")
        self._joint.clear()
        touched, self._touched = self._touched, set()
        for id in sorted(touched):
            workload = workloads.get(id)
            submitted_s = self._submitted.get(_accepted_as(workload) if workload is not None else id)
            if workload is None:
                if submitted_s is not None:
                    yield Violation(4, id, "was accepted and is unknown now")
                continue
            if workload.submitted_s != submitted_s:
                yield Violation(8, id, f"lost its place: {workload.submitted_s} is not {submitted_s}")
            step = workload.checkpoint.step if workload.checkpoint is not None else None
            want = self._saved.get(id)
            if step != want:
                yield Violation(8, id, f"its checkpoint is of step {step}, the last committed one of {want}")
            if workload.state is State.PENDING and workload.step != (want or 0):
                yield Violation(8, id, f"would resume at step {workload.step} with a checkpoint of {want}")

    def _too_early(self, id: WorkloadId) -> Iterator[Violation]:
        """2: nothing starts before what it depends on has happened, or without those that it starts together with."""
        spec = self._specs.get(id)
        if spec is None:
            return
        for dependency in spec.after:
            other = dependency.workload
            if other is None or other not in self._submitted or other in self._arrays:
                continue
            ended = self._ended.get(other)
            met = {
                After.STARTED: other in self._begun or ended is not None,
                After.OK: ended is Move.SUCCEEDED,
                After.ANY: ended is not None,
                After.NOT_OK: ended in (Move.FAILED, Move.CANCELLED),
            }
            if not met.get(dependency.kind, True):
                yield Violation(2, id, f"started before {dependency.kind.value}:{other} was so")
        key = joint_key(spec)
        if key is not None and id not in self._begun and not self._seen_before(key):
            self._joint.setdefault(key, set()).add(id)

    def _seen_before(self, key: JointKey) -> bool:
        """Whether the joint gang had begun before what was told since the last look."""
        now = self._joint.get(key, set())
        return any(joint_key(spec) == key and id in self._begun and id not in now for id, spec in self._specs.items())

    def everyone(self, workloads: Mapping[WorkloadId, Workload]) -> Iterator[Violation]:
        """The same of all, whether or not they were heard of: after an owner has read its journal again."""
        self._touched |= self._submitted.keys()
        for id in sorted(workloads.keys() - self._submitted.keys()):
            if _accepted_as(workloads[id]) not in self._submitted:
                yield Violation(4, id, "is known and was never accepted")
        yield from self.now(workloads)

    def _forget(self, id: WorkloadId) -> None:
        for known in (self._submitted, self._saved, self._last_s):
            known.pop(id, None)
        self._specs.pop(id, None)
        self._ended.pop(id, None)
        self._touched.discard(id)

    def _times(self, event: Started | Resized | StopOrdered | AttemptEnded) -> Iterator[Violation]:
        """9, its base: every attempt's times are in order, so that allocated time can be divided without remainder."""
        if event.at_s < self._last_s.get(event.workload, event.at_s):
            yield Violation(9, event.workload, f"{type(event).__name__} lies before its predecessor")
        self._last_s[event.workload] = event.at_s

    def _evictions(self, event: StopOrdered) -> Iterator[Violation]:
        """14: no two workloads evict each other in turn: A for B, B for A, and A for B again."""
        if event.order.cause not in EVICTIONS or event.order.beneficiary is None:
            return
        victim, other = event.workload, event.order.beneficiary
        turns = self._turns.setdefault((min(victim, other), max(victim, other)), [])
        if not turns or turns[-1] != victim:
            turns.append(victim)
        if len(turns) == 3:
            yield Violation(14, victim, f"{victim} and {other} evict each other in turn")


def _accepted_as(workload: Workload) -> WorkloadId:
    """Under which id it was accepted: an entry with its array."""
    return workload.spec.id if workload.spec.entry is None else workload.spec.entry.array
