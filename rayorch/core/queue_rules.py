"""What the settings of a queue must be, and what its limits could never take: checked at the door."""

from __future__ import annotations

from rayorch.core.device_binding import device_index
from rayorch.core.device_checks import check_queue_devices
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.quota import LimitKind, Quota
from rayorch.core.types import (
    CPU,
    GPU,
    MAX_UNITS,
    MODEL_PREFIX,
    UNIT,
    Budget,
    CellShare,
    QueueMode,
    QueueSpec,
    Resources,
    Role,
    UserLimits,
    WorkloadSpec,
)
from rayorch.core.wellformed import (
    check_accelerators,
    check_moment,
    check_resources,
    check_seconds,
    check_text,
    check_whole,
)

MAX_COUNT = 1_000_000_000
MAX_GPU_HOURS = 1e12
MAX_CELLS = 1_000_000
MAX_CELL_KINDS = 16
NODE_RESOURCES = (GPU, CPU, "memory", "object_store_memory")
"""What nodes have, so that no countable may be called so."""


def check_limits(spec: QueueSpec) -> None:
    """SpecError with the path of the first limit of a queue that can't be right."""
    for field, amount in (
        ("deserved", spec.deserved),
        ("borrow_limit", spec.borrow_limit),
        ("lend_limit", spec.lend_limit),
        ("guaranteed", spec.guaranteed),
        ("hard_cap", spec.hard_cap),
    ):
        if amount is not None or field in ("deserved", "guaranteed"):
            check_queue_amount(amount, field)
    check_whole(spec.surplus_priority, "surplus_priority")
    if not isinstance(spec.mode, QueueMode):
        raise SpecError("mode", f"must be a QueueMode, got {spec.mode!r}")
    if not isinstance(spec.fence, bool):
        raise SpecError("fence", f"must be true or false, got {spec.fence!r}")
    check_seconds(spec.min_runtime_s, "min_runtime_s")
    if not isinstance(spec.denied, tuple):
        raise SpecError("denied", f"must be a tuple of names, got {spec.denied!r}")
    for n, name in enumerate(spec.denied):
        check_text(name, f"denied[{n}]")
        if not name or spec.deserved.units(name):
            raise SpecError(f"denied[{n}]", f"{name!r} is no resource that it could be denied")
    _check_weights(spec.weights)
    _check_user_limits(spec.per_user)
    if spec.budget is not None:
        _check_budget(spec.budget)
    _check_cells(spec.cells)
    _check_order_of_limits(spec)


def _check_order_of_limits(spec: QueueSpec) -> None:
    """Guaranteed, deserved and the hard cap, in this order; and one model no more than all GPUs."""
    for name, units in spec.guaranteed:
        if units > spec.deserved.units(name):
            have = spec.deserved.units(name) / UNIT
            raise SpecError(f"guaranteed.{name}", f"{units / UNIT:g} is more than the {have:g} that it deserves")
    for name, units in spec.hard_cap or ():
        if units < spec.deserved.units(name):
            have = spec.deserved.units(name) / UNIT
            raise SpecError(f"hard_cap.{name}", f"{units / UNIT:g} is less than the {have:g} that it deserves")
    gpus = spec.deserved.gpu_units
    for name, units in spec.deserved:
        if name.startswith(MODEL_PREFIX) and gpus and units > gpus:
            raise SpecError(f"deserved.{name}", f"{units / UNIT:g} is more than all GPUs, {gpus / UNIT:g}")


def _check_weights(weights: tuple[tuple[str, int], ...]) -> None:
    if not isinstance(weights, tuple):
        raise SpecError("weights", f"must be a tuple of (resource, weight), got {weights!r}")
    for n, entry in enumerate(weights):
        if not (isinstance(entry, tuple) and len(entry) == 2):
            raise SpecError(f"weights[{n}]", f"must be (resource, weight), got {entry!r}")
        check_text(entry[0], f"weights[{n}]")
        _check_count(entry[1], f"weights.{entry[0]}")


def _check_user_limits(limits: UserLimits) -> None:
    if not isinstance(limits, UserLimits):
        raise SpecError("per_user", f"must be UserLimits, got {limits!r}")
    check_queue_amount(limits.resources, "per_user.resources")
    for field in ("max_running", "max_pending"):
        _check_count(getattr(limits, field), f"per_user.{field}")


def _check_cells(cells: tuple[CellShare, ...]) -> None:
    if not isinstance(cells, tuple) or len(cells) > MAX_CELL_KINDS:
        raise SpecError("cells", f"must be a tuple of at most {MAX_CELL_KINDS} CellShares, got {cells!r}")
    for n, share in enumerate(cells):
        field = f"cells[{n}]"
        if not isinstance(share, CellShare):
            raise SpecError(field, f"must be a CellShare, got {share!r}")
        check_text(share.level, f"{field}.level")
        if not share.level or share.level != share.level.strip() or not share.level.isprintable():
            raise SpecError(f"{field}.level", f"{share.level!r} is no level: name one of the topology's, or node")
        check_text(share.model, f"{field}.model")
        if share.model:
            check_accelerators((share.model,), f"{field}.model")
        check_whole(share.count, f"{field}.count")
        if not 1 <= share.count <= MAX_CELLS:
            raise SpecError(f"{field}.count", f"must be from 1 to {MAX_CELLS}, got {share.count}")
        check_whole(share.gpus_each, f"{field}.gpus_each")
        if not 0 <= share.gpus_each <= MAX_CELLS:
            raise SpecError(f"{field}.gpus_each", f"must be from 0 to {MAX_CELLS}, got {share.gpus_each}")
        for other in cells[:n]:
            if (share.level, share.model) != (other.level, other.model):
                continue
            if share.gpus_each == other.gpus_each:
                raise SpecError(field, f"names cells of level {share.level} a second time")
            if not share.gpus_each or not other.gpus_each:
                raise SpecError(f"{field}.gpus_each", f"of several sizes of level {share.level} each must be named")


