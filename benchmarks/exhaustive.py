"""The planner's evictions against every set of evictions there is, on small seeded cases.

`preempt_gap_ok()` is the share of the cases in which the planner's victims cost at most `FACTOR` times what the
cheapest set costs. The exhaustive side knows nothing of rayorch: nodes are numbers of free GPUs, a victim is what each
of its seats frees where, and what it costs; all combinations of victims, shrunk or stopped, are tried. As a program it
prints that share, and how much dearer the planner was in all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.harness import arguments, report
from rayorch.core.decisions import Plan, Reserve, Resize, Stop
from rayorch.core.planner import plan
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    Allocation,
    Checkpoint,
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
from rayorch.policies.default import DEFAULT

FACTOR = 1.1
NOW_S = 10_000.0
QUEUE = QueueId("all")

# ---------------------------------------------------------------- every set of evictions


@dataclass(frozen=True)
class Give:
    """One way in which a victim makes room: GPUs by node, and what it costs."""

    frees: tuple[tuple[int, int], ...]
    cost: float


@dataclass(frozen=True)
class Puzzle:
    """`free`: GPUs by node. `racks`: of each node. `victims`: of each the ways to make room, one of which may be taken.

    `pieces`: GPUs of each seat that is claimed. `one_rack`: they must share one.
    """

    free: tuple[int, ...]
    racks: tuple[int, ...]
    victims: tuple[tuple[Give, ...], ...]
    pieces: tuple[int, ...]
    one_rack: bool


def cheapest(puzzle: Puzzle) -> float | None:
    """The least that any set of evictions costs after which all pieces fit; None when no set is enough."""
    best: float | None = None
    need = sum(puzzle.pieces)

    def search(position: int, free: list[int], cost: float) -> None:
        nonlocal best
        if best is not None and cost >= best:
            return
        if sum(free) >= need and _all_fit(puzzle, free):
            best = cost
            return
        if position == len(puzzle.victims):
            return
        for give in puzzle.victims[position]:
            after = list(free)
            for node, gpus in give.frees:
                after[node] += gpus
            search(position + 1, after, cost + give.cost)
        search(position + 1, free, cost)

    search(0, list(puzzle.free), 0.0)
    return best


def _all_fit(puzzle: Puzzle, free: Sequence[int]) -> bool:
    pieces = sorted(puzzle.pieces, reverse=True)
    spaces: Iterator[list[int]]
    if puzzle.one_rack:
        spaces = ([n for n, r in zip(free, puzzle.racks, strict=True) if r == rack] for rack in set(puzzle.racks))
    else:
        spaces = iter([list(free)])
    return any(_packs(pieces, space) for space in spaces)


def _packs(pieces: Sequence[int], space: list[int]) -> bool:
    if not pieces:
        return True
    for place in range(len(space)):
        if space[place] >= pieces[0] and space[place] not in space[:place]:
            rest = [*space[:place], space[place] - pieces[0], *space[place + 1 :]]
            if _packs(pieces[1:], rest):
                return True
    return False


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """The same small cluster for both sides."""

    snapshot: Snapshot
    puzzle: Puzzle


def case(seed: int) -> Case:
    """Two to four nodes that are nearly full of work of one priority, and one urgent gang that does not fit."""
    rng = random.Random(f"exhaustive/{seed}")
    count = rng.randint(2, 4)
    nodes = [
        NodeSpec(
            NodeId(f"n{i}"),
            f"n{i}",
            Resources.of({"GPU": 8}),
            tuple(Device(d) for d in range(8)),
            topology=(("rack", f"r{i % 2}"),),
        )
        for i in range(count)
    ]
    free = [8] * count
    work: list[tuple[Workload, Allocation]] = []
    for number in range(rng.randint(4, 8)):
        made = _running(rng, number, free)
        if made is not None:
            work.append(made)
    one_rack = rng.random() < 0.3
    size, members = rng.choice([(1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (4, 3), (2, 3)])
    if one_rack:
        members = min(members, 2)
    claim = Workload(
        WorkloadSpec(
            id=WorkloadId("urgent"),
            name="urgent",
            kind=Kind.TRAIN,
            queue=QUEUE,
            roles=(Role("worker", Resources.of({"GPU": size}), members, members),),
            priority=10,
            topology=TopologyRequest("rack" if one_rack else None),
        ),
        State.PENDING,
        0.0,
    )
    workloads = sorted([claim, *(w for w, _ in work)], key=lambda w: w.id)
    allocations = tuple(sorted((a for _, a in work), key=lambda a: a.workload))
    snapshot = Snapshot(Versions(), NOW_S, (QueueSpec(QUEUE),), tuple(workloads), tuple(nodes), allocations)
    victims = tuple(_ways(w, a) for w, a in work)
    racks = tuple(i % 2 for i in range(count))
    return Case(snapshot, Puzzle(tuple(free), racks, victims, (size,) * members, one_rack))


def _running(rng: random.Random, number: int, free: list[int]) -> tuple[Workload, Allocation] | None:
    """A gang on one or two nodes, sometimes with surplus seats; None where nothing is free."""
    size = rng.choice([1, 1, 2, 2, 4])
    wanted = rng.randint(1, 3)
    seats: list[int] = []
    for _ in range(wanted):
        able = [i for i, gpus in enumerate(free) if gpus >= size]
        if not able:
            break
        node = rng.choice(able)
        free[node] -= size
        seats.append(node)
    if not seats:
        return None
    least = rng.randint(1, len(seats))
    bundle = Resources.of({"GPU": size})
    spec = WorkloadSpec(
        id=WorkloadId(f"w{number}"),
        name=f"w{number}",
        kind=Kind.TRAIN,
        queue=QUEUE,
        roles=(Role("worker", bundle, least, len(seats)),),
        resizable=least < len(seats),
    )
    members = tuple(
        Member("worker", i, NodeId(f"n{node}"), bundle, max(0, i - least + 1), i if i < least else 0, MemberPhase.READY)
        for i, node in enumerate(seats)
    )
    saved_s = NOW_S - rng.choice([5, 60, 300, 900, 3000])
    workload = Workload(
        spec,
        State.RUNNING,
        0.0,
        attempt=1,
        size=(("worker", len(seats)),),
        started_s=0.0,
        ready_s=1.0,
        lease_renewed_s=NOW_S,
        checkpoint=Checkpoint(1, "file:///c", saved_s, 1),
    )
    return workload, Allocation(spec.id, 1, members, 0.0, 0.0)


def _ways(workload: Workload, allocation: Allocation) -> tuple[Give, ...]:
    """Any of its surplus seats, or all that it holds; the surplus that is left is never worth less than nothing."""
    cost = DEFAULT.victims(workload, allocation, NOW_S)
    each = cost / len(allocation.members)
    spare = [m for m in allocation.members if m.surplus]
    found: list[Give] = []
    for chosen in range(1, 2 ** len(spare)):
        gone = [m for i, m in enumerate(spare) if chosen >> i & 1]
        found.append(Give(_frees(gone), each * len(gone)))
    found.append(Give(_frees(allocation.members), cost))
    return tuple(sorted(found, key=lambda give: give.cost))


def _frees(members: Sequence[Member]) -> tuple[tuple[int, int], ...]:
    return tuple((int(m.node[1:]), m.bundle.gpu_units // 10_000) for m in members)


def price(made: Plan) -> float | None:
    """What the plan's evictions cost; None when nobody makes room for the gang."""
    if not any(isinstance(d, Reserve) and d.from_release for d in made.decisions):
        return None
    return sum(d.cost_gpu_s for d in made.decisions if isinstance(d, Stop | Resize))


