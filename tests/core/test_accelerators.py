"""Accelerator models: a gang's GPUs are all of one model that it names, wherever it starts, grows, waits or evicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rayorch.core.admission import NodeShape, check_fits_ever
from rayorch.core.codec import decode, encode, from_data, to_data
from rayorch.core.decisions import WaitReason
from rayorch.core.errors import AdmissionError
from rayorch.core.explain import explain
from rayorch.core.planner import plan
from rayorch.core.planning.claims import growth_claim, start_shape
from rayorch.core.quota import Quota
from rayorch.core.types import MODEL_LABEL, Device, Kind, NodeId, NodeSpec, Resources, Role, WorkloadSpec
from rayorch.policies.default import DEFAULT
from tests.scenes import (
    changes,
    gpus,
    grown,
    held_for,
    node,
    pending,
    queue,
    reasons,
    reserved,
    running,
    shrunk,
    snapshot,
    spec,
    started,
    stopped,
)

H, A = ("H100",), ("A100",)
BOTH = ("H100", "A100")
TWO = [node("a1", model="A100"), node("h1", model="H100")]


def train(members: int, most: int, cpu_members: int = 1) -> tuple[Role, ...]:
    """A driver that needs CPUs only and workers of one GPU each."""
    return (
        Role("worker", gpus(1), members, most),
        Role("driver", Resources.of({"CPU": 60}), cpu_members, cpu_members),
    )


# ---------------------------------------------------------------- a node's model


def test_a_nodes_model_is_that_of_its_label_or_else_of_its_devices() -> None:
    devices = (Device(0, "NVIDIA H100 80GB HBM3"), Device(1, "NVIDIA H100 80GB HBM3"))
    plain = NodeSpec(NodeId("n"), "n", gpus(2), devices)
    assert plain.model == "NVIDIA H100 80GB HBM3"
    assert replace(plain, labels=((MODEL_LABEL, "H100"),)).model == "H100"
    assert replace(plain, devices=(), labels=((MODEL_LABEL, "H100"),)).model == "H100"


def test_a_node_without_gpus_or_with_several_models_has_none() -> None:
    mixed = node("n", 2, model="H100", devices=(Device(0, "H100"), Device(1, "A100")))
    assert (mixed.model, mixed.models) == ("", ("H100", "A100"))
    assert node("n", 0, labels=((MODEL_LABEL, "H100"),)).model == ""
    assert node("n", 8).model == ""


# ---------------------------------------------------------------- place


def test_models_are_tried_in_the_order_in_which_they_are_named() -> None:
    assert started(plan(snapshot(TWO, [pending("w", accelerators=BOTH)]), DEFAULT)) == {"w": ["h1"]}
    assert started(plan(snapshot(TWO, [pending("w", accelerators=(*A, *H))]), DEFAULT)) == {"w": ["a1"]}


def test_the_next_model_is_taken_when_the_preferred_one_has_no_room() -> None:
    work = [running("other", ["h1"], gpu=6), pending("w", 4, accelerators=BOTH)]
    assert started(plan(snapshot(TWO, work), DEFAULT)) == {"w": ["a1"] * 4}


def test_a_gang_never_spans_two_models() -> None:
    """Five GPUs are free on each model: eight in all would do for whoever doesn't mind."""
    work = [running("x", ["h1"], gpu=3), running("y", ["a1"], gpu=3)]
    made = plan(snapshot(TWO, [*work, pending("w", 8, accelerators=BOTH)]), DEFAULT)
    assert started(made) == {}
    assert len(started(plan(snapshot(TWO, [*work, pending("w", 8)]), DEFAULT))["w"]) == 8


def test_without_a_model_any_will_do() -> None:
    nodes = [node("n1"), *TWO]
    assert len(started(plan(snapshot(nodes, [pending("w", 24)]), DEFAULT))["w"]) == 24


def test_nodes_of_unknown_or_several_models_serve_nobody_who_names_one() -> None:
    mixed = node("n2", 8, devices=tuple(Device(i, ("H100", "A100")[i % 2]) for i in range(8)))
    made = plan(snapshot([node("n1"), mixed], [pending("w", accelerators=BOTH)]), DEFAULT)
    assert started(made) == {}
    assert WaitReason.NEVER_FITS_NOW in reasons(made, "w")
    detail = next(w.detail for w in made.waits[spec("w").id] if w.reason is WaitReason.NEVER_FITS_NOW)
    assert "H100 or A100" in detail and "n2" in detail


def test_members_without_gpus_sit_on_nodes_of_any_model() -> None:
    """The driver needs most of a node's CPUs, and those of the only H100 node are taken."""
    busy = running("busy", ["h1"], roles=(Role("worker", Resources.of({"CPU": 30}), 1, 1),))
    work = [busy, pending("w", roles=train(4, 4), accelerators=H)]
    assert sorted(started(plan(snapshot(TWO, work), DEFAULT))["w"]) == ["a1", "h1", "h1", "h1", "h1"]


