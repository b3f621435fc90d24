"""Counting seats, and the sequence of numbers by which replicas change places."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.adapters.ray_serve.seats import (
    Group,
    Replicas,
    deployment_of,
    free_seats,
    group_of_row,
    is_within,
    named_uses,
    target_replicas,
    with_named,
)
from rayorch.core.errors import ClusterError
from rayorch.core.grants import Seat
from rayorch.core.types import Resources

ONE_GPU = Resources.of({"GPU": 1})


def seats(*nodes: str) -> tuple[Seat, ...]:
    return tuple(Seat("replica", i, node, "", 0, ONE_GPU, surplus=i) for i, node in enumerate(nodes))


def row(name: str, state: str = "CREATED", nodes: tuple[str, ...] = ("a",)) -> dict[str, object]:
    return {
        "placement_group_id": "01",
        "name": name,
        "state": state,
        "bundles": {i: {"GPU": 1.0} for i in range(len(nodes))},
        "bundles_to_node_id": dict(enumerate(nodes)),
    }


def test_a_group_belongs_to_the_application_in_its_name() -> None:
    assert deployment_of("SERVE_REPLICA::chat#Model#x1", "chat") == "Model"
    assert deployment_of("SERVE_REPLICA::chat#Model#x1", "cha") is None
    assert deployment_of("SERVE_GANG::chat_Big_Model_0_0123abcd", "chat") == "Big_Model"
    assert deployment_of("SERVE_GANG::chat_Big_Model_0_0123abcd", "chat_Big") == "Model"
    assert deployment_of("rayorch/main/chat/1", "chat") is None


def test_the_bundles_of_one_replica_use_one_seat_and_those_of_a_gang_one_each() -> None:
    replica = group_of_row(row("SERVE_REPLICA::chat#Model#x1", nodes=("a", "a")), "chat")
    gang = group_of_row(row("SERVE_GANG::chat_Model_0_0123abcd", "PENDING", nodes=("", "")), "chat")
    assert replica == Group("01", "SERVE_REPLICA::chat#Model#x1", "Model", ("a",), created=True)
    assert gang == Group("01", "SERVE_GANG::chat_Model_0_0123abcd", "Model", ("", ""), created=False)


def test_a_group_that_names_gpus_says_which_seat_it_uses() -> None:
    named = row("SERVE_REPLICA::chat#Model#x1", nodes=("a", "a"))
    named["bundles"] = {0: {"GPU": 1.0, "gpu4": 1.0}, 1: {"GPU": 1.0, "gpu2": 1.0}}
    group = group_of_row(named, "chat")
    assert group is not None and group.uses == (("a", (2, 4)),)
    gang = row("SERVE_GANG::chat_Model_0_0123abcd", nodes=("a", "b"))
    gang["bundles"] = {0: {"GPU": 0.5, "gpu1": 0.5}, 1: {"GPU": 1.0, "gpu1": 1.0}}
    group = group_of_row(gang, "chat")
    assert group is not None and group.uses == (("a", (1,)), ("b", (1,)))
    assert named_uses((group,)) == Counter({("a", (1,)): 1, ("b", (1,)): 1})


def test_a_seat_with_gpus_is_free_when_nobody_names_them() -> None:
    held = tuple(replace(s, devices=d) for s, d in zip(seats("a", "a", "a"), ((0,), (1,), (2,)), strict=True))
    used = Counter({"a": 2})
    assert [s.devices for s in free_seats(held, used, Counter({("a", (0,)): 1, ("a", (2,)): 1}))] == [(1,)]
    # Two halves of one GPU are two seats.
    halves = tuple(replace(s, devices=(1,)) for s in held[:2])
    assert len(free_seats(halves, Counter({"a": 1}), Counter({("a", (1,)): 1}))) == 1
    # A use of another shape is in the way of the seat whose GPU it has, and counts once.
    assert [s.devices for s in free_seats(held, Counter({"a": 1}), Counter({("a", (1, 5)): 1}))] == [(0,), (2,)]


def test_a_seat_too_small_for_a_replica_is_refused() -> None:
    (seat,) = (replace(s, devices=(4,)) for s in seats("a"))
    assert with_named([{"GPU": 0.5}, {"GPU": 0.5, "CPU": 1}], [seat]) == [
        {"GPU": 0.5, "gpu4": 0.5},
        {"CPU": 1.0, "GPU": 0.5, "gpu4": 0.5},
    ]
    assert with_named([{"GPU": 2}], seats("a")) == [{"GPU": 2}]
    with pytest.raises(ClusterError, match="too small"):
        with_named([{"GPU": 2}], [seat])


def test_a_removed_group_uses_nothing() -> None:
    assert group_of_row(row("SERVE_REPLICA::chat#Model#x1", "REMOVED"), "chat") is None


def test_the_minimum_is_taken_first_and_used_seats_are_not_free() -> None:
    assert [s.node_id for s in free_seats(seats("a", "b", "b"), Counter())] == ["a", "b", "b"]
    assert [s.node_id for s in free_seats(seats("a", "b", "b"), Counter({"b": 1}))] == ["a", "b"]


def test_a_use_on_another_node_leaves_the_seats_free() -> None:
    assert [s.node_id for s in free_seats(seats("a"), Counter({"z": 1}))] == ["a"]


def test_a_use_of_unknown_place_takes_a_seat() -> None:
    assert [s.node_id for s in free_seats(seats("a", "b"), Counter({"": 1}))] == ["b"]


def test_use_is_within_the_grant_only_if_each_node_has_the_seats() -> None:
    assert is_within(Counter({"a": 1}), seats("a", "b"))
    assert not is_within(Counter({"a": 2}), seats("a", "b"))
    assert not is_within(Counter({"a": 1, "": 2}), seats("a", "b"))


def test_as_many_replicas_as_seats_and_never_none() -> None:
    assert target_replicas(3, Replicas(running=1, starting=0, outside=0)) == 3
    assert target_replicas(0, Replicas(running=1, starting=0, outside=0)) == 1


def test_a_shrink_that_leaves_an_answering_replica_is_asked_for_at_once() -> None:
    assert target_replicas(1, Replicas(running=1, starting=0, outside=2)) == 1


def test_the_last_answering_replica_stays_until_another_runs() -> None:
    assert target_replicas(1, Replicas(running=0, starting=0, outside=1)) == 2
    assert target_replicas(1, Replicas(running=0, starting=1, outside=1)) == 2
    assert target_replicas(1, Replicas(running=1, starting=0, outside=1)) == 1


@settings(max_examples=300)
@given(granted=st.integers(1, 5), running=st.integers(0, 5), outside=st.integers(0, 5), slow=st.booleans())
def test_the_numbers_lead_every_deployment_into_its_grant(granted: int, running: int, outside: int, slow: bool) -> None:
    """Serve's part: stop what is too much (outside first), start what is missing; a start may take one more round."""
    running, starting = min(running, granted), 0
    answered = running + outside > 0
    for _ in range(40):
        target = target_replicas(granted, Replicas(running, starting, outside))
        surplus = running + starting + outside - target
        if surplus > 0:
            gone = min(surplus, outside)
            outside -= gone
            starting_gone = min(surplus - gone, starting)
            starting -= starting_gone
            running -= surplus - gone - starting_gone
        elif surplus < 0:
            starting += min(-surplus, granted - running - starting)
        assert running + outside > 0 or not answered, "no replica was left that answers"
        if starting and not slow:
            running, starting = running + starting, 0
        elif starting:
            running, starting = running + 1, starting - 1
        if (running, starting, outside) == (granted, 0, 0):
            return
    raise AssertionError((running, starting, outside))
