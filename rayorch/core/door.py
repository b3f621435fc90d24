"""The door's memory: a shape that has passed all checks need not be checked again.

Much work comes in heaps of one shape: the jobs of a trace, the entries of a sweep. Of a spec only `OWN` differs from
job to job; where all else is *the very objects* of a spec that has passed, with the same queues and nodes, only `OWN`
is checked. By identity and not by equality, because the checks tell `1` from `True` and `1.0`, which are equal. What
has passed can't have changed since: it is frozen, and was found to hold tuples, text and numbers only. A spec that came
in a message consists of new objects, and is checked whole.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter, is_

from rayorch.core.admission import NodeShape
from rayorch.core.quota import Quota
from rayorch.core.types import Role, WorkloadSpec

OWN = frozenset({"id", "name", "owner", "priority", "expected_s", "total_steps"})
"""What `admission.check_own` checks of every spec. A field that is not named here belongs to the shape."""
MOST = 1024
"""Shapes that are remembered; then all are forgotten."""

_SHAPE = attrgetter(*(field.name for field in fields(WorkloadSpec) if field.name not in OWN))


class Door:
    """The shapes that have passed."""

    def __init__(self) -> None:
        self._passed: dict[tuple[int, int], tuple[object, ...]] = {}  # what it holds keeps its identity
        self._idle: Quota | None = None
        self._nodes: tuple[NodeShape, ...] = ()

    def knows(self, spec: WorkloadSpec, idle: Quota, nodes: tuple[NodeShape, ...]) -> bool:
        """Whether one of its shape has passed, in these queues and on these nodes."""
        if type(spec) is not WorkloadSpec or idle is not self._idle or nodes is not self._nodes:
            return False
        known = self._passed.get((id(spec.roles), id(spec.queue)))
        return known is not None and all(map(is_, known, _SHAPE(spec)))

    def passed(self, spec: WorkloadSpec, idle: Quota, nodes: tuple[NodeShape, ...]) -> None:
        """It has passed all checks. One that depends on others is looked at each time."""
        if spec.after or spec.array is not None or spec.reservation or spec.deadline_s is not None:
            return
        if idle is not self._idle or nodes is not self._nodes or len(self._passed) >= MOST:
            self._passed = {}
            self._idle, self._nodes = idle, nodes
        if type(spec) is WorkloadSpec and all(type(role) is Role for role in spec.roles):
            self._passed[id(spec.roles), id(spec.queue)] = _SHAPE(spec)
