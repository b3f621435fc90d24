"""What must have happened to other workloads before one may start.

A dependency is met, open, or can't be met any more. Each is judged when the dependent is submitted and again whenever
the other one changes; once met it stays met, whatever becomes of the other one afterwards. A dependent with one that
can't be met any more is *doomed*: it ends as CANCELLED, with the reason. Names and meaning are Slurm's; differs in that
all of several must be met, and that nothing waits for a dependency that can never be met.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rayorch.core.timing import After, Dependency
from rayorch.core.types import State, Workload, WorkloadId

NameKey = tuple[str, str]
"""(name, owner): what a singleton is the only one of."""

WORDS: Mapping[After, str] = {
    After.STARTED: "started",
    After.OK: "succeeded",
    After.ANY: "ended",
    After.NOT_OK: "failed",
    After.CORRESPONDING: "its entry of the same index succeeded",
}
"""What has to have happened to the other one, in a sentence with "has not"."""


def met(dependency: Dependency, other: Workload) -> bool | None:
    """True: met. False: can't be met any more. None: open. Not for SINGLETON, which names no other one."""
    state, progress = other.state, other.progress
    failed = progress is not None and progress.failed + progress.cancelled > 0
    match dependency.kind:
        case After.STARTED:
            begun = progress.waiting == 0 if progress is not None else other.attempt > 0
            return True if begun or state.terminal else None
        case After.ANY:
            return True if state.terminal else None
        case After.OK:
            if state is State.SUCCEEDED:
                return True
            return False if failed or state.terminal else None
        case After.NOT_OK:
            if state in (State.FAILED, State.CANCELLED):
                return True
            return False if state is State.SUCCEEDED else None
        case _:  # entry by entry: see arrays.py. The array as a whole is held back by nothing.
            return True


def never_text(dependency: Dependency, other: Workload) -> str:
    """Why it can't be met any more."""
    return f"dependency {text_of(dependency)} can't be met any more: {other.id} is {other.state.value}"


def text_of(dependency: Dependency) -> str:
    """As documents have it: afterok:prep."""
    return dependency.kind.value if dependency.workload is None else f"{dependency.kind.value}:{dependency.workload}"


def waits_text(unmet: Iterable[Dependency]) -> str:
    """What an open set of dependencies waits for, in words."""
    parts = []
    for dependency in unmet:
        if dependency.kind is After.SINGLETON:
            parts.append("an earlier workload of its name and owner has not ended")
        else:
            parts.append(f"{dependency.workload} has not {WORDS[dependency.kind]}")
    return "; ".join(parts)


class Dependents:
    """Who waits for whom, kept up to date with every change of a workload. O(1) where nobody waits.

    `doomed`: the dependents that can't be met any more, with the reason.
    """

    def __init__(self) -> None:
        self._waiting: dict[WorkloadId, dict[WorkloadId, None]] = {}
        self._named: dict[NameKey, dict[WorkloadId, None]] = {}  # alive, in the order of submission
        self._singles: set[NameKey] = set()  # names of which one is, or was, to be the only one that runs
        self.doomed: dict[WorkloadId, str] = {}

    def open_at_submission(self, workload: Workload, known: Mapping[WorkloadId, Workload]) -> tuple[Dependency, ...]:
        """The dependencies of a new workload that are not met already; `known` does not hold it yet."""
        return tuple(d for d in workload.spec.after if not self._met(workload, d, known))

    def changed(self, workload: Workload, known: Mapping[WorkloadId, Workload]) -> list[Workload]:
        """Take in a workload's newest state. Answers with dependents that wait for less now, to be stored."""
        freed = self._renamed(workload, known)
        if workload.state is State.PENDING and workload.unmet:
            for dependency in workload.unmet:
                if dependency.workload is not None:
                    self._waiting.setdefault(dependency.workload, {})[workload.id] = None
                elif dependency.kind is After.SINGLETON:
                    self._singles.add(_name(workload))
            self._judge(workload, known)
        elif workload.unmet:
            self.doomed.pop(workload.id, None)
            for dependency in workload.unmet:
                if dependency.workload is not None:
                    self._forget(dependency.workload, workload.id)
        for id in tuple(self._waiting.get(workload.id, ())) if self._waiting else ():
            dependent = known[id]
            left = tuple(d for d in dependent.unmet if not self._met(dependent, d, known))
            if left != dependent.unmet:
                freed.append(replace(dependent, unmet=left))
            else:
                self._judge(dependent, known)
            if not any(d.workload == workload.id for d in left):
                self._forget(workload.id, id)
        return freed

    def _judge(self, workload: Workload, known: Mapping[WorkloadId, Workload]) -> None:
        for dependency in workload.unmet:
            other = known.get(dependency.workload) if dependency.workload is not None else None
            if other is not None and met(dependency, other) is False:
                self.doomed[workload.id] = never_text(dependency, other)
                return

    def _met(self, workload: Workload, dependency: Dependency, known: Mapping[WorkloadId, Workload]) -> bool:
        if dependency.kind is After.SINGLETON:
            line = self._named.get(_name(workload), {})
            return next(iter(line), workload.id) == workload.id
        other = known.get(dependency.workload) if dependency.workload is not None else None
        return other is not None and met(dependency, other) is True

    def _renamed(self, workload: Workload, known: Mapping[WorkloadId, Workload]) -> list[Workload]:
        """Keep the line of those with its name; its end may make the next one of them the first."""
        if workload.spec.entry is not None:
            return []  # an array's entries count as the one array
        key = _name(workload)
        if not workload.state.terminal:
            line = self._named.get(key)
            if line is None:
                line = self._named[key] = {}
            line.setdefault(workload.spec.id, None)
            return []
        line = self._named.get(key, {})
        if workload.spec.id not in line:
            return []
        del line[workload.spec.id]
        if not line:
            del self._named[key]
            self._singles.discard(key)
            return []
        if key not in self._singles:
            return []  # who is the first matters to nobody
        first = known[next(iter(line))]
        left = tuple(d for d in first.unmet if d.kind is not After.SINGLETON)
        return [replace(first, unmet=left)] if left != first.unmet else []

    def _forget(self, target: WorkloadId, dependent: WorkloadId) -> None:
        waiting = self._waiting.get(target, {})
        waiting.pop(dependent, None)
        if not waiting:
            self._waiting.pop(target, None)


def _name(workload: Workload) -> NameKey:
    return (workload.spec.name, workload.spec.owner)
