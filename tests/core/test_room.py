"""Room counts GPUs device by device, the way Ray binds them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.room import Room
from rayorch.core.types import Allocation, Device, Member, NodeHealth, NodeId, NodeSpec, Resources, WorkloadId

N1 = NodeId("n1")


def node(gpus: int = 4, **changes: object) -> NodeSpec:
    spec = NodeSpec(N1, "n1", Resources.of({"CPU": 8, "GPU": gpus}), tuple(Device(i) for i in range(gpus)))
    return replace(spec, **changes)  # type: ignore[arg-type]


def gpu(amount: float) -> Resources:
    return Resources.of({"GPU": amount})


def held(bundle: Resources, devices: tuple[int, ...] = ()) -> Allocation:
    return Allocation(WorkloadId("w"), 1, (Member("worker", 0, N1, bundle, devices=devices),), 0.0, 0.0)


def test_whole_gpus_take_wholly_free_devices_lowest_index_first() -> None:
    room = Room.of([node()], [], 0.0)
    assert room.take(N1, gpu(0.5)) == (0,)
    assert room.take(N1, gpu(2)) == (1, 2)
    assert room.free(N1).gpu_units == 15_000
    assert not room.fits(N1, gpu(2))


def test_a_fraction_takes_the_device_that_it_leaves_with_least() -> None:
    room = Room.of([node()], [], 0.0)
    assert room.take(N1, gpu(0.5)) == (0,)
    assert room.take(N1, gpu(0.6)) == (1,)
    assert room.take(N1, gpu(0.4)) == (1,)


def test_half_a_device_on_two_devices_is_not_one_gpu() -> None:
    room = Room.of([node(2)], [held(gpu(0.5), (0,)), held(gpu(0.5), (1,))], 0.0)
    assert room.free(N1).gpu_units == 10_000
    assert not room.fits(N1, gpu(1))
    assert room.fits(N1, gpu(0.5))


def test_one_and_a_half_gpus_take_a_whole_device_and_half_of_another() -> None:
    room = Room.of([node(2)], [], 0.0)
    assert room.take(N1, gpu(1.5)) == (0, 1)
    assert room.fits(N1, gpu(0.5))
    assert not room.fits(N1, gpu(0.6))


def test_giving_back_restores_what_was_taken() -> None:
    room = Room.of([node()], [], 0.0)
    before = room.free(N1)
    bundle = Resources.of({"GPU": 1.5, "CPU": 3})
    room.give(N1, bundle, room.take(N1, bundle))
    assert room.free(N1) == before
    assert room.fits(N1, gpu(4))


def test_what_leaves_an_overfull_node_leaves_less_room_than_it_held() -> None:
    leaving, foreign = held(gpu(2), (2, 3)), gpu(1)
    room = Room.of([node(foreign=foreign)], [held(gpu(2), (0, 1)), leaving], 0.0)
    room.give(N1, gpu(2), (2, 3))
    assert not room.fits(N1, gpu(2)) and room.slot(N1).pieces(gpu(1)) == 1
    room.take(N1, gpu(1))
    assert not room.fits(N1, gpu(0.5))


def test_a_copy_does_not_see_what_its_origin_takes() -> None:
    room = Room.of([node()], [], 0.0)
    copy = room.copy()
    room.take(N1, gpu(4))
    assert copy.fits(N1, gpu(4))


def test_a_member_whose_devices_are_unknown_gives_back_used_ones() -> None:
    room = Room.of([node()], [held(gpu(1.5))], 0.0)
    assert not room.fits(N1, gpu(3))
    room.give(N1, gpu(1.5), ())
    assert room.fits(N1, gpu(4))


def test_sick_devices_have_no_room_even_when_their_member_leaves() -> None:
    sick = node(2, devices=(Device(0, sick="xid 79"), Device(1)))
    room = Room.of([sick], [held(gpu(1), (0,))], 0.0)
    assert room.free(N1).gpu_units == 10_000
    room.give(N1, gpu(1), (0,))
    assert room.take(N1, gpu(1)) == (1,)
    assert not room.fits(N1, gpu(0.1))


def test_foreign_use_is_charged_around_known_members() -> None:
    room = Room.of([node(4, foreign=gpu(2))], [held(gpu(1), (1,))], 0.0)
    assert room.take(N1, gpu(1)) == (3,)
    assert not room.fits(N1, gpu(0.1))


@pytest.mark.parametrize("health", [NodeHealth.CORDONED, NodeHealth.DRAINING, NodeHealth.LOST])
def test_nodes_that_are_not_ok_take_nothing_new(health: NodeHealth) -> None:
    assert not Room.of([node(health=health)], [], 0.0).fits(N1, gpu(1))


def test_a_blocked_node_takes_nothing_until_its_time() -> None:
    blocked = node(blocked_until_s=50.0)
    assert not Room.of([blocked], [], 49.0).fits(N1, gpu(1))
    assert Room.of([blocked], [], 50.0).fits(N1, gpu(1))


def test_a_lost_node_has_nothing_to_give_back() -> None:
    room = Room.of([node(health=NodeHealth.LOST)], [held(gpu(1), (0,))], 0.0)
    room.give(N1, gpu(1), (0,))
    assert room.free(N1) == Resources()


def test_other_resources_are_counted_too() -> None:
    room = Room.of([node()], [held(Resources.of({"CPU": 7}))], 0.0)
    assert room.fits(N1, Resources.of({"CPU": 1, "GPU": 1}))
    assert not room.fits(N1, Resources.of({"CPU": 2, "GPU": 1}))


def test_taking_what_does_not_fit_is_a_bug() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Room.of([node()], [], 0.0).take(N1, gpu(5))
