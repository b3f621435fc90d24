"""Every value of the format comes back from its text exactly as it was, and text that is wrong is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import NewType, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayorch.core import codec
from rayorch.core.capacity import (
    BackOff,
    Capacity,
    GroupName,
    GroupState,
    Instance,
    InstancePhase,
    NodeGroup,
    Order,
    Provider,
)
from rayorch.core.codec import decode, decode_as, encode, encode_in_parts, from_data, known_types, to_data
from rayorch.core.decisions import GangDemand, GroupChange, Plan, Scale, Wait, WaitReason
from rayorch.core.errors import SpecError
from rayorch.core.events import NodeCordoned, Reported, Submitted
from rayorch.core.reports import CheckpointCommitted, StepReported
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    Kind,
    NodeId,
    NodeSpec,
    QueueId,
    Resources,
    Role,
    State,
    TopologyRequest,
    Workload,
    WorkloadId,
    WorkloadSpec,
)

TEXT = st.text(max_size=8)


def of_type(cls: type) -> st.SearchStrategy[object]:
    """Any value of a type of the format; short texts, and numbers that equal themselves."""
    return st.from_type(cls)


def _tuples(hint: object, most: int | None) -> st.SearchStrategy[tuple[object, ...]]:
    items = get_args(hint)
    if len(items) == 2 and items[1] is Ellipsis:
        return st.lists(st.from_type(items[0]), max_size=most).map(tuple)
    return st.tuples(*map(st.from_type, items))


@pytest.fixture(scope="module", autouse=True)
def _small_scalars() -> Iterator[None]:
    st.register_type_strategy(float, st.floats(allow_nan=False))
    st.register_type_strategy(str, TEXT)
    st.register_type_strategy(Mapping, lambda hint: st.dictionaries(*map(st.from_type, hint.__args__), max_size=2))
    st.register_type_strategy(tuple, partial(_tuples, most=2))  # else a Snapshot is too large to be generated
    yield
    st.register_type_strategy(float, st.floats())
    st.register_type_strategy(str, st.text())
    st.register_type_strategy(Mapping, lambda hint: st.dictionaries(*map(st.from_type, hint.__args__)))
    st.register_type_strategy(tuple, partial(_tuples, most=None))


def a_spec() -> WorkloadSpec:
    return WorkloadSpec(
        id=WorkloadId("w1"),
        name="train",
        kind=Kind.TRAIN,
        queue=QueueId("research/nlp"),
        roles=(Role("worker", Resources.of({"GPU": 1, "CPU": 2}), 2, 4),),
    )


def test_records_that_were_written_before_a_field_existed_are_read_with_its_default() -> None:
    """A journal holds specs without accelerators and nodes without groups, and a saved snapshot knows no capacity."""
    spec = json.loads(encode(Submitted(a_spec(), 1.0)))
    assert spec["spec"].pop("accelerators") == []
    assert decode(json.dumps(spec)) == Submitted(a_spec(), 1.0)
    node = NodeSpec(NodeId("n1"), "n1", Resources.of({"GPU": 8}))
    seen = Snapshot(Versions(), 5.0, (), (), (node,), ())
    old = json.loads(encode(seen))
    del old["capacity"]
    for name in ("group", "instance", "idle_since_s"):
        del old["nodes"][0][name]
    assert decode(json.dumps(old)) == seen


def test_a_snapshot_with_node_groups_and_a_plan_that_changes_them_come_back() -> None:
    machine = Instance("a-1", "a", InstancePhase.PENDING, 1.0, reason="Unschedulable")
    group = NodeGroup(GroupName("a"), Resources.of({"GPU": 8}), 1, labels=(("rack", "r1"),), instances=(machine,))
    order = Order(group.name, 0, 1, 1.0, 301.0, 601.0, (WorkloadId("w"),), "for w", ((WorkloadId("w"), 1),))
    state = GroupState(group, order, BackOff(9.0, "out of stock", 2), 120.0, 0, ("a-1",))
    seen = Snapshot(Versions(), 5.0, (), (), (), (), capacity=Capacity(Provider.OURS, (state,), 4.0, "403"))
    assert decode(encode(seen)) == seen
    change = GroupChange(group.name, 1, 0, "idle", (), 0.0, 0.0, ("a-1",), (NodeId("n1"),))
    demand = GangDemand(WorkloadId("w"), (Resources.of({"GPU": 8}),), TopologyRequest("rack"), (("rack", "r1"),))
    made = Plan(Versions(), 5.0, (Scale((), (demand,), "1 of 1", (change,)),))
    assert decode(encode(made)) == made


@pytest.mark.parametrize("cls", known_types(), ids=lambda cls: cls.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.data_too_large])  # a Snapshot is large
@given(data=st.data())
def test_every_type_of_the_format_round_trips(cls: type, data: st.DataObject) -> None:
    value = data.draw(of_type(cls))

    text = encode(value)
    back = decode(text)

    assert back == value
    assert type(back) is cls
    assert repr(back) == repr(value)  # 1 is not 1.0, a tuple is not a list
    assert encode(back) == text
    assert encode_in_parts(value) == text


def test_what_is_written_is_readable_json_with_a_tag() -> None:
    event = NodeCordoned(NodeId("n1"), "sick", None, 12.5)

    assert json.loads(encode(event)) == {
        "@": "NodeCordoned",
        "node": "n1",
        "reason": "sick",
        "drain_by_s": None,
        "at_s": 12.5,
    }
    assert from_data(to_data(event)) == event


def test_members_of_a_union_are_told_apart() -> None:
    for report in (StepReported(3, 1.0), CheckpointCommitted(3, "s3://b/c", 1.0)):
        event = Reported(WorkloadId("w"), 1, report, 2.0)
        assert decode(encode(event)) == event


def test_numbers_that_json_does_not_have_survive() -> None:
    for number in (math.inf, -math.inf, -0.0, 5e-324, 2**53 + 1):
        event = NodeCordoned(NodeId("n"), "", number, 0.0)
        back = decode_as(NodeCordoned, encode(event))
        assert repr(back.drain_by_s) == repr(number)
    back = decode_as(NodeCordoned, encode(NodeCordoned(NodeId("n"), "", math.nan, 0.0)))
    assert back.drain_by_s is not None
    assert math.isnan(back.drain_by_s)


def test_a_mapping_keeps_its_order_and_its_values() -> None:
    waits = {WorkloadId("b"): (Wait(WaitReason.QUOTA, "full"),), WorkloadId("a"): ()}
    plan = Plan(Versions(), 1.0, (), waits=waits, estimates={WorkloadId("b"): None, WorkloadId("a"): 3.0})
    back = decode_as(Plan, encode(plan))
    assert back == plan
    assert list(back.waits) == [WorkloadId("b"), WorkloadId("a")]


def test_a_field_with_a_default_may_be_absent() -> None:
    data = to_data(Workload(a_spec(), State.PENDING, 1.0))
    del data["labels"]
    assert from_data(data) == Workload(a_spec(), State.PENDING, 1.0)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"surprise": 1}, "Submitted.surprise"),
        ({"@": "Nothing"}, "@"),
        ({"@": None}, "@"),
        ({"at_s": "soon"}, "Submitted.at_s"),
        ({"at_s": True}, "Submitted.at_s"),
        ({"spec": None}, "Submitted.spec"),
        ({"spec": []}, "Submitted.spec"),
    ],
)
def test_wrong_data_is_refused_with_its_path(change: dict[str, codec.Json], path: str) -> None:
    data = {**to_data(Submitted(a_spec(), 1.0)), **change}
    with pytest.raises(SpecError) as caught:
        from_data(data)
    assert caught.value.field == path


def test_the_path_leads_into_the_depth() -> None:
    text = encode(Submitted(a_spec(), 1.0)).replace('"min_count":2', '"min_count":2.5')
    with pytest.raises(SpecError) as caught:
        decode(text)
    assert caught.value.field == "Submitted.spec.roles.[0].min_count"


def test_a_missing_field_without_default_is_refused() -> None:
    data = to_data(Submitted(a_spec(), 1.0))
    del data["at_s"]
    with pytest.raises(SpecError, match=r"Submitted\.at_s: is missing"):
        from_data(data)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"@":"Reported"', '{"@":"NodeUncordoned","at_s":NaN}'])
def test_text_that_is_not_a_value_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        decode(text)


def test_a_value_that_could_not_be_read_back_is_not_written() -> None:
    good = Submitted(a_spec(), 1.0)
    for bad in (
        replace(good, at_s="now"),  # type: ignore[arg-type]
        replace(good, spec=replace(a_spec(), priority=True)),
        replace(good, spec=replace(a_spec(), priority=1.5)),  # type: ignore[arg-type]
        replace(good, spec=replace(a_spec(), roles=[])),  # type: ignore[arg-type]
        replace(good, spec=replace(a_spec(), kind="train")),  # type: ignore[arg-type]
    ):
        with pytest.raises(SpecError, match=r"^Submitted\."):
            encode(bad)


def test_a_foreign_type_is_not_written() -> None:
    @dataclass(frozen=True)
    class Foreign:
        at_s: float

    with pytest.raises(SpecError, match="Foreign is not a type of the format"):
        encode(Foreign(1.0))


def test_decode_as_refuses_another_type() -> None:
    with pytest.raises(SpecError, match="expected Plan, found Submitted"):
        decode_as(Plan, encode(Submitted(a_spec(), 1.0)))


def test_an_annotation_that_the_format_lacks_fails_when_it_is_compiled() -> None:
    for hint in (list[int], set[str], int | str, object, bytes):
        with pytest.raises(TypeError):
            codec._compile(hint)


def test_enums_and_new_types_are_checked() -> None:
    class Colour(StrEnum):
        RED = "red"

    Name = NewType("Name", str)
    encode_colour, decode_colour = codec._compile(Colour)
    assert decode_colour(encode_colour(Colour.RED)) is Colour.RED
    encode_names, decode_names = codec._compile(Mapping[tuple[Name, int], Colour])
    names = {(Name("a"), 1): Colour.RED}
    assert decode_names(encode_names(names)) == names
    for wrong in ("blue", None, []):
        with pytest.raises(SpecError):
            decode_colour(wrong)
