"""Cells: whole nodes and domains that a queue can always have, whatever the others do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rayorch.cli.queues import cells_text
from rayorch.core.decisions import Plan, Resize, Start, Stop, WaitReason
from rayorch.core.errors import StalePlanError
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.queues import QueueTree
from rayorch.core.snapshot import Versions
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import (
    Allocation,
    CellShare,
    JointGang,
    NodeHealth,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    State,
    StopCause,
    Workload,
    WorkloadId,
)
from rayorch.policies.default import DEFAULT
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.work import SimWork
from tests import build
from tests.core.test_planner_properties import World, check_gangs, check_quota, check_room
from tests.scenes import (
    NOW,
    changes,
    gpus,
    node,
    pending,
    queue,
    reasons,
    reserved,
    running,
    snapshot,
    started,
    stopped,
)

TWO = [node("n0"), node("n1")]


def owns(path: str, count: int = 1, level: str = "node", model: str = "", deserved: float = 0) -> QueueSpec:
    """A queue with so many cells of a level."""
    return replace(queue(path, deserved), cells=(CellShare(level, count, model),))


def in_cell(held: tuple[Workload, Allocation], level: str = "node") -> tuple[Workload, Allocation]:
    """It was started in cells of its queue."""
    return replace(held[0], cell=level), held[1]


def ready(held: tuple[Workload, Allocation]) -> tuple[Workload, Allocation]:
    """It has run for long enough to grow."""
    return replace(held[0], ready_s=1.0), held[1]


def grown(made: Plan) -> dict[str, list[str]]:
    """Where what runs grows."""
    return {d.workload: [m.node for m in d.add] for d in made.decisions if isinstance(d, Resize) and d.add}


def cells_of(made: Plan) -> dict[str, str]:
    """In cells of which level workloads start."""
    return {d.workload: d.cell for d in made.decisions if isinstance(d, Start)}


# ---------------------------------------------------------------- within one's cells


def test_a_request_within_cells_starts_in_one() -> None:
    made = plan(snapshot(TWO, [pending("w", gpu=8, queue="a")], [owns("a"), queue("b")]), DEFAULT)
    assert cells_of(made) == {"w": "node"}
    (view,) = made.cells
    assert (view.queue, view.level, view.count, view.bound, view.owed, view.lacking) == ("a", "node", 1, 1, 0, 0)


def test_lent_work_makes_room_whatever_its_share_and_priority() -> None:
    """b deserves all that it holds, and is more important; it lies in a's cell all the same."""
    work = [running(f"b{i}", [f"n{i % 2}"], gpu=2, queue="b", priority=5) for i in range(8)]
    made = plan(snapshot(TWO, [*work, pending("w", gpu=8, queue="a")], [owns("a"), queue("b", 16)]), DEFAULT)
    (where,) = reserved(made)["w"]
    assert stopped(made) == {f"b{i}": StopCause.RECLAIMED for i in range(8) if f"n{i % 2}" == where}
    assert reasons(made, "w") == [WaitReason.RELEASING]


def test_work_within_its_share_leaves_a_cell_and_starts_elsewhere() -> None:
    """b holds its 8 GPUs as two gangs of 2 on each node; a's cell is one of them, and b's 8 fit on the other."""
    queues = [owns("a", deserved=8), queue("b", 8)]
    work = [running(f"b{i}", [f"n{i % 2}"], gpu=2, queue="b") for i in range(4)]
    waits = pending("w", gpu=8, queue="a")
    made = plan(snapshot(TWO, [*work, waits], queues), DEFAULT)
    gone = stopped(made)
    assert len(gone) == 2
    (where,) = reserved(made)["w"]
    left = [replace(w, state=State.PENDING, started_s=None) if w.id in gone else (w, held) for w, held in work]
    made = plan(snapshot(TWO, [*left, waits], queues), DEFAULT)
    assert started(made) == {"w": [where], **{key: ["n1" if where == "n0" else "n0"] for key in gone}}


