"""The Queue document: a node of the queue tree and all its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rayorch.config.fields import Amounts, Duration, Model, Priority, QueuePath, Version, resources, validate
from rayorch.config.text import duration_s
from rayorch.config.timing import Moment
from rayorch.core.errors import SpecError
from rayorch.core.types import Budget, CellShare, QueueId, QueueMode, QueueSpec, Resources, UserLimits

Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Mode = Literal["open", "hold", "drain"]
Weight = Annotated[int, Field(ge=1, le=1_000_000)]
Period = Annotated[float, BeforeValidator(duration_s), Field(ge=1)]


class QueueMetadata(Model):
    """Metadata of a queue: its path."""

    name: QueuePath


class PerUser(Model):
    """What each owner may hold in the queue and below it, how many workloads may run and wait."""

    resources: Amounts = Field(default_factory=dict)
    max_running: Count | None = None
    max_pending: Count | None = None

    def to_core(self) -> UserLimits:
        """In core's words."""
        path = "spec.perUser.resources"
        return UserLimits(_above_zero(self.resources, path), self.max_running, self.max_pending)


class BudgetBody(Model):
    """`period` left out: once and for all. `start`: when the first period begins. `drain`: stop what runs, too."""

    gpu_hours: Annotated[float, Field(ge=0, le=1e12)]
    period: Period | None = None
    start: Moment = 0.0
    drain: bool = False

    def to_core(self) -> Budget:
        """In core's words."""
        return Budget(float(self.gpu_hours), self.period, self.start, self.drain)


class CellBody(Model):
    """So many whole nodes (`level: node`), or whole domains of a level, with GPUs of one model, and so many of them."""

    level: Annotated[str, Field(min_length=1, max_length=253)]
    count: Annotated[int, Field(ge=1, le=1_000_000)]
    model: Annotated[str, Field(max_length=253)] = ""
    gpus_each: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    def to_core(self) -> CellShare:
        """In core's words."""
        return CellShare(self.level, self.count, self.model, self.gpus_each or 0)


class QueueBody(Model):
    """See `core.types.QueueSpec`; a bare number counts GPUs, and "GPU:H100" those of one model.

    A `hard_cap` of 0 forbids the resource. `weights`: by resource, where it differs from `weight`.
    """

    deserved: Amounts = Field(default_factory=dict)
    guaranteed: Amounts = Field(default_factory=dict)
    borrow_limit: Amounts | None = None
    lend_limit: Amounts | None = None
    hard_cap: Amounts | None = None
    weight: Weight = 1
    weights: Mapping[str, Annotated[int, Field(ge=0, le=1_000_000)]] = Field(default_factory=dict)
    surplus_priority: Priority = 0
    min_priority: Priority = -1_000_000
    max_priority: Priority = 1_000_000
    max_pending: Count | None = None
    per_user: PerUser = PerUser()
    mode: Mode = "open"
    budget: BudgetBody | None = None
    strict: bool | None = None
    fence: bool = False
    min_runtime: Duration = 0.0
    cells: Annotated[list[CellBody], Field(max_length=16)] = Field(default_factory=list)


class QueueDocument(Model):
    """A node of the queue tree."""

    api_version: Version
    kind: Literal["Queue"]
    metadata: QueueMetadata
    spec: QueueBody = QueueBody()

    def to_core(self) -> QueueSpec:
        """In core's words; SpecError for bad amounts or crossed bounds."""
        body = self.spec
        if body.min_priority > body.max_priority:
            raise SpecError("spec.minPriority", f"{body.min_priority} is above maxPriority {body.max_priority}")
        none = {name: 1.0 for name, most in (body.hard_cap or {}).items() if most == 0}
        return QueueSpec(
            id=QueueId(self.metadata.name),
            deserved=resources(body.deserved, "spec.deserved"),
            borrow_limit=_limit(body.borrow_limit, "spec.borrowLimit"),
            lend_limit=_limit(body.lend_limit, "spec.lendLimit"),
            weight=body.weight,
            min_priority=body.min_priority,
            max_priority=body.max_priority,
            max_pending=body.max_pending,
            guaranteed=resources(body.guaranteed, "spec.guaranteed"),
            hard_cap=_limit(body.hard_cap, "spec.hardCap"),
            denied=tuple(name for name, _ in resources(none, "spec.hardCap")),
            surplus_priority=body.surplus_priority,
            weights=_weights(body.weights),
            per_user=body.per_user.to_core(),
            mode=QueueMode(body.mode),
            budget=None if body.budget is None else body.budget.to_core(),
            strict=body.strict,
            fence=body.fence,
            min_runtime_s=body.min_runtime,
            cells=tuple(cell.to_core() for cell in body.cells),
        )


class ModeBody(Model):
    """A change of the mode alone."""

    mode: Mode


def mode_of(value: object) -> QueueMode:
    """The mode that a request body names; SpecError with the field."""
    return QueueMode(validate(ModeBody, value).mode)


def _limit(amounts: Mapping[str, float] | None, field: str) -> Resources | None:
    return None if amounts is None else resources(amounts, field)


def _weights(weights: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    named = [(resources({name: 1.0}, "spec.weights"), weight) for name, weight in weights.items()]
    found = tuple(sorted((name, weight) for amounts, weight in named for name, _ in amounts))
    if len({name for name, _ in found}) < len(found):
        raise SpecError("spec.weights", "names a resource twice")
    return found


def _above_zero(amounts: Mapping[str, float], field: str) -> Resources:
    for name, amount in amounts.items():
        if amount == 0:
            raise SpecError(f"{field}.{name}", "must be above 0; who may have none of it asks in another queue")
    return resources(amounts, field)
