"""Builders: the shortest way to a valid value, everything but what the test is about at its default."""

from __future__ import annotations

from collections.abc import Iterable

from rayorch.core.events import Event, QueueSet, Submitted
from rayorch.core.queues import QueueTree
from rayorch.core.types import (
    MODEL_LABEL,
    Device,
    Kind,
    Member,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    WorkloadId,
    WorkloadSpec,
)


def gpus(amount: float, cpus: float = 0) -> Resources:
    """GPUs, and CPUs if any."""
    return Resources.of({"GPU": amount, "CPU": cpus})


def node(name: str, gpu: int = 4, cpu: int = 16, rack: str = "", model: str = "") -> NodeSpec:
    """A node with devices 0 to gpu-1, of a model and in a rack if one is named."""
    return NodeSpec(
        id=NodeId(name),
        name=name,
        total=Resources.of({"GPU": gpu, "CPU": cpu}),
        devices=tuple(Device(i, model) for i in range(gpu)),
        labels=((MODEL_LABEL, model),) if model else (),
        topology=(("rack", rack),) if rack else (),
    )


def queue(path: str, gpu: float | None = None, borrow: float | None = None, **settings: object) -> QueueSpec:
    """A queue; `gpu` is its deserved share, `borrow` its limit beyond that."""
    return QueueSpec(
        QueueId(path),
        deserved=gpus(gpu) if gpu is not None else Resources(),
        borrow_limit=gpus(borrow) if borrow is not None else None,
        **settings,  # type: ignore[arg-type]
    )


def workload(
    id: str,
    members: int = 1,
    most: int | None = None,
    gpu: float = 1,
    queue: str = "q",
    kind: Kind = Kind.TRAIN,
    **settings: object,
) -> WorkloadSpec:
    """A workload of one role "worker" with `members` to `most` members of `gpu` GPUs each."""
    most = members if most is None else most
    settings.setdefault("resizable", most > members)
    return WorkloadSpec(
        id=WorkloadId(id),
        name=id,
        kind=kind,
        queue=QueueId(queue),
        roles=(Role("worker", gpus(gpu), members, most),),
        **settings,  # type: ignore[arg-type]
    )


def seat(where: str, index: int = 0, surplus: int = 0, gpu: float = 1) -> Member:
    """A worker's place on a node: bundle `index` of the gang's group, or surplus member `surplus`."""
    return Member("worker", index, NodeId(where), gpus(gpu), surplus, 0 if surplus else index)


def seats(where: str, count: int, gpu: float = 1) -> tuple[Member, ...]:
    """A gang's minimum, all on one node."""
    return tuple(seat(where, i, gpu=gpu) for i in range(count))


def apply(tree: QueueTree, events: Iterable[Event]) -> tuple[Event, ...]:
    """Apply what a command answered, and answer it too."""
    done = tuple(events)
    for event in done:
        tree.apply(event)
    return done


def tree(*queues: QueueSpec, waiting: Iterable[WorkloadSpec] = (), now_s: float = 0.0) -> QueueTree:
    """A queue tree with these queues (default: one, "q", without limits) and these workloads submitted."""
    built = QueueTree()
    apply(built, [QueueSet(spec, now_s) for spec in queues or (queue("q"),)])
    apply(built, [Submitted(spec, now_s) for spec in waiting])
    return built