def test_no_more_goes_than_it_takes_and_where_least_is_lost() -> None:
    work = [running(f"b{i}", [f"n{i % 2}"], gpu=2, queue="b", started_s=900.0 * (i % 2)) for i in range(8)]
    made = plan(snapshot(TWO, [*work, pending("w", gpu=4, queue="a")], [owns("a"), queue("b", 16)]), DEFAULT)
    assert reserved(made) == {"w": ["n1"]}  # what began at 900 s has lost least
    assert len(stopped(made)) == 2


def test_bound_cells_are_used_before_others() -> None:
    """Half of n0 is a's, and b runs on the other half; n1 is free, but would be a second cell."""
    work = [
        in_cell(running("a0", ["n0"], gpu=4, queue="a")),
        running("b0", ["n0"], gpu=4, queue="b"),
        pending("w", gpu=4, queue="a"),
    ]
    made = plan(snapshot(TWO, work, [owns("a", 2), queue("b")]), DEFAULT)
    assert set(stopped(made)) == {"b0"}
    assert reserved(made) == {"w": ["n0"]}


def test_what_is_beyond_the_cells_is_looked_at_like_all_other_work() -> None:
    work = [in_cell(running("a0", ["n0"], gpu=8, queue="a")), pending("w", gpu=8, queue="a")]
    made = plan(snapshot(TWO, work, [owns("a"), queue("b")]), DEFAULT)
    assert cells_of(made) == {"w": ""}
    work = [in_cell(running("a0", ["n0"], gpu=8, queue="a")), running("b0", ["n1"], gpu=8, queue="b"), work[1]]
    assert changes(plan(snapshot(TWO, work, [owns("a"), queue("b", 8)]), DEFAULT)) == []


def test_work_in_cells_goes_for_its_own_queue_only() -> None:
    a0 = in_cell(running("a0", ["n0"], gpu=8, queue="a"))
    for asks, goes in (("b", False), ("a", True)):
        work = [a0, pending("w", gpu=8, queue=asks, priority=9)]
        made = plan(snapshot(TWO[:1], work, [owns("a"), queue("b")]), DEFAULT)
        assert bool(stopped(made)) is goes


def test_queues_below_share_the_cells() -> None:
    queues = [owns("a"), queue("a/x"), queue("b", 16)]
    work = [running(f"b{i}", [f"n{i}"], gpu=8, queue="b") for i in range(2)]
    made = plan(snapshot(TWO, [*work, pending("w", gpu=8, queue="a/x")], queues), DEFAULT)
    assert len(stopped(made)) == 1


def test_a_model_names_the_nodes() -> None:
    nodes = [node("n0", model="A100"), node("n1", model="H100")]
    queues = [owns("a", model="H100"), queue("b")]
    made = plan(snapshot(nodes, [pending("w", gpu=8, queue="a")], queues), DEFAULT)
    assert started(made) == {"w": ["n1"]}
    made = plan(snapshot(nodes, [pending("w", gpu=8, queue="a", accelerators=("A100",))], queues), DEFAULT)
    assert (started(made), cells_of(made)) == ({"w": ["n0"]}, {"w": ""})


def test_a_gang_takes_a_whole_rack() -> None:
    nodes = [node(f"n{i}", rack=f"r{i // 2}") for i in range(4)]
    work = [running(f"b{i}", [f"n{i}"], gpu=8, queue="b") for i in range(4)]
    made = plan(
        snapshot(nodes, [*work, pending("w", 2, gpu=8, queue="a")], [owns("a", level="rack"), queue("b", 32)]), DEFAULT
    )
    assert sorted(reserved(made)["w"]) in (["n0", "n1"], ["n2", "n3"])