# ---------------------------------------------------------------- the comparison


@dataclass(frozen=True)
class Gap:
    """How often the planner was near the optimum, and how dear it was in all. `missed`: it found nothing at all."""

    cases: int
    near: int
    missed: int
    dearer: float

    @property
    def ok(self) -> float:
        """The share of cases within FACTOR."""
        return self.near / self.cases if self.cases else 1.0


def compare(cases: int = 200, first_seed: int = 0) -> Gap:
    """On the first so many cases in which somebody must be evicted and can be."""
    near = missed = found = 0
    ours = best = 0.0
    seed = first_seed
    while found < cases:
        made = case(seed)
        seed += 1
        least = cheapest(made.puzzle)
        if not least:  # it fits, or never will
            continue
        found += 1
        cost = price(plan(made.snapshot, DEFAULT))
        if cost is None:
            missed += 1
            continue
        near += cost <= FACTOR * least + 1e-6
        ours, best = ours + cost, best + least
    return Gap(cases, near, missed, ours / best if best else 1.0)


def preempt_gap_ok(cases: int = 200, first_seed: int = 0) -> float:
    """The share of seeded cases in which the victims cost at most FACTOR times the optimum."""
    return compare(cases, first_seed).ok


def main() -> int:
    """Run and report."""
    given = arguments("exhaustive", {"cases": 50}, {"cases": 200, "seed": 0})
    gap = compare(given.cases, given.seed)
    print(json.dumps({"near": gap.near, "missed": gap.missed, "dearer": round(gap.dearer, 4)}))
    return report("exhaustive", {"preempt_gap_ok": gap.ok, "missed": float(gap.missed)}, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
