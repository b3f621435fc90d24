"""One node's devices: shares by memory, shares of several devices, MIG instances, and which go together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.links import best_linked
from rayorch.core.sharing import MIB, MPS
from rayorch.core.slot import Slot
from rayorch.core.types import UNIT, Device, NodeId, NodeSpec, Resources


def node(gpus: int = 2, mib: int = 100, **changes: object) -> NodeSpec:
    devices = tuple(Device(i, uuid=f"GPU-{i}", memory_bytes=mib * MIB) for i in range(gpus))
    spec = NodeSpec(NodeId("n"), "n", Resources.of({"CPU": 8, "GPU": gpus}), devices, exact=True)
    return replace(spec, **changes)  # type: ignore[arg-type]


def cut(*profiles: str, mixed: bool = True, exact: bool = True, pci: tuple[str, ...] = ()) -> NodeSpec:
    """A node of MIG instances."""
    places = pci or ("p0",) * len(profiles)
    devices = tuple(Device(i, uuid=f"MIG-{i}", mig_profile=name, pci=places[i]) for i, name in enumerate(profiles))
    counts = {f"mig-{name}": profiles.count(name) for name in profiles}
    total = Resources.of({"CPU": 8, **(counts if mixed else {"GPU": len(profiles)})})
    return NodeSpec(NodeId("n"), "n", total, devices, exact=exact, mig_mixed=mixed)


def of(gpu: float = 0, mib: float = 0, devices: int = 0, **more: float) -> Resources:
    return Resources.of({"GPU": gpu, "gpu-memory-mib": mib, "gpu-devices": devices, **more})


def mig(profile: str, count: int = 1) -> Resources:
    return Resources.of({f"mig-{profile}": count})


def take(slot: Slot, bundle: Resources) -> tuple[Slot, Resources, tuple[int, ...]]:
    assert slot.fits(bundle)
    devices = slot.choose(bundle)
    held = slot.realised(bundle, devices)
    return slot.minus(held, devices), held, devices


# ---------------------------------------------------------------- memory


def test_twenty_three_pieces_of_2000_mib_fit_46068_and_no_more() -> None:
    slot, count = Slot.empty(node(1, 46_068)), 0
    while slot.fits(of(mib=2000)):
        slot, held, _ = take(slot, of(mib=2000))
        assert held.gpu_units == 434  # of 10,000: rounded down, so that Ray's sum never exceeds the device
        count += 1
    assert count == 23


def test_memory_and_fractions_share_a_device_to_the_last_byte() -> None:
    slot, *_ = take(Slot.empty(node(1, 99)), of(gpu=0.5))
    assert slot.fits(of(mib=49))
    assert not slot.fits(of(mib=50))
    slot, *_ = take(slot, of(mib=49))
    assert slot.free_mib == 5_000  # half a MiB
    assert slot.fits(of(gpu=0.005))
    assert not slot.fits(of(gpu=0.01))


def test_a_memory_share_goes_where_it_leaves_least_and_never_on_two_devices() -> None:
    slot, *_ = take(Slot.empty(node()), of(mib=30))
    assert slot.choose(of(mib=70)) == (0,)
    assert slot.choose(of(mib=71)) == (1,)
    slot, *_ = take(slot, of(mib=71))
    assert not slot.fits(of(mib=71))


def test_without_known_memory_nothing_fits_by_memory() -> None:
    plain = NodeSpec(NodeId("n"), "n", Resources.of({"GPU": 2}), (Device(0), Device(1)))
    assert not Slot.empty(plain).fits(of(mib=1))
    assert Slot.empty(plain).fits(of(gpu=2))


def test_a_sick_device_gives_no_memory() -> None:
    sick = node(2, devices=(Device(0, memory_bytes=100 * MIB, sick="xid 79"), Device(1, memory_bytes=100 * MIB)))
    slot = Slot.empty(sick)
    assert slot.choose(of(mib=60)) == (1,)
    assert slot.free_mib == 100 * UNIT


def test_a_device_that_is_wholly_held_takes_no_share() -> None:
    """Slurm 23.11 granted a GPU whole and a shard of it as well."""
    slot, *_ = take(Slot.empty(node(1)), of(gpu=1))
    assert not slot.fits(of(mib=1))
    shared, *_ = take(Slot.empty(node(1)), of(mib=1))
    assert not shared.fits(of(gpu=1))


# ---------------------------------------------------------------- several devices


def test_half_of_two_devices_takes_two_devices() -> None:
    slot, _, devices = take(Slot.empty(node()), of(gpu=1, devices=2))
    assert devices == (0, 1)
    assert slot.devices == (5_000, 5_000)
    assert slot.fits(of(gpu=1, devices=2))
    assert not slot.fits(of(gpu=1))
    assert not slot.fits(of(gpu=1.2, devices=2))


def test_three_shares_need_three_devices() -> None:
    assert not Slot.empty(node(2)).fits(of(mib=30, devices=3))
    assert Slot.empty(node(3)).fits(of(mib=30, devices=3))


def test_several_devices_need_names() -> None:
    unnamed = Slot.empty(node(exact=False))
    assert not unnamed.fits(of(gpu=1, devices=2))
    assert unnamed.lacks_names(of(gpu=1, devices=2))
    assert not unnamed.lacks_names(of(gpu=0.5))
    assert unnamed.fits(of(mib=50))


# ---------------------------------------------------------------- MIG


def test_an_instance_is_had_by_its_profile_and_counts_as_no_gpu() -> None:
    slot = Slot.empty(cut("1g.10gb", "3g.40gb", "1g.10gb"))
    assert not slot.fits(of(gpu=1))
    assert not slot.fits(of(gpu=0.5))
    assert not slot.fits(of(mib=1))
    assert slot.gpu_units == 0
    after, held, devices = take(slot, mig("3g.40gb"))
    assert (devices, held) == ((1,), mig("3g.40gb"))
    assert not after.fits(mig("3g.40gb"))
    assert after.fits(mig("1g.10gb", 2))
    assert not after.fits(mig("1g.10gb", 3))


def test_with_the_single_strategy_instances_are_gpus() -> None:
    assert Slot.empty(cut("1g.10gb", "1g.10gb", mixed=False)).fits(of(gpu=2))


def test_what_was_not_read_yet_is_no_gpu_of_a_mixed_node() -> None:
    unread = replace(cut("1g.10gb"), devices=(Device(0), Device(1)))
    assert not Slot.empty(unread).fits(of(gpu=1))


def test_a_whole_gpu_beside_instances_is_one() -> None:
    both = cut("1g.10gb")
    both = replace(both, devices=(*both.devices, Device(1, uuid="GPU-1")), total=both.total + Resources.of({"GPU": 1}))
    slot = Slot.empty(both)
    assert slot.fits(of(gpu=1))
    assert slot.choose(of(gpu=1)) == (1,)
    assert not slot.fits(of(gpu=2))


def test_instances_of_gpus_in_use_go_first_so_that_idle_gpus_stay_idle() -> None:
    slot = Slot.empty(cut("1g.10gb", "1g.10gb", "1g.10gb", "3g.40gb", pci=("a", "b", "b", "b")))
    assert slot.choose(mig("1g.10gb")) == (0,)
    slot, *_ = take(slot, mig("3g.40gb"))
    assert slot.choose(mig("1g.10gb")) == (1,)


def test_without_names_only_a_node_of_one_profile_can_promise_it() -> None:
    assert Slot.empty(cut("1g.10gb", "1g.10gb", exact=False)).fits(mig("1g.10gb"))
    several = Slot.empty(cut("1g.10gb", "3g.40gb", exact=False))
    assert not several.fits(mig("1g.10gb"))
    assert several.lacks_names(mig("1g.10gb"))


def test_instances_that_no_device_is_known_of_are_counted() -> None:
    spec = NodeSpec(NodeId("n"), "n", Resources.of({"CPU": 8, "mig-1g.10gb": 3}))
    slot, _, devices = take(Slot.empty(spec), mig("1g.10gb", 2))
    assert devices == ()
    assert slot.fits(mig("1g.10gb"))
    assert not slot.fits(mig("1g.10gb", 2))


# ---------------------------------------------------------------- modes


def test_only_a_node_that_is_shared_by_mps_takes_who_asks_for_it() -> None:
    wanted = of(gpu=0.5, **{MPS: 1})
    assert not Slot.empty(node()).fits(wanted)
    assert Slot.empty(node(sharing=MPS)).fits(wanted)
    slot, *_ = take(Slot.empty(node(1, sharing=MPS, replicas=1)), of(gpu=0.1, **{MPS: 1}))
    assert not slot.fits(of(gpu=0.1, **{MPS: 1}))


# ---------------------------------------------------------------- links


PAIRS = (frozenset({1}), frozenset({0}), frozenset({3}), frozenset({2}))


@pytest.mark.parametrize(
    ("free", "count", "best"),
    [
        ((0, 1, 2, 3), 2, [0, 1]),
        ((1, 2, 3), 2, [2, 3]),
        ((1, 2, 3), 1, [1]),  # breaks no pair
        ((0, 2), 2, [0, 2]),
        ((0, 1, 2, 3), 3, [0, 1, 2]),
    ],
)
def test_bridged_pairs_stay_together(free: tuple[int, ...], count: int, best: list[int]) -> None:
    assert best_linked(free, count, PAIRS) == best


def test_an_exact_node_gives_linked_gpus_and_another_the_lowest() -> None:
    devices = tuple(Device(i, nvlink=tuple(sorted(PAIRS[i]))) for i in range(4))
    linked = node(4, devices=devices)
    slot = Slot.empty(linked).minus(of(gpu=1), (0,))
    assert slot.choose(of(gpu=2)) == (2, 3)
    unnamed = Slot.empty(replace(linked, exact=False)).minus(of(gpu=1), (0,))
    assert unnamed.choose(of(gpu=2)) == (1, 2)


# ---------------------------------------------------------------- whatever is asked


asks = st.one_of(
    st.integers(1, 10_000).map(lambda n: Resources.of_units({"GPU": n})),
    st.integers(1, 3).map(lambda n: of(gpu=n)),
    st.integers(1, 150).map(lambda n: of(mib=n)),
    st.tuples(st.integers(1, 9_999), st.integers(2, 3)).map(
        lambda p: Resources.of_units({"GPU": p[0] * p[1], "gpu-devices": p[1] * UNIT})
    ),
    st.tuples(st.integers(1, 99), st.integers(2, 3)).map(lambda p: of(mib=p[0] * p[1], devices=p[1])),
)


@given(steps=st.lists(st.tuples(asks, st.booleans()), max_size=25), mib=st.sampled_from([0, 1, 97, 100, 81_559]))
def test_no_device_is_above_its_capacity_and_what_comes_back_restores_it(
    steps: list[tuple[Resources, bool]], mib: int
) -> None:
    start = slot = Slot.empty(node(3, mib))
    held: list[tuple[Resources, tuple[int, ...]]] = []
    for bundle, back in steps:
        if back and held:
            amount, devices = held.pop(0)
            slot = slot.minus(amount.times(-1), devices)
        elif slot.fits(bundle):
            slot, amount, devices = take(slot, bundle)
            assert slot.fits(amount) == slot.fits(bundle)  # the GPUs that it came to ask for nothing more
            held.append((amount, devices))
        assert min(slot.left) >= 0
        assert min(slot.devices) >= 0
    for amount, devices in held:
        slot = slot.minus(amount.times(-1), devices)
    assert slot.left == start.left
    assert slot.amounts == start.amounts


def test_what_is_taken_of_a_slot_is_what_would_be_chosen_and_charged() -> None:
    node = NodeSpec(NodeId("n"), "n", Resources.of({"GPU": 4, "CPU": 8}))
    slot = Slot.empty(node)
    for bundle in (Resources.of({"GPU": 2, "CPU": 1}), Resources.of({"GPU": 0.5}), Resources.of({"GPU": 2, "CPU": 1})):
        devices, left = slot.taken(bundle)
        again = slot.taken(Resources(bundle.items))
        assert again[0] == devices == slot.choose(bundle) and again[1] is left
        assert (left.left, left.amounts) == (slot.minus(bundle, devices).left, slot.minus(bundle, devices).amounts)
        slot = left