def _check_count(value: int | None, field: str) -> None:
    if value is None:
        return
    check_whole(value, field)
    if not 0 <= value <= MAX_COUNT:
        raise SpecError(field, f"must be from 0 to {MAX_COUNT}, got {value}")


def _check_budget(budget: Budget) -> None:
    if not isinstance(budget, Budget):
        raise SpecError("budget", f"must be a Budget, got {budget!r}")
    hours = budget.gpu_hours
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 <= hours <= MAX_GPU_HOURS:
        raise SpecError("budget.gpu_hours", f"must be a number from 0 to {MAX_GPU_HOURS:g}, got {hours!r}")
    check_moment(budget.from_s, "budget.from_s")
    if budget.period_s is not None:
        check_seconds(budget.period_s, "budget.period_s")
        if budget.period_s < 1:
            raise SpecError("budget.period_s", f"must be at least a second, got {budget.period_s}")
    if not isinstance(budget.drain, bool):
        raise SpecError("budget.drain", f"must be true or false, got {budget.drain!r}")


def check_queue_amount(amount: object, field: str) -> None:
    """SpecError unless it is an amount that queues may limit: GPUs of one model and countables among it."""
    check_resources(amount, field)
    assert isinstance(amount, Resources)
    check_amount(amount, field)
    check_queue_devices(amount, field)
    for name, _ in amount:
        if name.startswith(MODEL_PREFIX):
            check_accelerators((name.removeprefix(MODEL_PREFIX),), f"{field}.{name}")


def check_countables(amount: object, field: str) -> None:
    """SpecError unless it is an amount of things that no node has."""
    check_resources(amount, field)
    assert isinstance(amount, Resources)
    check_amount(amount, field)
    for name, _ in amount:
        if not name or name != name.strip() or not name.isprintable():
            raise SpecError(field, f"{name!r} is no name")
        if name in NODE_RESOURCES or name.startswith(MODEL_PREFIX):
            raise SpecError(f"{field}.{name}", "is something that nodes have")


def check_role_names(role: Role, field: str) -> None:
    """SpecError where a member asks a node for GPUs of a model, or the cluster for what a node has."""
    for name, _ in role.bundle:
        if name.startswith(MODEL_PREFIX):
            raise SpecError(f"{field}.bundle.{name}", f"ask for {GPU}, and name the model in accelerators")
    check_countables(role.countables, f"{field}.countables")
    for name, _ in role.countables:
        if role.bundle.units(name):
            raise SpecError(f"{field}.countables.{name}", "is asked of its node too")


def check_amount(amount: Resources, field: str) -> None:
    """SpecError for an amount that is negative, too large to be counted, or of one GPU by name."""
    for name, units in amount:
        if device_index(name) is not None:
            raise SpecError(f"{field}.{name}", f"names one GPU of a node; ask for {GPU}, the scheduler chooses which")
        if units < 0:
            raise SpecError(f"{field}.{name}", f"must not be negative, got {units / UNIT}")
        if units > MAX_UNITS:
            raise SpecError(f"{field}.{name}", f"is too large: {units / UNIT}")


def check_quota_ever(spec: WorkloadSpec, idle: Quota) -> None:
    """AdmissionError when its queues, or what its owner may hold in them, never take the gang's minimum.

    `idle`: the queues with nothing in use.
    """
    least = spec.min_charge
    for name, units in least:
        room = idle.headroom(spec.queue, name)
        if room is not None and units > room:
            raise AdmissionError(
                "queue",
                f"the gang's minimum can never run in queue {spec.queue!r}:"
                f" it needs {units / UNIT:g} {name}, the queue can hold at most {room / UNIT:g}",
            )
    for short in idle.shortages(spec.queue, least, spec.owner, 1):
        if short.kind is LimitKind.USER:
            raise AdmissionError(
                "owner",
                f"the gang's minimum can never run: it needs {short.need / UNIT:g} {short.resource}, and each user may"
                f" have {short.limit / UNIT:g} in queue {short.queue!r}",
            )
    units = least.gpu_units
    rooms = {model: idle.headroom(spec.queue, f"{MODEL_PREFIX}{model}") for model in spec.accelerators if units}
    if rooms and all(room is not None and units > room for room in rooms.values()):
        most = ", ".join(f"{(room or 0) / UNIT:g} {model}" for model, room in rooms.items())
        raise AdmissionError("queue", f"the gang's minimum needs {units / UNIT:g} GPUs of one model: at most {most}")