def test_small_cells_leave_racks_whole_for_those_who_own_them() -> None:
    """a node of the broken rack goes, though the other rack is free."""
    nodes = [node(f"n{i}", rack=f"r{i // 2}") for i in range(4)]
    queues = [owns("a"), owns("c", level="rack"), queue("b")]
    work = [running("b0", ["n2"], gpu=8, queue="b", preemptible=False), pending("w", gpu=8, queue="a")]
    assert started(plan(snapshot(nodes, work, queues), DEFAULT)) == {"w": ["n3"]}


# ---------------------------------------------------------------- what must be left


def test_what_could_not_be_stopped_keeps_off_owed_cells() -> None:
    for spec in ({"preemptible": False}, {"min_runtime_s": 60.0}):
        work = [pending(f"w{i}", gpu=8, queue="b", **spec) for i in range(2)]
        made = plan(snapshot(TWO, work, [owns("a"), queue("b")]), DEFAULT)
        assert list(started(made)) == ["w0"]
        assert WaitReason.CELL_OWED in reasons(made, "w1")
        detail = next(w.detail for w in made.waits["w1"] if w.reason is WaitReason.CELL_OWED)
        assert detail == "it would break a cell owed to queue a, and can't be stopped at any time"


def test_it_lies_beside_what_broke_a_cell_already() -> None:
    work = [
        running("b0", ["n1"], gpu=1, queue="b", preemptible=False),
        pending("w", gpu=1, queue="b", preemptible=False),
    ]
    assert started(plan(snapshot(TWO, work, [owns("a"), queue("b")]), DEFAULT)) == {"w": ["n1"]}


def test_what_lies_in_a_bound_cell_is_the_queues_alone() -> None:
    work = [in_cell(running("a0", ["n0"], gpu=1, queue="a")), pending("w", gpu=4, queue="b", preemptible=False)]
    assert changes(plan(snapshot(TWO[:1], work, [owns("a"), queue("b")]), DEFAULT)) == []
    work = [work[0], pending("w", gpu=4, queue="b")]
    assert started(plan(snapshot(TWO[:1], work, [owns("a"), queue("b")]), DEFAULT)) == {"w": ["n0"]}


def test_a_failed_node_is_nobodys_cell() -> None:
    """Two cells on three nodes, one of them lost: both are still to be had."""
    nodes = [node("n0", health=NodeHealth.LOST), node("n1"), node("n2")]
    queues = [owns("a"), owns("c"), queue("b")]
    work = [pending("v", gpu=8, queue="a"), pending("w", gpu=8, queue="c")]
    made = plan(snapshot(nodes, work, queues), DEFAULT)
    assert cells_of(made) == {"v": "node", "w": "node"}
    nodes[1] = node("n1", health=NodeHealth.LOST)
    made = plan(snapshot(nodes, work, queues), DEFAULT)
    assert len(started(made)) == 1
    assert sorted((view.bound, view.owed, view.lacking) for view in made.cells) == [(0, 1, 1), (1, 0, 0)]


def test_without_cells_nothing_of_it_is_there() -> None:
    made = plan(snapshot(TWO, [pending("w", gpu=8)]), DEFAULT)
    assert made.cells == ()


def test_a_reservation_keeps_off_owed_cells_and_they_off_it() -> None:
    """n0 stands for the cell, so the reservation has n1; a's work starts on n0 all the same."""
    window = ReservationSpec("r", QueueId("b"), gpus(8), 1, 0.0, 10 * NOW)
    for work in ([], [pending("w", gpu=8, queue="a")]):
        seen = replace(snapshot(TWO, work, [owns("a"), queue("b")]), reservations=(window,))
        made = plan(seen, DEFAULT)
        assert made.reservations[0].set_aside == 1
        assert started(made) == {w.id: ["n0"] for w in work}
        assert made.cells[0].lacking == 0


# ---------------------------------------------------------------- domains of several sizes


def sized(path: str, *sizes: tuple[int, int]) -> QueueSpec:
    """A queue with so many nodes of so many GPUs."""
    return replace(queue(path), cells=tuple(CellShare("node", count, gpus_each=gpus) for gpus, count in sizes))


