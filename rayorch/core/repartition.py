"""Which idle MIG GPUs to cut anew so that waiting work gets instances of the profiles that it asks for.

A plan that is shown and that an operator carries out: nothing here, and nothing else in rayorch, cuts a GPU. A GPU on
which any instance is held, used by others or sick is never in it. Of a gang either all members are served or nothing is
cut for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rayorch.core.mig import Instance, MigModel, arrange, mig_model
from rayorch.core.room import Room
from rayorch.core.sharing import compute_slices, device_need, mig_profile, mig_resource
from rayorch.core.types import UNIT, Allocation, NodeId, NodeSpec, Resources, State, Workload, WorkloadId, WorkloadSpec


@dataclass(frozen=True, slots=True)
class Cut:
    """One GPU to cut anew. `before`: its profiles now; `after`: its instances then, by where they begin.

    `serves`: for whom. `others`: seats on other GPUs of the node, which leave first, because Ray has to be started anew
    there to see new instances.
    """

    node: NodeId
    name: str
    gpu: str
    model: str
    before: tuple[str, ...]
    after: tuple[Instance, ...]
    serves: tuple[WorkloadId, ...]
    others: int = 0

    @property
    def steps(self) -> tuple[str, ...]:
        """What an operator does, in order."""
        profiles = ",".join(i.profile for i in sorted(self.after, key=lambda i: (-compute_slices(i.profile), i.start)))
        waits = f"wait until the {self.others} seats on its other GPUs are left" if self.others else ""
        steps = (
            f"rayorch cordon {self.name} --reason 'cutting a GPU anew'",
            waits,
            f"on {self.name}: nvidia-smi mig -i {self.gpu} -dci && nvidia-smi mig -i {self.gpu} -dgi",
            f"on {self.name}: nvidia-smi mig -i {self.gpu} -cgi {profiles} -C",
            f"start Ray on {self.name} anew with the new instances in CUDA_VISIBLE_DEVICES",
            f"rayorch uncordon {self.name}",
        )
        return tuple(step for step in steps if step)


@dataclass(frozen=True, slots=True)
class RepartitionPlan:
    """`cuts` by node and GPU. `unserved`: who waits for instances that no idle GPU could give, and why."""

    cuts: tuple[Cut, ...] = ()
    unserved: tuple[tuple[WorkloadId, str], ...] = ()


class _Gpu:
    """An idle GPU and what it is to be cut into."""

    __slots__ = ("before", "model", "node", "pci", "serves", "wanted")

    def __init__(self, node: NodeSpec, pci: str, model: MigModel, before: tuple[str, ...]) -> None:
        self.node = node
        self.pci = pci
        self.model = model
        self.before = before
        self.wanted: tuple[str, ...] = ()
        self.serves: tuple[WorkloadId, ...] = ()

    def copy(self) -> _Gpu:
        twin = _Gpu(self.node, self.pci, self.model, self.before)
        twin.wanted, twin.serves = self.wanted, self.serves
        return twin


class _Books:
    """Room for what needs no cut, and the idle GPUs; copied for each gang."""

    __slots__ = ("gpus", "nodes", "room")

    def __init__(self, nodes: Mapping[NodeId, NodeSpec], room: Room, gpus: dict[tuple[NodeId, str], _Gpu]) -> None:
        self.nodes = nodes
        self.room = room
        self.gpus = gpus

    def copy(self) -> _Books:
        return _Books(self.nodes, self.room.copy(), {key: gpu.copy() for key, gpu in self.gpus.items()})


def repartition_plan(
    nodes: Iterable[NodeSpec], allocations: Iterable[Allocation], workloads: Iterable[Workload], now_s: float
) -> RepartitionPlan:
    """The cuts for workloads that wait, those of higher priority and the older first. O(waiting members × idle GPUs).

    Quota, topology and order are looked at when they start, not here.
    """
    known, held = {node.id: node for node in nodes}, tuple(allocations)
    waiting = [w for w in workloads if w.state is State.PENDING and _slices(w.spec)]
    if not waiting:
        return RepartitionPlan()
    room = Room.of(known.values(), held, now_s)
    books = _Books(known, room, _idle_gpus(known, room))
    unserved: list[tuple[WorkloadId, str]] = []
    for workload in sorted(waiting, key=lambda w: (-w.spec.priority, w.submitted_s, w.id)):
        trial = books.copy()
        lacking = _serve(trial, workload.spec)
        if lacking:
            unserved.append((workload.id, lacking))
        else:
            books = trial
    seats = _seats_per_node(held)
    return RepartitionPlan(
        tuple(_cut(gpu, seats) for _, gpu in sorted(books.gpus.items()) if gpu.wanted), tuple(unserved)
    )


def _slices(spec: WorkloadSpec) -> bool:
    return any(device_need(role.bundle).slices for role in spec.roles if role.min_count)


def _idle_gpus(nodes: Mapping[NodeId, NodeSpec], room: Room) -> dict[tuple[NodeId, str], _Gpu]:
    """GPUs that are cut, of a known model, of which no instance is in use or sick, on nodes that take new members."""
    found: dict[tuple[NodeId, str], _Gpu] = {}
    for id, node in sorted(nodes.items()):
        if not node.mig_mixed or not room.usable(id):
            continue
        slot, by_gpu = room.slot(id), dict[str, list[int]]()
        for position, gpu in enumerate(slot.layout.gpus):
            if gpu and slot.layout.profiles[position]:
                by_gpu.setdefault(gpu, []).append(position)
        for gpu, positions in by_gpu.items():
            profiles = tuple(sorted(slot.layout.profiles[p] for p in positions))
            model = mig_model(node.model, 0, profiles)
            if model is not None and all(slot.left[p] == UNIT * slot.layout.sizes[p] for p in positions):
                found[id, gpu] = _Gpu(node, gpu, model, profiles)
    return found


def _serve(books: _Books, spec: WorkloadSpec) -> str:
    """Seat the gang's minimum, cutting idle GPUs where it must; why that can't be, empty when it can."""
    for role in spec.roles:
        for _ in range(role.min_count):
            if not _seat(books, spec, role.bundle):
                profiles = ", ".join(f"{count} x {name}" for name, count in device_need(role.bundle).slices)
                return f"no idle GPU{_of_models(spec)} can be cut into {profiles or 'nothing'} for role {role.name}"
    return ""


def _of_models(spec: WorkloadSpec) -> str:
    return f" of {' or '.join(spec.accelerators)}" if spec.accelerators else ""


def _seat(books: _Books, spec: WorkloadSpec, bundle: Resources) -> bool:
    able = [n for n in sorted(books.nodes) if not spec.accelerators or books.nodes[n].model in spec.accelerators]
    for node in able:
        if books.room.fits(node, bundle):
            books.room.take(node, bundle)
            return True
    rest = Resources.of_units({name: n for name, n in bundle if mig_profile(name) is None})
    for node in able:
        if books.room.fits(node, rest) and _cut_for(books, node, spec.id, device_need(bundle).slices):
            books.room.take(node, rest)
            return True
    return False


def _cut_for(books: _Books, node: NodeId, id: WorkloadId, slices: tuple[tuple[str, int], ...]) -> bool:
    """Put the instances on the node's idle GPUs: on those that are cut anyway first, then on those that lose least."""
    for profile, count in slices:
        for _ in range(count):
            here = [g for (where, _), g in sorted(books.gpus.items()) if where == node and _untouched(books, g)]
            here.sort(key=lambda g: (not g.wanted, len(g.before), g.pci))
            gpu = next((g for g in here if arrange(g.model, tuple(sorted((*g.wanted, profile)))) is not None), None)
            if gpu is None:
                return False
            if not gpu.wanted:
                _close(books, gpu)
            gpu.wanted = tuple(sorted((*gpu.wanted, profile)))
            gpu.serves = gpu.serves if id in gpu.serves else (*gpu.serves, id)
    return True