def test_a_workload_without_gpus_ignores_its_models() -> None:
    asked = pending("w", roles=(Role("worker", Resources.of({"CPU": 1}), 1, 1),), accelerators=("B200",))
    assert list(started(plan(snapshot([node("n1")], [asked]), DEFAULT))) == ["w"]
    assert start_shape(asked.spec).accelerators == ()


def test_a_required_domain_holds_within_the_model() -> None:
    """Rack r1 has four H100 and four A100, rack r2 eight A100: eight GPUs of one model are found in r2 only."""
    nodes = [
        node("h1", 4, rack="r1", model="H100"),
        node("a1", 4, rack="r1", model="A100"),
        node("a2", 4, rack="r2", model="A100"),
        node("a3", 4, rack="r2", model="A100"),
    ]
    made = plan(snapshot(nodes, [pending("w", 8, rack="required", accelerators=BOTH)]), DEFAULT)
    assert sorted(set(started(made)["w"])) == ["a2", "a3"]


def test_the_preferred_model_goes_before_being_close_together() -> None:
    nodes = [node("h1", 4, model="H100"), node("h2", 4, model="H100"), node("a1", 8, model="A100")]
    assert sorted(set(started(plan(snapshot(nodes, [pending("w", 8, accelerators=BOTH)]), DEFAULT))["w"])) == [
        "h1",
        "h2",
    ]


def test_gangs_of_other_models_do_not_fail_together() -> None:
    """The first finds nothing; the second differs from it in its model only."""
    work = [pending("a", 8, accelerators=("L4",)), pending("b", 8, accelerators=A), pending("c", 8, accelerators=H)]
    assert started(plan(snapshot(TWO, work), DEFAULT)) == {"b": ["a1"] * 8, "c": ["h1"] * 8}


# ---------------------------------------------------------------- grow


def test_a_gang_grows_on_the_model_that_it_holds_though_it_prefers_another() -> None:
    work = [running("w", ["a1"], members=(1, 4), accelerators=BOTH)]
    assert grown(plan(snapshot(TWO, work), DEFAULT)) == {"w": ["a1"] * 3}


def test_a_gang_does_not_grow_onto_another_model() -> None:
    work = [running("w", ["a1"], members=(1, 4), accelerators=BOTH), running("other", ["a1"], gpu=7)]
    assert grown(plan(snapshot(TWO, work), DEFAULT)) == {}


def test_what_starts_and_grows_in_one_plan_is_of_one_model() -> None:
    work = [running("other", ["h1"], gpu=6), pending("w", (2, 10), accelerators=BOTH)]
    assert started(plan(snapshot(TWO, work), DEFAULT)) == {"w": ["h1", "h1"]}


def test_members_without_gpus_do_not_decide_the_model_of_growth() -> None:
    workload, allocation = running("w", ["a1"], roles=train(0, 4), accelerators=BOTH)
    driver = tuple(replace(m, role="driver", bundle=Resources.of({"CPU": 60})) for m in allocation.members)
    models = {NodeId("a1"): "A100", NodeId("h1"): "H100"}
    role = workload.spec.roles[0]
    assert growth_claim(workload, role, driver, models).shape.accelerators == BOTH
    assert growth_claim(workload, role, allocation.members, models).shape.accelerators == A
    assert growth_claim(workload, workload.spec.roles[1], driver, models).shape.accelerators == ()


def test_replicas_of_a_serve_application_are_all_of_one_model() -> None:
    app: dict[str, Any] = {"kind": Kind.SERVE, "accelerators": BOTH, "gpu": 4}
    first = plan(snapshot(TWO, [pending("s", (2, 4), **app)]), DEFAULT)
    assert started(first) == {"s": ["h1", "h1"]}
    work = [running("s", ["a1"], members=(1, 4), demand=(9, 9), **app)]
    assert grown(plan(snapshot(TWO, work), DEFAULT)) == {"s": ["a1"]}


def test_growth_leaves_room_that_waits_for_its_model() -> None:
    """Two more A100 are waited for, so `w` takes none; nobody who waits could use an H100."""
    nodes = [node("a1", 2, model="A100"), node("h1", 2, model="H100")]
    waits = pending("waits", 2, gpu=1, accelerators=A, queue="r")
    work = [running("y", ["a1"]), running("w", ["h1"], members=(1, 2)), waits]
    assert grown(plan(snapshot(nodes, work, [queue("q"), queue("r")]), DEFAULT)) == {"w": ["h1"]}


# ---------------------------------------------------------------- evict


