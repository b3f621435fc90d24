"""What a score of nodes may look at, and for how long one holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar, cast

from rayorch.core.marks import AnyPolicy, marked
from rayorch.core.slot import Slot
from rayorch.core.types import CPU, UNIT, NodeSpec, Resources, WorkloadId

T = TypeVar("T")


class ScoreBasis(IntEnum):
    """What a score depends on beside the bundle and the view, so that it need not be worked out again."""

    STATE = 0  # on the model of the node's GPUs and what is free there: equal nodes have one score
    NODE = 1  # on the node itself and what is free there
    CLAIM = 2  # on who asks as well: it is asked anew of every node for every claim


def scored_by(basis: ScoreBasis, classes: bool = False) -> Callable[[AnyPolicy], AnyPolicy]:
    """Mark a score policy with its basis, and whether it looks at what is typically asked for.

    One that has no mark is scored by node and may look at the classes.
    """
    return marked(basis=basis, classes=classes)


def score_basis(policy: Callable[..., object]) -> ScoreBasis:
    """What a score policy depends on."""
    basis = getattr(policy, "basis", ScoreBasis.NODE)
    return basis if isinstance(basis, ScoreBasis) else ScoreBasis.NODE


def looks_at_classes(policy: Callable[..., object]) -> bool:
    """Whether what is typically asked for changes a score; where not, it need not be made anew as that is learned."""
    return getattr(policy, "classes", True) is not False


@dataclass(frozen=True, slots=True)
class TaskClass:
    """Seats that are asked for again and again, as a score sees them.

    `cpu`: CPUs in stored units. `count` devices with `each` units free on every one of them; 0 of work without GPUs.
    `models`: of which GPUs these may be, empty: any. `weight`: how often it is asked for, beside the other classes.
    """

    cpu: int
    each: int
    count: int
    models: frozenset[str]
    weight: int

    @property
    def gpu_units(self) -> int:
        """All that it takes of GPUs."""
        return self.each * self.count


def class_of(bundle: Resources, models: Iterable[str], weight: int = 1) -> TaskClass:
    """The class of a seat. Of whole GPUs and a fraction beside them the fraction is left out."""
    units = bundle.gpu_units
    whole = units // UNIT
    each, count = (UNIT, whole) if whole else (units, int(units > 0))
    return TaskClass(bundle.units(CPU), each, count, frozenset(models) if units else frozenset(), weight)


@dataclass(frozen=True, slots=True)
class PlacementKnobs:
    """What a profile tells its score policies.

    `classes`: what is typically asked for; empty: what was learned. `seed`: of random placement.
    """

    classes: tuple[TaskClass, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PlacementView:
    """What a score may look at beside the bundle and the node; one object for as long as all of it is the same.

    `classes`: what is typically asked for. `capacity`: GPU units of each model on all nodes. `claim`: who asks, set
    for scores by `ScoreBasis.CLAIM` alone. `memo`: for what a policy works out of the view once. `marks`: under which
    scores are kept with what is free (`SlotState`).
    """

    classes: tuple[TaskClass, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    claim: WorkloadId | None = None
    memo: dict[object, object] = field(default_factory=dict, repr=False)
    marks: dict[object, object] = field(default_factory=dict, repr=False)

    def once(self, make: Callable[[PlacementView], T]) -> T:
        """What `make(view)` gives, made once: for what every score reads."""
        if make not in self.memo:
            self.memo[make] = make(self)
        return cast(T, self.memo[make])

    def same(self, classes: tuple[TaskClass, ...], capacity: Mapping[str, int], seed: int) -> bool:
        """Whether it is the view of these."""
        return (classes is self.classes or classes == self.classes) and capacity == self.capacity and seed == self.seed


class NodeView:
    """One node and what is free there."""

    __slots__ = ("model", "slot", "spec")

    def __init__(self, spec: NodeSpec, slot: Slot, model: str) -> None:
        """`model`: of all its GPUs, empty where there is no such model."""
        self.spec = spec
        self.slot = slot
        self.model = model

    @property
    def free(self) -> Resources:
        """All amounts that are free; the GPUs are those of healthy devices."""
        return self.slot.free

    @property
    def devices(self) -> tuple[int, ...]:
        """The free GPU units of each device, by position."""
        return self.slot.devices


def capacity_by_model(nodes: Iterable[NodeSpec]) -> dict[str, int]:
    """GPU units of each model."""
    found: dict[str, int] = {}
    for node in nodes:
        if units := node.total.gpu_units:
            found[node.model] = found.get(node.model, 0) + units
    return found