def _untouched(books: _Books, gpu: _Gpu) -> bool:
    """Whether nobody ahead was given one of its instances as they are; or it is cut already."""
    slot = books.room.slot(gpu.node.id)
    return bool(gpu.wanted) or all(
        slot.left[p] == UNIT * slot.layout.sizes[p] for p, pci in enumerate(slot.layout.gpus) if pci == gpu.pci
    )


def _close(books: _Books, gpu: _Gpu) -> None:
    """The instances that it has now are gone: nobody is seated on them any more."""
    layout = books.room.slot(gpu.node.id).layout
    for position, pci in enumerate(layout.gpus):
        if pci == gpu.pci:
            gone = Resources.of_units({mig_resource(layout.profiles[position]): -UNIT})
            books.room.give(gpu.node.id, gone, (layout.indices[position],))


def _cut(gpu: _Gpu, seats: Mapping[NodeId, int]) -> Cut:
    """The whole GPU: what is wanted, then as many of its former instances as still have a place, the large first."""
    names = gpu.wanted
    for profile in sorted(gpu.before, key=lambda name: (-compute_slices(name), name)):
        more = tuple(sorted((*names, profile)))
        spare = gpu.before.count(profile) > names.count(profile) - gpu.wanted.count(profile)
        if spare and arrange(gpu.model, more) is not None:
            names = more
    after = arrange(gpu.model, names)
    assert after is not None, "each step was tried"
    return Cut(
        gpu.node.id,
        gpu.node.name,
        gpu.pci,
        gpu.model.name,
        gpu.before,
        tuple(sorted(after, key=lambda i: i.start)),
        gpu.serves,
        seats.get(gpu.node.id, 0),
    )


def _seats_per_node(allocations: Iterable[Allocation]) -> dict[NodeId, int]:
    counts: dict[NodeId, int] = {}
    for allocation in allocations:
        for member in allocation.members:
            counts[member.node] = counts.get(member.node, 0) + 1
    return counts