def test_nodes_of_two_sizes_are_cells_of_two_kinds() -> None:
    nodes = [node("n0", 4), node("n1", 8), node("n2", 4), node("n3", 8)]
    lent = [running(f"b{n.id}", [n.id], gpu=n.total.gpu_units // 10_000, queue="b", priority=3) for n in nodes]
    for gpu, goes in ((4, {"bn0"}), (8, {"bn1"})):
        made = plan(
            snapshot(nodes, [*lent, pending("w", gpu=gpu, queue="a")], [sized("a", (4, 1), (8, 1)), queue("b")]),
            DEFAULT,
        )
        assert set(stopped(made)) == goes
    seen = plan(snapshot(nodes, lent, [sized("a", (4, 1), (8, 1)), sized("c", (8, 2)), queue("b")]), DEFAULT)
    assert [(v.queue, v.gpus_each, v.owed, v.lacking, v.there) for v in seen.cells] == [
        ("a", 4, 1, 0, 2),
        ("a", 8, 1, 0, 2),
        ("c", 8, 2, 1, 2),
    ]


def test_work_in_a_cell_of_one_size_binds_that_kind() -> None:
    nodes = [node("n0", 4), node("n1", 8)]
    work = [in_cell(running("a0", ["n1"], gpu=2, queue="a"))]
    made = plan(snapshot(nodes, work, [sized("a", (4, 1), (8, 1))]), DEFAULT)
    assert [(v.gpus_each, v.bound, v.owed) for v in made.cells] == [(4, 0, 1), (8, 1, 0)]


def test_cells_of_a_level_that_no_node_has_are_lacking() -> None:
    (view,) = plan(snapshot(TWO, [], [owns("a", 2, "pod")]), DEFAULT).cells
    assert (view.owed, view.lacking, view.there) == (2, 2, 0)


# ---------------------------------------------------------------- growth, and gangs that start together


def test_a_gang_in_its_cell_grows_there_and_onto_a_cell_that_is_owed() -> None:
    """What it grows by may go at any time, so that it is in nobody's way."""
    a0 = in_cell(ready(running("a0", ["n0"] * 2, (2, 12), gpu=1, queue="a", resizable=True)))
    for count in (1, 2):
        made = plan(snapshot(TWO, [a0], [owns("a", count), owns("c"), queue("b")]), DEFAULT)
        assert set(grown(made)["a0"]) <= {"n0", "n1"}


def test_growth_that_can_not_be_taken_back_keeps_to_the_cells_of_its_minimum() -> None:
    a0 = in_cell(ready(running("a0", ["n0"] * 7, (7, 12), gpu=1, queue="a", resizable=True, preemptible=False)))
    made = plan(snapshot(TWO, [a0], [owns("a"), owns("c")]), DEFAULT)
    assert grown(made)["a0"] == ["n0"]
    full = in_cell(ready(running("a0", ["n0"] * 8, (8, 12), gpu=1, queue="a", resizable=True, preemptible=False)))
    assert grown(plan(snapshot(TWO, [full], [owns("a"), owns("c")]), DEFAULT)) == {}


def test_what_a_gang_grew_by_goes_for_a_claim_within_cells() -> None:
    a0 = in_cell(running("a0", ["n0"] * 8 + ["n1"] * 4, (8, 12), gpu=1, queue="a", resizable=True))
    made = plan(snapshot(TWO, [a0, pending("w", gpu=8, queue="c")], [owns("a"), owns("c")]), DEFAULT)
    assert reserved(made) == {"w": ["n1"]}
    assert [set(d.remove) for d in made.decisions if isinstance(d, Resize)] == [{1, 2, 3, 4}]


def test_reclaim_by_place_leaves_work_in_its_own_cells() -> None:
    """b deserves more than a, which holds more than its share: a0 goes where it lies outside, and stays in its cell."""
    profile = replace(DEFAULT, eviction=replace(DEFAULT.eviction, by_place=True))
    a0 = running("a0", ["n0"], gpu=8, queue="a")
    for work, goes in ((a0, {"a0"}), (in_cell(a0), set())):
        made = plan(
            snapshot(TWO[:1], [work, pending("w", gpu=8, queue="b")], [owns("a", deserved=1), queue("b", 16)]), profile
        )
        assert set(stopped(made)) == goes


def test_a_joint_gang_lies_in_cells_all_of_it_or_none() -> None:
    joint = {"joint": JointGang("j", 2), "queue": "a", "gpu": 8}
    lent = [running(f"b{i}", [f"n{i}"], gpu=8, queue="b", priority=5) for i in range(2)]
    work = [*lent, pending("v", **joint), pending("w", **joint)]
    made = plan(snapshot(TWO, work, [owns("a", 2), queue("b", 16)]), DEFAULT)
    assert set(stopped(made)) == {"b0", "b1"}
    free = plan(snapshot(TWO, work[2:], [owns("a", 2), queue("b")]), DEFAULT)
    assert cells_of(free) == {"v": "node", "w": "node"}
    fewer = plan(snapshot(TWO, work, [owns("a", 1), queue("b", 16)]), DEFAULT)
    assert stopped(fewer) == {}


def test_a_domain_that_a_start_lies_in_is_named_with_its_nodes() -> None:
    nodes = [node(f"n{i}", rack=f"r{i // 2}") for i in range(4)]
    made = plan(snapshot(nodes, [pending("w", gpu=8, queue="a")], [owns("a", level="rack")]), DEFAULT)
    (begun,) = (d for d in made.decisions if isinstance(d, Start))
    assert begun.cell_domains == (("r0", ("n0", "n1")),)


# ---------------------------------------------------------------- the guarantee

SIZE = 4


@dataclass
class CellWorld(World):
    """A world whose attempts know whether they lie in cells."""

    memory: Memory = field(default_factory=Memory)

    def turn(self) -> Plan:
        """A claim within cells takes them up though there may be room elsewhere: its victims are fewest there."""
        seen = self.see()
        made, anew = plan(seen, self.profile, self.memory), plan(seen, self.profile)
        assert (made.decisions, made.cells) == (anew.decisions, anew.cells)
        for check in (check_room, check_gangs, check_quota):
            check(seen, made)
        for stop in (d for d in made.decisions if isinstance(d, Stop) and d.order.beneficiary is not None):
            victim = self.workloads[stop.workload]
            same = victim.spec.queue == self.workloads[stop.order.beneficiary].spec.queue
            assert same or not victim.cell, f"{victim.id} lies in a cell of its queue, and goes for another's"
        self.carry_out(made)
        return made

    def _start(self, start: Start) -> None:
        super()._start(start)
        begun = replace(self.workloads[start.workload], cell=start.cell, cell_domains=start.cell_domains)
        self.workloads[start.workload] = begun

    def alive(self) -> list[NodeSpec]:
        return [n for n in self.nodes if n.health is NodeHealth.OK]

    def fail(self, index: int, back: bool) -> None:
        nodes = list(self.nodes)
        which = [i for i, n in enumerate(nodes) if (n.health is NodeHealth.LOST) is back]
        if which:
            i = which[index % len(which)]
            nodes[i] = replace(nodes[i], health=NodeHealth.OK if back else NodeHealth.LOST)
            self.nodes = nodes

    # ------------------------------------------------------------ an own account of cells

    def inside(self, id: QueueId, level: str) -> dict[NodeId, int]:
        """GPUs of a queue's work in its cells of a level, by node."""
        found: dict[NodeId, int] = {}
        for workload in self.workloads.values():
            if workload.state is State.RUNNING and workload.spec.queue == id and workload.cell == level:
                seats = sorted(self.held[workload.id].members, key=lambda m: (m.surplus, m.index))
                for member in seats[: workload.spec.roles[0].min_count]:  # what it grew by may go at any time
                    found[member.node] = found.get(member.node, 0) + member.bundle.gpu_units // 10_000
        return found

    def lying(self) -> list[tuple[Workload, Allocation]]:
        """What lies in cells."""
        return [(self.workloads[id], held) for id, held in self.held.items() if self.workloads[id].cell]

    def bound(self, id: QueueId, level: str) -> list[list[NodeId]]:
        used = self.inside(id, level)
        return [[n.id for n in cell] for cell in self.all_cells(level) if any(n.id in used for n in cell)]

    def all_cells(self, level: str) -> list[list[NodeSpec]]:
        if level == "node":
            return [[n] for n in self.nodes]
        racks: Mapping[str | None, list[NodeSpec]] = {}
        for n in self.nodes:
            racks.setdefault(n.domain("rack"), []).append(n)  # type: ignore[attr-defined]
        return list(racks.values())

    def owed(self, spec: QueueSpec) -> dict[str, int]:
        return {c.level: c.count - len(self.bound(spec.id, c.level)) for c in spec.cells}

    def obtainable(self) -> set[NodeId]:
        """Nodes in nobody's bound cell, with nothing that could not be stopped."""
        taken = {id for q in self.queues for c in q.cells for cell in self.bound(q.id, c.level) for id in cell}
        for workload in self.workloads.values():
            if workload.state is State.RUNNING and not workload.cell and not workload.spec.preemptible:
                taken |= {m.node for m in self.held[workload.id].members}
        return {n.id for n in self.alive()} - taken

    def promised(self) -> bool:
        """Whether all cells that are owed can be had."""
        free = self.obtainable()
        owed = {"node": 0, "rack": 0}
        for q in self.queues:
            for level, n in self.owed(q).items():
                assert n >= 0, f"{q.id} has more cells of {level} than its own"
                owed[level] += n
        racks = sum(all(n.id in free for n in cell) for cell in self.all_cells("rack"))
        return racks >= owed["rack"] and len(free) - 2 * owed["rack"] >= owed["node"]

    def within(self, workload: Workload) -> bool:
        """Whether a request fits into its queue's cells."""
        spec = next(q for q in self.queues if q.id == workload.spec.queue)
        role = workload.spec.roles[0]
        gpu, alive = role.bundle.gpu_units // 10_000, {n.id for n in self.alive()}
        for cell in spec.cells:
            used = self.inside(spec.id, cell.level)
            bound = [id for nodes in self.bound(spec.id, cell.level) for id in nodes if id in alive]
            seats = sum((SIZE - used.get(id, 0)) // gpu for id in bound)
            seats += self.owed(spec)[cell.level] * (SIZE // gpu) * (2 if cell.level == "rack" else 1)
            if seats >= role.min_count:
                return True
        return False


@st.composite
def cell_worlds(draw: st.DrawFn) -> CellWorld:
    racks = draw(st.integers(2, 3))
    nodes = [node(f"n{i}", SIZE, rack=f"r{i // 2}") for i in range(2 * racks)]
    a = replace(queue("a"), cells=(CellShare("node", draw(st.integers(1, 2))),))
    c = replace(queue("c"), cells=(CellShare(draw(st.sampled_from(["node", "rack"])), 1),))
    early = [pending(f"e{i}", gpu=draw(st.sampled_from([1, 2])), queue="b") for i in range(draw(st.integers(0, 10)))]
    profile = replace(DEFAULT, grow_cooldown_s=0.0, eviction=replace(DEFAULT.eviction, by_place=draw(st.booleans())))
    b = queue("b", draw(st.sampled_from([0, SIZE, SIZE * len(nodes)])))
    return CellWorld(nodes, (a, b, c), {w.id: w for w in early}, profile=profile)


steps = st.lists(
    st.tuples(st.sampled_from(["a", "a", "b", "b", "c", "end", "end", "fail", "back"]), st.integers(0, 59)),
    min_size=4,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cell_worlds(), steps)
def test_whatever_happens_a_request_within_cells_starts(world: CellWorld, happens: Sequence[tuple[str, int]]) -> None:
    """After each request, end, failure and return, once stops have taken effect: whoever waits is not within cells.

    And what is owed stays to be had: no turn takes it away.
    """
    settle(world)
    live(world, happens)
    event(f"in cells: {min(3, sum(bool(w.cell) for w in world.workloads.values()))}")
    event(f"evictions: {min(3, len(world.evictions))}")
    event(f"grown in cells: {any(len(h.members) > w.spec.roles[0].min_count for w, h in world.lying())}")


def live(world: CellWorld, happens: Sequence[tuple[str, int]]) -> None:
    """One thing after the other happens."""
    for number, (what, n) in enumerate(happens):
        if what == "end":
            world.finish(n)
        elif what in ("fail", "back"):
            world.fail(n, what == "back")
        else:
            least = (1, 1, 2)[n % 3]
            made = pending(
                f"{what}{number}" + "x" * (n % 2),
                (least, least + n % 4),
                resizable=bool(n % 4),
                gpu=(1, 2, 4, 4)[n % 4],
                queue=what,
                preemptible=what != "b" or n % 5 > 1,
                submitted_s=float(number),
            )
            world.workloads[made.id] = made
        settle(world)


def settle(world: CellWorld) -> None:
    """Turns until stops have taken effect."""
    lost = {n.id for n in world.nodes if n.health is NodeHealth.LOST}
    for workload in list(world.workloads.values()):  # what lost a node is requeued
        if workload.state is State.RUNNING and any(m.node in lost for m in world.held[workload.id].members):
            world.workloads[workload.id] = replace(
                workload, state=State.PENDING, started_s=None, requeued_s=world.now_s, cell=""
            )
            del world.held[workload.id]
    for _ in range(4):
        kept = world.promised()
        world.turn()
        assert world.promised() or not kept
    if world.promised():
        waiting = [w for w in world.workloads.values() if w.state is State.PENDING and w.spec.queue != "b"]
        event(f"waiting: {min(2, len(waiting))}")
        assert not [w.id for w in waiting if world.within(w)]


def test_room_that_is_freed_for_fixed_work_stays_its_own() -> None:
    """What was cleared for it is no cell's in the next turn, cheap as it is now."""
    nodes = [node("n0"), node("n1"), node("n2")]
    held = {f"b{i}": running(f"b{i}", [f"n{i}"], gpu=8, queue="b") for i in range(3)}
    claim = pending("w", gpu=8, queue="b", priority=1, preemptible=False)
    made = plan(snapshot(nodes, [*held.values(), claim], [owns("a"), queue("b")]), DEFAULT)
    (victim,) = stopped(made)
    left = [work for id, work in held.items() if id != victim]
    back = replace(held[victim][0], state=State.PENDING, started_s=None, requeued_s=NOW, yielded_to=claim.id)
    made = plan(snapshot(nodes, [*left, back, claim], [owns("a"), queue("b")]), DEFAULT)
    assert started(made) == {"w": [f"n{victim[1:]}"]}


# ---------------------------------------------------------------- what the queue owner checks

V = Versions(1, 1, 1)


def test_the_owner_binds_no_more_cells_than_the_queue_has() -> None:
    built = QueueTree()
    for spec in (owns("a", 2), queue("a/x"), queue("b")):
        build.apply(built, built.set_queue(spec, 1.0))
    for id, where in (("v", "a"), ("w", "a/x"), ("x", "a"), ("y", "b")):
        build.apply(built, built.submit(build.workload(id, queue=where), 2.0))

    def start(id: str, on: str, cell: str = "node") -> Start:
        return Start(WorkloadId(id), 1, build.seats(on, 1), "fits", cell=cell)

    build.apply(built, built.commit_start(start("v", "n1"), V, 3.0))
    build.apply(built, built.commit_start(start("w", "n2"), V, 3.0))
    assert built.workloads[WorkloadId("w")].cell == "node"
    with pytest.raises(StalePlanError, match="would bind 3 nodes"):
        built.commit_start(start("x", "n3"), V, 3.0)
    with pytest.raises(StalePlanError, match="its queue has none"):
        built.commit_start(start("y", "n1"), V, 3.0)
    with pytest.raises(StalePlanError, match="cells of level rack"):
        built.commit_start(start("x", "n1", "rack"), V, 3.0)
    build.apply(built, built.commit_start(start("x", "n2"), V, 3.0))
    again = QueueTree.restore(built.dump())
    assert again.workloads[WorkloadId("x")].cell == "node"


def test_work_goes_on_in_bound_cells_when_the_queue_has_fewer_by_now() -> None:
    """It binds no further node, so that planner and owner agree."""
    sim = CheckedCluster(tuple(build.node(f"n{i}", gpu=4) for i in range(3)), (owns("a", 2), queue("b")))
    for i in range(2):
        sim.submit(build.workload(f"a{i}", gpu=3, queue="a"), SimWork(steps=10_000))
    sim.run(20)
    sim.record(sim.tree.set_queue(owns("a", 1), sim.now_s))
    sim.submit(build.workload("w", queue="a"), SimWork(steps=10_000))
    sim.run(20)
    w = sim.tree.workloads[WorkloadId("w")]
    assert (w.state, w.cell) == (State.RUNNING, "node")


def test_a_cell_stays_bound_when_most_nodes_are_of_another_size() -> None:
    """As the owner counts it, which knows nothing of sizes."""
    nodes = [node("n0"), node("n1", 4), node("n2", 4)]
    work = [in_cell(running("a0", ["n0"], gpu=8, queue="a")), pending("w", gpu=4, queue="a")]
    made = plan(snapshot(nodes, work, [owns("a"), queue("b")]), DEFAULT)
    assert (made.cells[0].bound, made.cells[0].owed, cells_of(made)) == (1, 0, {"w": ""})


def test_a_count_is_said_in_words() -> None:
    cell: dict[str, object] = {"level": "rack", "model": "H100", "count": 2, "bound": 1, "owed": 1, "lacking": 1}
    assert cells_text(cell) == "2 of level rack (H100): 1 bound, 1 owed, 1 of them can't be had now"
    few = cells_text({**cell, "gpusEach": 32, "there": 1})
    assert few.startswith("2 of level rack (H100, 32 GPUs each): 1 bound, ")
    assert few.endswith("1 of them can't be had now: the cluster has 1 of that kind")
    assert cells_text({**cell, "there": 0}).endswith("the cluster has none of that kind")
    assert cells_text({**cell, "there": 2}) == cells_text(cell)
    assert cells_text({**cell, "bound": None}) == "2 of level rack (H100), which no plan keeps"


def test_cells_hold_in_the_whole_loop_through_a_lost_node_and_a_restart() -> None:
    """With all owners and invariants: a lent node is taken up, a lost cell found elsewhere, and the mark outlives."""
    nodes = tuple(build.node(f"n{i}", gpu=4) for i in range(3))
    sim = CheckedCluster(nodes, (owns("a"), queue("b")))
    for i in range(6):
        sim.submit(build.workload(f"b{i}", gpu=2, queue="b"), SimWork(steps=10_000))
    sim.run(20)
    sim.submit(build.workload("w", gpu=4, queue="a"), SimWork(steps=10_000))
    sim.run(60)
    w = sim.tree.workloads[WorkloadId("w")]
    assert (w.state, w.cell) == (State.RUNNING, "node")
    sim.restart_head()
    sim.run(30)
    assert sim.tree.workloads[WorkloadId("w")].cell == "node"
    sim.lose_node(sim.tree.workloads[WorkloadId("w")].placement[0].node)
    sim.run(120)
    again = sim.tree.workloads[WorkloadId("w")]
    assert (again.state, again.cell) == (State.RUNNING, "node")
    assert again.attempt > w.attempt