def test_only_victims_on_a_right_model_are_stopped() -> None:
    work = [
        running("cheap", ["a1"], gpu=8, started_s=999.0),
        running("dear", ["h1"], gpu=8, started_s=1.0),
        pending("w", 8, priority=1, accelerators=H),
    ]
    made = plan(snapshot(TWO, work), DEFAULT)
    assert list(stopped(made)) == ["dear"]
    assert reserved(made) == {"w": ["h1"] * 8}


def test_nobody_is_stopped_when_no_victim_has_the_right_model() -> None:
    work = [running("low", ["a1"], gpu=8), pending("w", 9, priority=1, accelerators=H)]
    assert changes(plan(snapshot(TWO, work), DEFAULT)) == []


def test_the_model_where_least_work_is_lost_is_evicted() -> None:
    work = [
        running("old", ["h1"], gpu=8, started_s=1.0),
        running("young", ["a1"], gpu=8, started_s=990.0),
        pending("w", 8, priority=1, accelerators=BOTH),
    ]
    assert list(stopped(plan(snapshot(TWO, work), DEFAULT))) == ["young"]


def test_where_equal_work_is_lost_the_preferred_model_is_evicted() -> None:
    work = [running("x", ["h1"], gpu=8), running("y", ["a1"], gpu=8)]
    for wish, victim in ((BOTH, "x"), ((*A, *H), "y")):
        made = plan(snapshot(TWO, [*work, pending("w", 8, priority=1, accelerators=wish)]), DEFAULT)
        assert list(stopped(made)) == [victim]


def test_surplus_seats_of_the_right_model_are_enough() -> None:
    work = [
        running("x", ["h1"] * 8, members=(4, 8)),
        running("y", ["a1"] * 8, members=(4, 8)),
        pending("w", 2, priority=1, accelerators=A),
    ]
    made = plan(snapshot(TWO, work), DEFAULT)
    assert {id: len(numbers) for id, numbers in shrunk(made).items()} == {"y": 2}


def test_reclaim_takes_back_the_model_that_is_needed() -> None:
    queues = [queue("q", 8), queue("r", 8)]
    work = [
        running("one", ["a1"], gpu=8, queue="r"),
        running("two", ["h1"], gpu=8, queue="r", started_s=999.0),
        pending("w", 8, queue="q", accelerators=H),
    ]
    made = plan(snapshot(TWO, work, queues), DEFAULT)
    assert list(stopped(made)) == ["two"]
    assert reserved(made) == {"w": ["h1"] * 8}


def test_a_victim_elsewhere_helps_where_only_quota_lacks() -> None:
    """H100 are free, but the queue is full with work on the A100."""
    work = [running("low", ["a1"], gpu=8), pending("w", 8, priority=1, accelerators=H)]
    made = plan(snapshot(TWO, work, [queue("q", 8, borrow=0)]), DEFAULT)
    assert list(stopped(made)) == ["low"]
    assert reserved(made) == {"w": ["h1"] * 8}


# ---------------------------------------------------------------- hold


def test_a_head_holds_nodes_of_its_model_and_others_start_beside_it() -> None:
    work = [
        running("busy", ["h1"], gpu=1),
        pending("head", 8, accelerators=H),
        pending("small", 2, submitted_s=1.0, accelerators=H),
        pending("other", 2, submitted_s=2.0, accelerators=A),
    ]
    made = plan(snapshot(TWO, work), DEFAULT)
    assert set(held_for(made)["head"]) == {"h1"}
    assert started(made) == {"other": ["a1", "a1"]}
    assert WaitReason.RESERVED_FOR_HEAD in reasons(made, "small")


def test_a_head_holds_the_model_that_is_in_use_least() -> None:
    work = [running("x", ["h1"], gpu=7), running("y", ["a1"], gpu=1), pending("head", 8, accelerators=BOTH)]
    assert set(held_for(plan(snapshot(TWO, work), DEFAULT))["head"]) == {"a1"}


# ---------------------------------------------------------------- waits


def test_the_reason_names_the_models_with_what_is_free_of_each() -> None:
    work = [running("x", ["h1"], gpu=5), running("y", ["a1"], gpu=7), pending("w", 4, accelerators=BOTH)]
    made = plan(snapshot([*TWO, node("l1", model="L4")], work), DEFAULT)
    wait = made.waits[spec("w").id][0]
    assert wait.reason is WaitReason.ACCELERATOR
    assert (wait.need, wait.have, wait.unit, wait.blockers) == (4, 3, "GPU", ("y", "x"))
    assert wait.detail == (
        "H100: 4 GPU are needed, 3 are free; A100: 4 GPU are needed, 1 are free; 8 GPU of other models are free"
    )
    lines = explain(spec("w").id, made, snapshot(TWO, work)).lines
    assert any(line.startswith("Accelerator: ") and "H100" in line for line in lines)


