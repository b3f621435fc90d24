"""Which GPU model a workload gets that names several, and when a running one is moved to a better one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from rayorch.core.decisions import Plan, Reserve, Start, Stop
from rayorch.core.planner import plan
from rayorch.core.policy import ModelKnobs, Profile
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    Allocation,
    Checkpoint,
    Member,
    MemberPhase,
    NodeId,
    NodeSpec,
    QueueSpec,
    Resources,
    State,
    StopCause,
    StopOrder,
    TopologyRequest,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.policies.default import DEFAULT
from tests.build import node, queue, workload
from tests.core.test_planner_memory import Remembering, happenings
from tests.core.test_planner_properties import World, worlds

NOW_S = 10_000.0


def knobs(**changes: bool | float) -> Profile:
    return replace(DEFAULT, models=ModelKnobs(**changes))  # type: ignore[arg-type]


def runs(spec: WorkloadSpec, where: str, model: str, saved_s: float | None = NOW_S - 1, since_s: float = 0.0) -> tuple[
    Workload, Allocation
]:  # fmt: skip
    """A gang of one member that has run since `since_s` and committed a checkpoint at `saved_s`."""
    seat = Member("worker", 0, NodeId(where), spec.roles[0].bundle, phase=MemberPhase.READY, group_id="g", model=model)
    saved = Checkpoint(5, "s3://c", saved_s, 1) if saved_s is not None else None
    running = Workload(
        spec, State.RUNNING, since_s, 1, (("worker", 1),), since_s, since_s, checkpoint=saved,
        lease_renewed_s=NOW_S, placement=(seat,),
    )  # fmt: skip
    return running, Allocation(spec.id, 1, (seat,), since_s, since_s + 30)


def planned(
    profile: Profile,
    nodes: list[NodeSpec],
    *waiting: WorkloadSpec,
    running: tuple[tuple[Workload, Allocation], ...] = (),
    queues: tuple[QueueSpec, ...] = (queue("q"),),
) -> Plan:
    pending = [Workload(s, State.PENDING, NOW_S - 50 + n) for n, s in enumerate(waiting)]
    workloads = tuple(sorted([*pending, *(w for w, _ in running)], key=lambda w: w.id))
    held = tuple(sorted((a for _, a in running), key=lambda a: a.workload))
    return plan(Snapshot(Versions(), NOW_S, queues, workloads, tuple(nodes), held), profile)


def started(made: Plan) -> dict[str, str]:
    return {d.workload: d.members[0].node for d in made.decisions if isinstance(d, Start)}


def stopped(made: Plan) -> dict[str, StopCause]:
    return {d.workload: d.order.cause for d in made.decisions if isinstance(d, Stop)}


BOTH = [node("a1", 4, model="A100"), node("h1", 4, model="H100")]
WISH = ("H100", "A100")


# ---------------------------------------------------------------- fall-through


def by_model(h100: float, a100: float) -> QueueSpec:
    """A queue with a share of each model, and the right to borrow more of both."""
    share = Resources.of({"GPU:H100": h100, "GPU:A100": a100})
    return QueueSpec(queue("q/me").id, deserved=share, borrow_limit=Resources.of({"GPU:H100": 4, "GPU:A100": 4}))


def lender(share: float = 4) -> QueueSpec:
    return QueueSpec(queue("q/other").id, deserved=Resources.of({"GPU:H100": share, "GPU:A100": share}))


def test_the_first_model_is_taken_even_if_it_is_borrowed() -> None:
    queues = (queue("q"), by_model(0, 4), lender())
    spec = workload("w", gpu=2, queue="q/me", accelerators=WISH)
    assert started(planned(DEFAULT, BOTH, spec, queues=queues)) == {"w": "h1"}


def test_the_next_model_goes_before_borrowing_where_the_profile_says_so() -> None:
    queues = (queue("q"), by_model(0, 4), lender())
    spec = workload("w", gpu=2, queue="q/me", accelerators=WISH)
    profile = knobs(next_before_borrowing=True)
    assert started(planned(profile, BOTH, spec, queues=queues)) == {"w": "a1"}
    neither = (queue("q"), by_model(0, 0), lender())
    assert started(planned(profile, BOTH, spec, queues=neither)) == {"w": "h1"}


def test_the_next_model_goes_before_evicting_unless_the_profile_says_otherwise() -> None:
    victim = runs(workload("v", gpu=4, priority=-5), "h1", "H100")
    spec = workload("w", gpu=4, accelerators=WISH)
    made = planned(DEFAULT, BOTH, spec, running=(victim,))
    assert (started(made), stopped(made)) == ({"w": "a1"}, {})
    made = planned(knobs(evict_before_next=True), BOTH, spec, running=(victim,))
    assert (started(made), stopped(made)) == ({}, {"v": StopCause.PREEMPTED})
    kept = planned(knobs(evict_before_next=True), BOTH, replace(spec, priority=-9), running=(victim,))
    assert (started(kept), stopped(kept)) == ({"w": "a1"}, {})


def test_evicting_goes_before_borrowing_where_the_profile_says_so() -> None:
    other = QueueSpec(
        queue("q/other").id, deserved=Resources.of({"GPU:A100": 4}), borrow_limit=Resources.of({"GPU:H100": 4})
    )
    queues = (queue("q"), by_model(4, 0), other)
    victim = runs(workload("v", gpu=4, queue="q/other"), "h1", "H100")
    spec = workload("w", gpu=4, queue="q/me", accelerators=WISH)
    plain = planned(DEFAULT, BOTH, spec, running=(victim,), queues=queues)
    assert (started(plain), stopped(plain)) == ({"w": "a1"}, {})
    made = planned(knobs(evict_before_borrowing=True), BOTH, spec, running=(victim,), queues=queues)
    assert (started(made), stopped(made)) == ({}, {"v": StopCause.RECLAIMED})


def test_without_a_preference_the_model_goes_first_of_which_most_is_free() -> None:
    nodes = [*BOTH, node("a2", 4, model="A100")]
    spec = workload("w", gpu=2, accelerators=WISH, any_model=True)
    assert started(planned(DEFAULT, nodes, spec))["w"] in ("a1", "a2")
    assert started(planned(DEFAULT, nodes, replace(spec, any_model=False))) == {"w": "h1"}
    full = runs(workload("v", gpu=4), "a1", "A100"), runs(workload("u", gpu=4), "a2", "A100")
    assert started(planned(DEFAULT, nodes, spec, running=full)) == {"w": "h1"}


@pytest.mark.parametrize(
    "topology",
    [
        TopologyRequest(),
        TopologyRequest(required="rack"),
        TopologyRequest(preferred="rack"),
        TopologyRequest(required="node"),
        TopologyRequest(preferred="node"),
    ],
    ids=str,
)
def test_by_score_a_seat_goes_to_one_of_its_models_whatever_domain_it_wants(topology: TopologyRequest) -> None:
    others = [node("b1", 2, rack="r1", model="L4"), node("a1", 8, rack="r1", model="A100")]
    nodes = [*others, node("h1", 4, rack="r1", model="H100")]
    spec = workload("w", gpu=2, accelerators=WISH, any_model=True, topology=topology)
    assert started(planned(DEFAULT, nodes, spec)) == {"w": "a1"}
    assert started(planned(knobs(by_score=True), nodes, spec)) == {"w": "h1"}
    assert started(planned(knobs(by_score=True), others, spec)) == {"w": "a1"}
    assert started(planned(knobs(by_score=True), others[:1], spec)) == {}


# ---------------------------------------------------------------- moving up

UP = knobs(upgrade=True)


def test_a_gang_that_has_just_saved_its_work_moves_to_the_model_that_it_would_rather_have() -> None:
    running = runs(workload("w", gpu=4, accelerators=WISH), "a1", "A100")
    made = planned(UP, BOTH, running=(running,))
    (stop,) = [d for d in made.decisions if isinstance(d, Stop)]
    assert (stop.workload, stop.order.cause, stop.order.beneficiary) == ("w", StopCause.MOVED, "w")
    assert "H100 is free" in stop.order.reason
    (kept,) = [d for d in made.decisions if isinstance(d, Reserve)]
    assert (kept.workload, kept.members[0].node) == ("w", "h1")
    assert planned(DEFAULT, BOTH, running=(running,)).decisions[:-1] == ()


@pytest.mark.parametrize(
    ("saved_s", "since_s", "profile", "why"),
    [
        (NOW_S - 120, 0.0, UP, "its checkpoint is old"),
        (None, 0.0, UP, "it has none"),
        (NOW_S - 1, NOW_S - 600, UP, "it started a moment ago"),
        (NOW_S - 1, 0.0, knobs(upgrade=True, upgrade_gain=0.0), "it would gain nothing"),
        (NOW_S - 1, 0.0, replace(UP, preemption=False), "nothing is moved"),
    ],
)
def test_it_stays_where_it_is(saved_s: float | None, since_s: float, profile: Profile, why: str) -> None:
    running = runs(workload("w", gpu=4, accelerators=WISH), "a1", "A100", saved_s, since_s)
    assert stopped(planned(profile, BOTH, running=(running,))) == {}, why


def test_nobody_is_moved_who_may_not_be_or_has_the_best() -> None:
    for spec, where, model in (
        (workload("w", gpu=4, accelerators=WISH, preemptible=False), "a1", "A100"),
        (workload("w", gpu=4, accelerators=WISH, max_requeues=0), "a1", "A100"),
        (workload("w", gpu=4, accelerators=WISH, any_model=True), "a1", "A100"),
        (workload("w", gpu=4, accelerators=WISH), "h1", "H100"),
        (workload("w", gpu=4, accelerators=("A100",)), "a1", "A100"),
    ):
        assert stopped(planned(UP, BOTH, running=(runs(spec, where, model),))) == {}


def test_room_that_somebody_waits_for_is_not_taken() -> None:
    running = runs(workload("w", gpu=4, accelerators=WISH), "a1", "A100")
    waits = workload("x", members=3, gpu=4, accelerators=("H100",))
    assert stopped(planned(UP, BOTH, waits, running=(running,))) == {"w": StopCause.MOVED}  # it could never start
    nodes = [*BOTH, node("h2", 4, model="H100"), node("h3", 4, model="H100")]
    busy = runs(workload("y", gpu=4), "h2", "H100")
    assert stopped(planned(UP, nodes, waits, running=(running, busy))) == {}


def test_a_limit_on_the_better_model_is_kept() -> None:
    limited = QueueSpec(queue("q").id, hard_cap=Resources.of({"GPU:H100": 2}))
    running = runs(workload("w", gpu=4, accelerators=WISH), "a1", "A100")
    assert stopped(planned(UP, BOTH, running=(running,), queues=(limited,))) == {}


def test_only_one_gang_moves_at_a_time() -> None:
    nodes = [node("a1", 8, model="A100"), node("h1", 8, model="H100")]
    two = tuple(runs(workload(name, gpu=4, accelerators=WISH), "a1", "A100") for name in ("v", "w"))
    assert stopped(planned(UP, nodes, running=two)) == {"v": StopCause.MOVED}


def test_its_new_seats_are_kept_while_it_leaves_and_it_takes_them_when_it_is_back() -> None:
    spec = workload("w", gpu=4, accelerators=WISH)
    leaving, held = runs(spec, "a1", "A100")
    order = StopOrder(StopCause.MOVED, "H100 is free", NOW_S - 5, NOW_S + 25, spec.id)
    leaving = replace(leaving, state=State.STOPPING, stop=order)
    rival = workload("x", gpu=4, accelerators=("H100",))
    made = planned(UP, BOTH, rival, running=((leaving, held),))
    assert started(made) == {}
    back = Workload(spec, State.PENDING, 0.0, attempt=1, requeued_s=NOW_S - 1, yielded_to=WorkloadId("w"))
    pending = Workload(rival, State.PENDING, 0.0)
    again = plan(Snapshot(Versions(), NOW_S, (queue("q"),), (back, pending), tuple(BOTH), ()), UP)
    assert started(again) == {"w": "h1"}


class Choosing(Remembering):
    """With every knob of models turned, and moves whenever one would do."""

    profile = knobs(
        next_before_borrowing=True,
        evict_before_next=True,
        evict_before_borrowing=True,
        upgrade=True,
        upgrade_gain=1.0,
        upgrade_cooldown_s=0.0,
        upgrade_after_checkpoint_s=1e9,
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), happenings)
def test_the_choice_is_the_same_with_memory_and_without(world: World, happened: list[tuple[str, int]]) -> None:
    played = Choosing(world)
    played.turn()
    played.submit()
    for what, index in happened:
        played.turn()
        played.happens(what, index)
    played.turn()
