"""Parts of GPUs: what a bundle asks of devices, what it is charged, and what Ray is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.sharing import (
    DeviceNeed,
    asked,
    asks_of_ray,
    counted,
    device_need,
    device_shares,
    mig_profile,
    priced,
    uses_devices,
)
from rayorch.core.types import UNIT, Resources


def of(**amounts: float) -> Resources:
    """Amounts by name; `gpu_memory_mib` stands for gpu-memory-mib, `mig_1g_10gb` for mig-1g.10gb."""
    names = {"gpu_memory_mib": "gpu-memory-mib", "gpu_devices": "gpu-devices", "gpu_mps": "gpu-mps"}
    return Resources.of({names.get(k, k): v for k, v in amounts.items()})


def mig(profile: str, count: int = 1, **others: float) -> Resources:
    return of(**others) + Resources.of({f"mig-{profile}": count})


def test_plain_gpus_are_whole_ones_and_one_fraction() -> None:
    assert device_need(of(GPU=1.5, CPU=2)) == DeviceNeed(units=15_000, rest=(("CPU", 20_000),))


def test_several_devices_share_an_amount_equally() -> None:
    assert device_need(of(GPU=1, gpu_devices=2)) == DeviceNeed(shares=2, share_units=5_000)
    assert device_need(of(gpu_memory_mib=300, gpu_devices=3)) == DeviceNeed(shares=3, share_mib=100 * UNIT)


def test_beside_memory_the_gpus_are_only_what_it_came_to() -> None:
    assert device_need(of(GPU=0.25, gpu_memory_mib=20)) == DeviceNeed(shares=1, share_mib=20 * UNIT)
    assert asked(of(GPU=0.25, gpu_memory_mib=20, CPU=1)) == of(gpu_memory_mib=20, CPU=1)
    assert asked(of(GPU=0.25, CPU=1)) == of(GPU=0.25, CPU=1)


@pytest.mark.parametrize("name", ["mig-1g.10gb", "mig-3g.71gb", "mig-1g.5gb+me", "mig-7g.80gb"])
def test_names_of_instances(name: str) -> None:
    assert mig_profile(name) == name.removeprefix("mig-")


@pytest.mark.parametrize("name", ["mig-", "mig-1g", "mig-0g.5gb", "mig-1g.0gb", "MIG-1g.5gb", "gpu0", "mig-1g.5gb\n"])
def test_other_names_are_no_instances(name: str) -> None:
    assert mig_profile(name) is None


def test_an_instance_is_charged_by_its_compute_slices() -> None:
    assert counted(mig("3g.40gb", 2, CPU=1)).gpu_units == 6 * (UNIT // 7)
    assert counted(of(GPU=1, gpu_devices=2, gpu_mps=1)) == of(GPU=1)


bundles = st.fixed_dictionaries(
    {},
    optional={
        "GPU": st.integers(1, 80_000),
        "CPU": st.integers(1, 80_000),
        "gpu-memory-mib": st.integers(1, 200_000).map(lambda n: n * UNIT),
        "gpu-devices": st.integers(1, 8).map(lambda n: n * UNIT),
        "mig-1g.10gb": st.integers(1, 7).map(lambda n: n * UNIT),
        "mig-3g.40gb": st.integers(1, 2).map(lambda n: n * UNIT),
    },
).map(Resources.of_units)


@given(one=bundles, other=bundles, count=st.integers(1, 9))
def test_a_charge_adds_up(one: Resources, other: Resources, count: int) -> None:
    assert counted(one + other) == counted(one) + counted(other)
    assert counted(one.times(count)) == counted(one).times(count)
    assert counted(one - other) == counted(one) - counted(other)


@given(bundle=bundles)
def test_what_is_given_back_asks_for_the_same_devices(bundle: Resources) -> None:
    need, back = device_need(bundle), device_need(bundle.times(-1))
    assert (need.units, need.shares, need.share_units, need.share_mib, need.slices) == (
        back.units,
        back.shares,
        back.share_units,
        back.share_mib,
        back.slices,
    )
    assert uses_devices(bundle) or not any(name != "CPU" for name, _ in bundle)


def test_ray_is_asked_for_what_it_counts() -> None:
    assert asks_of_ray(of(GPU=0.5, gpu_memory_mib=100, CPU=1)) == of(GPU=0.5, CPU=1)
    assert asks_of_ray(of(GPU=1, gpu_devices=2, gpu_mps=1)) == of(GPU=1)
    assert asks_of_ray(mig("1g.10gb", 2, CPU=1), (3, 4)) == of(GPU=2, CPU=1)
    assert asks_of_ray(mig("1g.10gb", 2)) == mig("1g.10gb", 2)  # a node's own resource, of no device that is known
    assert asks_of_ray(of(GPU=2, CPU=1)) == of(GPU=2, CPU=1)


def test_a_memory_share_is_priced_at_the_smallest_device_that_takes_it() -> None:
    assert priced(of(gpu_memory_mib=350), (400, 600, 2000)).gpu_units == 8_750
    assert priced(of(gpu_memory_mib=500), (400, 600, 2000)).gpu_units == 8_333
    assert priced(of(gpu_memory_mib=1200, gpu_devices=2), (400, 600, 2000)).gpu_units == 20_000
    assert priced(of(gpu_memory_mib=5000), (400,)).gpu_units == UNIT
    assert priced(of(GPU=0.5), (400,)) == of(GPU=0.5)


def test_each_device_has_its_part() -> None:
    assert device_shares(of(GPU=2.5), (1, 2, 5)) == ((1, UNIT), (2, UNIT), (5, 5_000))
    assert device_shares(of(GPU=1, gpu_devices=2), (0, 3)) == ((0, 5_000), (3, 5_000))
    assert device_shares(mig("1g.10gb", 2), (4, 6)) == ((4, UNIT), (6, UNIT))
    parts = device_shares(of(GPU=0.3335, gpu_memory_mib=10, gpu_devices=2), (0, 1))
    assert sum(units for _, units in parts) == 3_335
