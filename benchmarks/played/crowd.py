"""A crowded cluster from a seed: thousands of nodes nine tenths of which are used, and many more gangs that wait.

No clock and no actors: the same seed gives the same snapshots. Nodes of 8 GPUs and two models lie in racks of 16 and
zones of 10 racks. The queues are a tree of three levels whose shares add up to the cluster. Gangs are mixed: one GPU to
16 nodes, within a rack or with a wish for one, with or without a model, of one role or of two. Between two turns gangs
end, new ones come, and what the plan decided has happened.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rayorch.core.decisions import Plan, Resize, Start, Stop
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    GPU,
    MODEL_LABEL,
    UNIT,
    Allocation,
    Device,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    State,
    TopologyRequest,
    Workload,
    WorkloadId,
    WorkloadSpec,
)

GPUS, CPUS = 8, 128
RACK, ZONE = 16, 160
TURN_S = 1.0
FULL = 0.94
"""How much of the cluster is in use at the beginning."""

Mix = tuple[tuple[float, int, float, str], ...]

MIX: Mix = (
    (0.34, 1, 1, ""),
    (0.16, 1, 2, ""),
    (0.12, 1, 4, ""),
    (0.13, 1, 8, ""),
    (0.11, 4, 1, "rack"),
    (0.06, 3, 2, "rack"),
    (0.05, 2, 8, "rack"),
    (0.02, 4, 8, "rack"),
    (0.007, 8, 8, "preferred"),
    (0.003, 16, 8, "preferred"),
)
"""(share, members, GPUs of each, topology) of the gangs that come."""

PLAIN, ARRIVING = (1.0, 0.0, 0.0), (0.99, 0.007, 0.003)
"""How many of those that wait at first, and of those that come, have the priorities 0, 1 and 2."""

SINGLES: Mix = ((1.0, 1, 1, ""),)


def tree(orgs: int, teams: int, projects: int, gpus: int) -> tuple[QueueSpec, ...]:
    """Three levels whose shares add up to all GPUs; leaves borrow up to twice their share."""
    share = gpus // (orgs * teams * projects)
    found: list[QueueSpec] = []
    for o in range(orgs):
        found.append(QueueSpec(QueueId(f"o{o}"), _gpus(share * teams * projects)))
        for t in range(teams):
            found.append(QueueSpec(QueueId(f"o{o}/t{t}"), _gpus(share * projects)))
            found += [
                QueueSpec(QueueId(f"o{o}/t{t}/p{p:02d}"), _gpus(share), borrow_limit=_gpus(2 * share), weight=1 + p % 3)
                for p in range(projects)
            ]
    return tuple(sorted(found, key=lambda q: q.id))


def _gpus(amount: float) -> Resources:
    return Resources.of({"GPU": amount})


def nodes_of(count: int) -> dict[NodeId, NodeSpec]:
    """Every fourth rack is of the older model."""
    found: dict[NodeId, NodeSpec] = {}
    for i in range(count):
        model = "A100" if i // RACK % 4 == 3 else "H100"
        id = NodeId(f"n{i:05d}")
        found[id] = NodeSpec(
            id=id,
            name=f"node-{i:05d}",
            total=Resources.of({"GPU": GPUS, "CPU": CPUS}),
            devices=tuple(Device(index, model) for index in range(GPUS)),
            labels=((MODEL_LABEL, model),),
            topology=(("zone", f"z{i // ZONE:03d}"), ("rack", f"r{i // RACK:04d}")),
        )
    return found


@dataclass
class Crowd:
    """See the module. `leaves`: the queues that work is submitted to."""

    rng: random.Random
    nodes: dict[NodeId, NodeSpec]
    queues: tuple[QueueSpec, ...]
    leaves: tuple[QueueId, ...]
    mix: Mix = MIX
    workloads: dict[WorkloadId, Workload] = field(default_factory=dict)
    held: dict[WorkloadId, Allocation] = field(default_factory=dict)
    now_s: float = 1_000_000.0
    priorities: tuple[float, float, float] = (0.9, 0.08, 0.02)
    made: int = 0
    version: int = 1

    @staticmethod
    def of(
        nodes: int,
        pending: int,
        leaves: tuple[int, int, int] = (3, 3, 3),
        seed: int = 1,
        mix: Mix = MIX,
        full: float = FULL,
    ) -> Crowd:
        """A cluster in use with that many gangs waiting."""
        queues = tree(*leaves, nodes * GPUS)
        leaf = tuple(q.id for q in queues if q.id.count("/") == 2)
        crowd = Crowd(random.Random(seed), nodes_of(nodes), queues, leaf, mix)
        crowd._fill(full)
        crowd.priorities = PLAIN  # what is more important runs already
        crowd.submit(pending)
        crowd.priorities = ARRIVING
        return crowd

    @property
    def used(self) -> float:
        """The part of all GPUs that is held."""
        units = sum(a.held.units(GPU) for a in self.held.values())
        return units / (len(self.nodes) * GPUS * UNIT)

    @property
    def waiting(self) -> int:
        """How many gangs wait."""
        return sum(w.state is State.PENDING for w in self.workloads.values())

    def snapshot(self) -> Snapshot:
        """What a cluster would show of this moment; objects that did not change are the same ones."""
        self.version += 1
        return Snapshot(
            versions=Versions(self.version, 1, self.version),
            now_s=self.now_s,
            queues=self.queues,
            workloads=tuple(self.workloads[id] for id in sorted(self.workloads)),
            nodes=tuple(self.nodes.values()),
            allocations=tuple(self.held[id] for id in sorted(self.held)),
        )

    # ------------------------------------------------------------ what happens

    def submit(self, count: int) -> None:
        """New gangs come."""
        for _ in range(count):
            spec = self._spec()
            self.workloads[spec.id] = Workload(spec, State.PENDING, self.now_s + self.made % 1000 / 1000)

    def urgent(self, members: int, gpus: float, level: str) -> Workload:
        """A gang that is more important than all others, in some queue."""
        self.made += 1
        spec = WorkloadSpec(
            id=WorkloadId(f"urgent{self.made:07d}"),
            name="urgent",
            kind=Kind.TRAIN,
            queue=self.rng.choice(self.leaves),
            roles=(Role("worker", Resources.of({"GPU": gpus, "CPU": 2 * gpus}), members, members),),
            priority=9,
            topology=TopologyRequest(required="rack" if level == "rack" else None),
        )
        self.workloads[spec.id] = Workload(spec, State.PENDING, self.now_s)
        return self.workloads[spec.id]

    def withdraw(self, workload: Workload) -> None:
        """It was never there."""
        del self.workloads[workload.spec.id]

    def end(self, count: int) -> int:
        """That many running gangs end by themselves."""
        running = sorted(id for id in self.held if self.workloads[id].state is State.RUNNING)
        for id in self.rng.sample(running, min(count, len(running))):
            del self.workloads[id], self.held[id]
        return min(count, len(running))

    def carry_out(self, plan: Plan) -> int:
        """What the plan decided has happened; answers how many gangs it started."""
        starts = 0
        for id in [w.id for w in self.workloads.values() if w.state is State.STOPPING]:
            workload, stop = self.workloads[id], self.workloads[id].stop
            del self.held[id]
            self.workloads[id] = replace(
                workload,
                state=State.PENDING,
                stop=None,
                started_s=None,
                requeued_s=self.now_s,
                yielded_to=stop.beneficiary if stop is not None else None,
            )
        for decision in plan.decisions:
            match decision:
                case Start():
                    self._start(decision)
                    starts += 1
                case Stop():
                    workload = self.workloads[decision.workload]
                    self.workloads[decision.workload] = replace(workload, state=State.STOPPING, stop=decision.order)
                case Resize():
                    self._resize(decision)
        self.now_s += TURN_S
        return starts

    def _start(self, start: Start) -> None:
        workload = self.workloads[start.workload]
        members = tuple(replace(m, phase=MemberPhase.READY, group_id="g") for m in start.members)
        self._run(workload, members, start.attempt)

    def _run(self, workload: Workload, members: tuple[Member, ...], attempt: int) -> None:
        now_s = self.now_s
        self.held[workload.id] = Allocation(workload.id, attempt, members, now_s, now_s + 30.0)
        self.workloads[workload.id] = replace(
            workload,
            state=State.RUNNING,
            attempt=attempt,
            started_s=now_s,
            ready_s=now_s,
            lease_renewed_s=now_s + 1e9,  # signs of life are not what is measured here
            placement=members,
            size=tuple((role.name, role.min_count) for role in workload.spec.roles),
        )

    def _resize(self, resize: Resize) -> None:
        held = self.held[resize.workload]
        stay = tuple(m for m in held.members if m.surplus not in resize.remove)
        added = tuple(replace(m, phase=MemberPhase.READY, group_id="g") for m in resize.add)
        self.held[resize.workload] = replace(held, members=(*stay, *added))
        self.workloads[resize.workload] = replace(self.workloads[resize.workload], resized_s=self.now_s)

    # ------------------------------------------------------------ gangs

    def _drawn(self) -> tuple[int, float, str]:
        draw = self.rng.random()
        for share, members, gpus, level in self.mix:
            draw -= share
            if draw < 0:
                return members, gpus, level
        return self.mix[0][1:]

    def _spec(self) -> WorkloadSpec:
        rng = self.rng
        members, gpus, level = self._drawn()
        self.made += 1
        roles: tuple[Role, ...] = (Role("worker", Resources.of({"GPU": gpus, "CPU": 2 * gpus}), members, members),)
        if members >= 4 and rng.random() < 0.25:
            roles = (Role("head", Resources.of({"CPU": 2}), 1, 1), *roles)
        return WorkloadSpec(
            id=WorkloadId(f"w{self.made:07d}"),
            name=f"gang-{self.made}",
            kind=Kind.TRAIN,
            queue=rng.choice(self.leaves),
            roles=roles,
            priority=rng.choices((0, 1, 2), self.priorities)[0],
            topology=TopologyRequest(
                required="rack" if level == "rack" else None, preferred="rack" if level == "preferred" else None
            ),
            accelerators=("H100",) if rng.random() < 0.15 else ("H100", "A100") if rng.random() < 0.1 else (),
            owner=f"user{rng.randrange(50)}",
            payload='{"entrypoint": "python train.py"}',
        )

    def _fill(self, full: float) -> None:
        """Gangs side by side, each in its turn on the next nodes with whole devices free."""
        left = dict.fromkeys(self.nodes, GPUS)
        used, most = 0, int(full * len(self.nodes) * GPUS)
        taken = [(0.0, queue) for queue in self.leaves]
        places = self._places(left)
        while used < most:
            spec = self._spec()
            role = spec.roles[-1]
            gpus = role.bundle.units(GPU) // UNIT
            seats = next(places)
            chosen: list[tuple[NodeId, tuple[int, ...]]] = []
            for id in seats:
                while left[id] >= gpus and len(chosen) < role.min_count:
                    first = GPUS - left[id]
                    chosen.append((id, tuple(range(first, first + gpus))))
                    left[id] -= gpus
                if len(chosen) == role.min_count:
                    break
            if len(chosen) < role.min_count:
                for id, devices in chosen:
                    left[id] += len(devices)
                continue
            members = tuple(
                Member(role.name, i, id, role.bundle, 0, i, MemberPhase.READY, "g", devices)
                for i, (id, devices) in enumerate(chosen)
            )
            # Each in the queue that has least so far. A head is left out: it would only take CPUs that nobody lacks.
            units, queue = heapq.heappop(taken)
            heapq.heappush(taken, (units + gpus * role.min_count, queue))
            spec = replace(spec, roles=(role,), queue=queue)
            workload = Workload(spec, State.PENDING, self.now_s - self.rng.uniform(1, 1e5))
            self._run(workload, members, 1)
            used += gpus * role.min_count

    def _places(self, left: dict[NodeId, int]) -> Iterator[list[NodeId]]:
        """The nodes that are not full, from one that moves on; again and again."""
        ids = list(self.nodes)
        position = 0
        while True:
            while position < len(ids) and left[ids[position]] == 0:
                position += 1
            if position >= len(ids):
                position = 0
                ids = [id for id in ids if left[id]]
            rack = ids[position : position + 4 * RACK]
            yield rack
            if self.rng.random() < 0.02:
                position = (position + RACK) % max(1, len(ids))
