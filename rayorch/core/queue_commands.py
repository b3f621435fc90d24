"""The part of the queue tree that takes commands about queues: set, hold, drain, open, delete, and countables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rayorch.core.admission import check_queue
from rayorch.core.array_tree import ArrayTree
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.events import CancelRequested, CountablesSet, Event, QueueDeleted, QueueSet
from rayorch.core.queue_books import QueueBooks
from rayorch.core.queue_rules import check_countables
from rayorch.core.types import QueueId, QueueMode, QueueSpec, Resources, State


class QueueCommands(ArrayTree):
    """Commands look at the newest state and answer the events that make them true, as all of the queue tree's."""

    def __init__(self) -> None:
        super().__init__()
        self._books = QueueBooks()

    @property
    def queues(self) -> Mapping[QueueId, QueueSpec]:
        """All queues by path."""
        return self._books.specs

    def set_queue(self, spec: QueueSpec, now_s: float) -> tuple[Event, ...]:
        """Create a queue or replace its settings. SpecError; AdmissionError for an unknown parent.

        What an operator has made of its mode stays, unless the mode of the settings is another than it was.
        """
        check_queue(spec)
        if spec.mode is QueueMode.DELETING:
            raise SpecError("mode", "is what deleting a queue sets")
        if spec.parent is not None and spec.parent not in self.queues:
            raise AdmissionError("id", f"the parent queue {spec.parent!r} does not exist")
        known, spec = self.queues.get(spec.id), replace(spec, declared=spec.mode)
        if known is not None and known.declared is spec.declared and known.mode is not QueueMode.DELETING:
            spec = replace(spec, mode=known.mode)
        return () if known == spec else (QueueSet(spec, now_s),)

    def set_queue_mode(self, id: QueueId, mode: QueueMode, now_s: float) -> tuple[Event, ...]:
        """Open, hold or drain a queue, all else as it is; it stays so when it is set up again with the same mode.

        SpecError; AdmissionError for a queue that does not exist.
        """
        known = self.queues.get(id)
        if known is None:
            raise AdmissionError("queue", f"queue {id!r} does not exist")
        spec = replace(known, mode=mode)
        check_queue(spec)
        if mode is QueueMode.DELETING:
            raise SpecError("mode", "is what deleting a queue sets")
        return () if known == spec else (QueueSet(spec, now_s),)

    def delete_queue(self, id: QueueId, now_s: float, drain: bool = False) -> tuple[Event, ...]:
        """Remove a queue that has no children and nothing waiting or running. AdmissionError otherwise.

        With `drain`, one that is in use takes nothing new and shares nothing from now on, what waits in it is
        cancelled, and it goes when the last of what runs has ended.
        """
        spec = self.queues.get(id)
        if spec is None:
            return ()
        children = sorted(other for other, known in self.queues.items() if known.parent == id)
        if children:
            raise AdmissionError("queue", f"queue {id!r} has the child queue {children[0]!r}")
        if not self._books.alive(id):
            return (QueueDeleted(id, now_s),)
        if not drain:
            alive = sorted(w.id for w in self._workloads.values() if w.spec.queue == id and not w.state.terminal)
            raise AdmissionError("queue", f"queue {id!r} has {len(alive)} workloads that have not ended: {alive[0]} …")
        if spec.mode is QueueMode.DELETING:
            return ()
        waiting = sorted(w.id for w in self._workloads.values() if w.spec.queue == id and w.state is State.PENDING)
        events: list[Event] = [QueueSet(replace(spec, mode=QueueMode.DELETING), now_s)]
        events += [CancelRequested(workload, f"queue {id} was deleted", now_s) for workload in waiting]
        return tuple(events)

    def set_countables(self, amounts: Resources, now_s: float) -> tuple[Event, ...]:
        """What the cluster has as a whole and no node has: licences, watts. SpecError for a wrong amount."""
        check_countables(amounts, "countables")
        for workload in self._workloads.values():
            gone = [n for role in workload.spec.roles for n, _ in role.countables if not amounts.units(n)]
            if gone and not workload.state.terminal:
                raise AdmissionError(f"countables.{gone[0]}", f"workload {workload.id!r} names it and has not ended")
        return () if amounts == self._books.countables else (CountablesSet(amounts, now_s),)