def test_pieces_and_domains_are_judged_within_a_model() -> None:
    nodes = [
        node("h1", 4, model="H100", rack="r1"),
        node("h2", 4, model="H100", rack="r2"),
        node("a1", 8, model="A100"),
    ]
    made = plan(snapshot(nodes, [pending("w", 1, gpu=8, accelerators=H)]), DEFAULT)
    wait = next(w for w in made.waits[spec("w").id] if w.reason is WaitReason.ACCELERATOR)
    assert wait.detail.startswith("H100: 1 pieces of 8 GPU are needed, 0 fit")
    nodes[2] = node("a1", 8, model="A100", rack="r3")
    made = plan(snapshot(nodes, [pending("w", 8, rack="required", accelerators=H)]), DEFAULT)
    wait = next(w for w in made.waits[spec("w").id] if w.reason is WaitReason.ACCELERATOR)
    assert wait.detail.startswith("H100: it would fit, but not within one rack")


def test_where_all_gpus_are_of_the_model_it_is_not_the_reason() -> None:
    work = [running("x", ["h1"], gpu=5), pending("w", 4, accelerators=H)]
    made = plan(snapshot([node("h1", model="H100")], work), DEFAULT)
    assert reasons(made, "w") == [WaitReason.RESOURCES]


def test_a_model_that_no_node_has_is_waited_for_as_capacity() -> None:
    made = plan(snapshot(TWO, [pending("w", accelerators=("B200",))]), DEFAULT)
    assert reasons(made, "w") == [WaitReason.ACCELERATOR, WaitReason.NEVER_FITS_NOW]


# ---------------------------------------------------------------- the door

EIGHT = gpus(8, CPU=64)
POOLS = (
    NodeShape(EIGHT, 2, ((MODEL_LABEL, "H100"), ("rack", "r1"))),
    NodeShape(EIGHT, 4, ((MODEL_LABEL, "A100"), ("rack", "r2"))),
    NodeShape(gpus(0, CPU=64), 9),
)
NO_LIMIT = Quota.of([queue("q")], {})


def refusal(asked: WorkloadSpec, shapes: tuple[NodeShape, ...] = POOLS) -> tuple[str, str] | None:
    """The field and the message of a refusal at the door; None: it may enter."""
    try:
        check_fits_ever(asked, NO_LIMIT, shapes)
    except AdmissionError as error:
        return error.field, error.message
    return None


def test_a_model_that_can_not_be_here_is_refused_at_the_door() -> None:
    found = refusal(spec("w", accelerators=("B200", "L4")))
    assert found == ("accelerators", "no node has B200; no node has L4; GPUs here are A100, H100")


def test_one_model_of_those_named_is_enough() -> None:
    assert refusal(spec("w", 32, accelerators=("B200", "A100"))) is None
    assert refusal(spec("w", 32, accelerators=("B200", "A100")), ()) is None


def test_a_gang_larger_than_all_gpus_of_each_model_is_refused() -> None:
    assert refusal(spec("w", 33)) is None
    found = refusal(spec("w", 33, accelerators=BOTH))
    assert found is not None
    assert found[0] == "accelerators"
    assert "H100: role worker needs 33 members, there is room for 16" in found[1]
    assert "A100: role worker needs 33 members, there is room for 32" in found[1]


def test_a_gang_larger_than_everything_is_refused_for_its_size() -> None:
    found = refusal(spec("w", 49, accelerators=BOTH))
    assert found is not None
    assert found[0] == "roles"


def test_members_without_gpus_may_count_on_all_nodes() -> None:
    assert refusal(spec("w", roles=train(16, 16, cpu_members=15), accelerators=H)) is None


def test_a_domain_of_the_level_must_have_the_model() -> None:
    assert refusal(spec("w", 16, rack="required", accelerators=H)) is None
    found = refusal(spec("w", 17, rack="required", accelerators=H))
    assert found is not None
    assert found[0] == "accelerators"


def test_a_pool_that_does_not_say_its_model_may_have_any_but_a_node_without_one_has_none() -> None:
    assert refusal(spec("w", accelerators=H), (NodeShape(EIGHT, 1),)) is None
    found = refusal(spec("w", accelerators=H), (NodeShape(EIGHT, 1, ((MODEL_LABEL, ""),)),))
    assert found == ("accelerators", "no node has H100; the models of the GPUs here are not known")


def test_a_workload_without_gpus_is_not_asked_for_its_models() -> None:
    assert refusal(spec("w", gpu=0, cpu=1, accelerators=("B200",))) is None


# ---------------------------------------------------------------- old text


def test_a_workload_that_was_written_without_accelerators_is_read() -> None:
    asked = pending("w", 2)
    data = to_data(asked)
    inner = data["spec"]
    assert isinstance(inner, dict)
    assert inner.pop("accelerators") == []
    assert from_data(data) == asked
    named = pending("w", 2, accelerators=BOTH)
    assert decode(encode(named)) == named
