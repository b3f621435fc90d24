"""Planner and owner agree about quota: whatever the limits, the owner takes every start and growth of a plan."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.budgets import GPU_HOUR, BudgetUse
from rayorch.core.decisions import Plan, Reserve, Resize, Start, Stop, WaitReason
from rayorch.core.events import CountablesSet, Submitted
from rayorch.core.planner import plan
from rayorch.core.queues import QueueTree
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.tree_state import TreeState
from rayorch.core.types import (
    Allocation,
    Budget,
    Demand,
    Kind,
    Member,
    MemberPhase,
    QueueId,
    QueueMode,
    QueueSpec,
    Resources,
    Role,
    State,
    UserLimits,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.policies.default import DEFAULT
from tests.build import node

NOW = 1000.0
PATHS = ("a", "a/b", "a/c", "d")
NODES = (node("h1", 8, model="H100"), node("h2", 4, model="H100"), node("x1", 8, model="A100"), node("n1", 4))

shares = st.dictionaries(st.sampled_from(("GPU", "GPU:H100", "x")), st.integers(1, 12), max_size=2).map(Resources.of)
users = st.builds(UserLimits, shares, st.none() | st.integers(1, 3))
modes = st.sampled_from((QueueMode.OPEN, QueueMode.OPEN, QueueMode.OPEN, QueueMode.HOLD, QueueMode.DELETING))


@st.composite
def queues(draw: st.DrawFn) -> tuple[QueueSpec, ...]:
    def one(path: str) -> QueueSpec:
        deserved = draw(shares)
        return QueueSpec(
            QueueId(path),
            deserved,
            borrow_limit=draw(st.none() | shares),
            lend_limit=draw(st.none() | shares),
            guaranteed=deserved if draw(st.booleans()) else Resources(),
            hard_cap=draw(st.none() | shares),
            per_user=UserLimits(draw(shares), draw(st.none() | st.integers(1, 3)))
            if draw(st.booleans())
            else UserLimits(),
            surplus_priority=draw(st.integers(0, 2)),
            mode=draw(modes),
            budget=Budget(1.0) if draw(st.integers(0, 4)) == 0 else None,
            denied=("GPU:A100",) if draw(st.integers(0, 5)) == 0 else (),
        )

    return tuple(one(path) for path in PATHS)


@st.composite
def work(draw: st.DrawFn, number: int) -> WorkloadSpec:
    least = draw(st.integers(1, 4))
    drawn = Resources.of({"x": draw(st.integers(0, 2))})
    role = Role("worker", Resources.of({"GPU": draw(st.sampled_from((0.5, 1, 2)))}), least, least + 2, countables=drawn)
    return WorkloadSpec(
        id=WorkloadId(f"w{number}"),
        name="w",
        kind=draw(st.sampled_from((Kind.TRAIN, Kind.SERVE))),
        queue=QueueId(draw(st.sampled_from(PATHS))),
        roles=(role,),
        priority=draw(st.integers(0, 2)),
        resizable=draw(st.booleans()),
        accelerators=draw(st.sampled_from(((), (), ("H100",), ("A100", "H100")))),
        owner=draw(st.sampled_from(("ann", "bob"))),
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[QueueTree, Snapshot]:
    """A tree whose queues were changed while work ran, and what a controller sees of it."""
    held: list[Allocation] = []
    workloads: list[Workload] = []
    for number in range(draw(st.integers(0, 3))):
        spec, on = draw(work(number)), draw(st.sampled_from(NODES))
        if spec.accelerators and on.model not in spec.accelerators:
            continue
        role, serve = spec.roles[0], spec.kind is Kind.SERVE
        members = tuple(
            Member(
                "worker", i, on.id, role.bundle, i + 1 if serve else 0, 0 if serve else i,
                MemberPhase.READY, f"g{i}", (), False, on.model, role.countables,
            )
            for i in range(role.min_count)
        )  # fmt: skip
        workloads.append(
            Workload(
                spec, State.RUNNING, 0.0, attempt=1, started_s=0.0, ready_s=1.0, lease_renewed_s=NOW,
                placement=tuple(replace(m, phase=MemberPhase.RESERVED, group_id="") for m in members),
                size=(("worker", role.min_count),),
                demand=Demand(9, 9, NOW) if serve else None,
            )
        )  # fmt: skip
        gang = tuple(range(1, role.min_count + 1)) if serve else (0,)
        held.append(Allocation(spec.id, 1, members, 0.0, 30.0, gang=gang))
    specs = draw(queues())
    spent = tuple(
        BudgetUse(q.id, 0.0, NOW, draw(st.sampled_from((0, GPU_HOUR)))) for q in specs if q.budget is not None
    )
    tree = QueueTree.restore(TreeState(1, specs, tuple(workloads), budgets=spent))
    tree.apply(CountablesSet(Resources.of({"x": draw(st.integers(1, 6))}), NOW))
    for number in range(3, 3 + draw(st.integers(1, 8))):
        tree.apply(Submitted(draw(work(number)), float(number)))
    changes = tree.changes_since(0)
    seen = Snapshot(
        versions=Versions(changes.version, 1, 1),
        now_s=NOW,
        queues=changes.queues,
        workloads=changes.workloads,
        nodes=tuple(sorted(NODES, key=lambda n: n.id)),
        allocations=tuple(held),
        countables=changes.countables,
        budgets=changes.budgets,
    )
    return tree, seen


def carry_out(tree: QueueTree, seen: Snapshot, decided: Plan) -> None:
    """Commit every start and growth; the owner refuses none of them."""
    for decision in decided.decisions:
        if isinstance(decision, Start):
            events = tree.commit_start(decision, seen.versions, NOW)
        elif isinstance(decision, Resize) and decision.add:
            placement = tree.workloads[decision.workload].placement
            events = tree.commit_resize(decision, (*placement, *decision.add), NOW)
        else:
            continue
        for event in events:
            tree.apply(event)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_the_owner_takes_every_start_and_growth_of_a_plan(world: tuple[QueueTree, Snapshot]) -> None:
    tree, seen = world
    decided = plan(seen, DEFAULT)
    carry_out(tree, seen, decided)
    for workload in tree.workloads.values():
        if workload.state is State.PENDING:
            assert decided.waits[workload.id], workload.id


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_nobody_is_told_of_a_limit_that_would_take_it(world: tuple[QueueTree, Snapshot]) -> None:
    """Where nobody is evicted, limits are named only if the owner refuses the gang once the plan is carried out."""
    tree, seen = world
    decided = plan(seen, DEFAULT)
    carry_out(tree, seen, decided)
    if any(isinstance(d, Stop) or (isinstance(d, Reserve) and d.from_release) for d in decided.decisions):
        return
    said = (WaitReason.QUOTA, WaitReason.USER_LIMIT, WaitReason.COUNTABLES)
    for id, waits in decided.waits.items():
        spec = tree.workloads[id].spec
        if any(wait.reason in said and not wait.unit.startswith("GPU:") for wait in waits):
            assert not tree._books.quota.fits(spec.queue, spec.min_charge, spec.owner, 1), (id, waits)
