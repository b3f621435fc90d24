"""From readings to verdicts: what makes a device sick or suspect, for how long, and which device is meant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.device_facts import (
    Fault,
    GpuFacts,
    GpuProcess,
    MigInstance,
    NvLink,
    ProcessOwner,
    Sight,
    XidEvent,
    merged,
)
from rayorch.core.device_layer import DeviceLayer, profile_drift, with_report, within_reach
from rayorch.core.devices import (
    MAX_XIDS,
    DeviceReport,
    DeviceRules,
    Latch,
    NodeDevices,
    throttle_text,
)
from rayorch.core.inventory import Inventory
from rayorch.core.room import Room
from rayorch.core.types import Device, NodeId, NodeSpec, Resources
from rayorch.core.visible import Slot, slots, visible_entries
from rayorch.core.xids import XID_ACTIONS, XidAction, xid_action, xid_text

HOT = 0x40
RULES = DeviceRules()


def gpu(index: int, **changes: object) -> GpuFacts:
    """A healthy GPU."""
    facts = GpuFacts(
        nvml_index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA H100",
        pci=f"0000:1{index}:00.0",
        memory_total_bytes=80 * 2**30,
        numa=index // 4,
        mig_enabled=False,
        mig_pending=False,
        clock_reasons=1,
        uncorrectable=0,
        remap_failed=False,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def sight(*gpus: GpuFacts, xids: tuple[XidEvent, ...] = ()) -> Sight:
    """A look that succeeded."""
    return Sight(gpus, xids, hears_xids=True)


def watched(*looks: Sight, visible: tuple[str, ...] | None = None, period_s: float = 3.0) -> NodeDevices:
    """The devices after these looks."""
    devices = NodeDevices(visible)
    for number, look in enumerate(looks):
        devices.observe(look, 1000.0 + number * period_s)
    return devices


def of(devices: NodeDevices, index: int = 0) -> Device:
    """One device of the report."""
    return devices.report(0).devices[index]


# ---------------------------------------------------------------- verdicts


def test_a_healthy_device_is_described() -> None:
    device = of(watched(sight(gpu(0, numa=1))))
    assert device == Device(0, uuid="GPU-0", memory_bytes=80 * 2**30, pci="0000:10:00.0", numa=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"uncorrectable": 1}, "uncorrectable ECC"),
        ({"remap_failed": True}, "could not be remapped"),
        ({"recovery_action": 1}, "asks for a reset of the GPU"),
        ({"recovery_action": 2}, "asks for a reboot"),
        ({"fault": Fault.LOST, "fault_text": "GPU is lost"}, "lost: GPU is lost"),
        ({"mig_enabled": True, "mig_pending": True}, "declared as a whole GPU, but MIG is on (no instance)"),
        ({"mig_enabled": False, "mig_pending": True}, "MIG is being switched on"),
    ],
)
def test_facts_that_stay_make_it_sick_at_the_first_look(changes: dict[str, object], said: str) -> None:
    device = of(watched(sight(gpu(0), gpu(1)), sight(gpu(0, **changes), gpu(1))))
    assert said in device.sick
    assert device.lost == (changes.get("fault") is Fault.LOST)
    assert not of(watched(sight(gpu(0, **changes), gpu(1))), 1).sick


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"remap_pending": True}, "to be remapped"),
        ({"recovery_action": 3}, "drain of its peer-to-peer"),
        ({"recovery_action": 99}, "recovery action 99"),
        ({"links": (NvLink(0, True), NvLink(1, False))}, "1 of 2 NVLinks are down"),
    ],
)
def test_what_can_still_be_used_is_only_watched(changes: dict[str, object], said: str) -> None:
    device = of(watched(sight(gpu(0, **changes))))
    assert said in device.watch
    assert not device.sick


def test_a_throttle_counts_at_the_second_look_and_ends_after_five_clear_ones() -> None:
    devices = NodeDevices(None)
    states = []
    for number, reasons in enumerate([1, HOT, 1, HOT, HOT, 1, 1, HOT, 1, 1, 1, 1, 1]):
        devices.observe(sight(gpu(0, clock_reasons=reasons)), float(number))
        states.append(bool(of(devices).watch))
    assert states == [False, False, False, False, True, True, True, True, True, True, True, True, False]


def test_its_reason_is_named_and_stays_the_same() -> None:
    looks = [sight(gpu(0, clock_reasons=HOT)), sight(gpu(0, clock_reasons=HOT)), sight(gpu(0, clock_reasons=0x20))]
    assert of(watched(*looks)).watch == "throttled: hardware thermal slowdown"


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x4, 0x10, 0x100, None])
def test_idle_set_and_power_capped_clocks_are_no_throttle(reasons: int | None) -> None:
    assert throttle_text(reasons) == ""


def test_a_hang_counts_at_the_second_look() -> None:
    hung = gpu(0, fault=Fault.HANG, fault_text="nvmlDeviceGetPowerUsage does not return")
    assert not of(watched(sight(gpu(0)), sight(hung))).sick
    assert of(watched(sight(gpu(0)), sight(hung), sight(hung))).sick.startswith("hangs: nvmlDeviceGetPowerUsage")


def test_a_device_that_can_not_be_read_is_watched_not_sick() -> None:
    broken = gpu(0, fault=Fault.ERROR, fault_text="Unknown Error")
    device = of(watched(sight(broken), sight(broken)))
    assert device.watch == "can't be read: Unknown Error"
    assert not device.sick


def test_a_look_that_failed_changes_no_verdict() -> None:
    devices = watched(sight(gpu(0, uncorrectable=3), gpu(1)), *[Sight(error="no driver")] * 20)
    assert of(devices).sick and not of(devices, 1).sick
    assert devices.report(0).note == "no driver"
    assert not devices.report(0).complete


def test_a_reader_that_begins_anew_with_a_look_that_fails_makes_nothing_well() -> None:
    node = NodeSpec(NodeId("n"), "n", Resources.of({"GPU": 2}), (Device(0), Device(1)))
    layer, old = DeviceLayer(), watched(sight(gpu(0), gpu(1, uncorrectable=3)))
    layer.take(node.id, old.report(1), 0.0)
    before = layer.applied(node)
    layer.take(node.id, watched(Sight(error="no driver")).report(2), 1.0)
    assert layer.applied(node) == replace(before, device_note="no driver")
    known = layer.report(node.id)
    assert known is not None and known.histories == old.report(1).histories


def test_a_lost_device_is_back_only_when_it_can_be_read() -> None:
    lost, unread = gpu(0, fault=Fault.LOST), gpu(0, fault=Fault.ERROR, fault_text="?")
    devices = watched(sight(gpu(0)), sight(lost), *[sight(unread)] * 20)
    assert of(devices).lost
    for number in range(5):
        devices.observe(sight(gpu(0)), 3000.0 + number)
    assert not of(devices).lost


def test_a_reader_that_begins_anew_and_can_not_read_a_sick_device_keeps_it_sick() -> None:
    old = watched(sight(gpu(0, uncorrectable=3)))
    anew = NodeDevices(None, histories=old.report(0).histories)
    for number in range(9):
        anew.observe(sight(GpuFacts(0, fault=Fault.ERROR, fault_text="?")), 2000.0 + number)
        assert "3 uncorrectable" in of(anew).sick
    assert anew.clear(0)
    anew.observe(sight(gpu(0)), 3000.0)
    assert not of(anew).sick


@given(st.lists(st.tuples(st.sampled_from(["error", "unread"]), st.integers(0, 3), st.booleans()), max_size=30))
def test_looks_of_which_nothing_is_learnt_make_nothing_sick_well_or_lost(
    looks: list[tuple[str, int, bool]],
) -> None:
    """Whichever GPU can't be read, with or without its name; only the driver's word or a hang says something."""
    gpus = [gpu(number, uncorrectable=number % 2) for number in range(4)]
    devices = watched(sight(*gpus))
    for number, (what, which, named) in enumerate(looks):
        unread = gpus[which] if named else GpuFacts(which)
        unread = replace(unread, fault=Fault.ERROR, fault_text=what)
        seen = Sight(error="?") if what == "error" else sight(*gpus[:which], unread, *gpus[which + 1 :])
        devices.observe(seen, 2000.0 + number)
    assert [(bool(d.sick), d.lost) for d in devices.report(0).devices] == [(False, False), (True, False)] * 2


def test_one_without_a_name_may_be_any_that_is_missing() -> None:
    nameless = replace(gpu(1), uuid="", fault=Fault.ERROR, fault_text="?")
    known = {0: "GPU-0", 1: "GPU-1", 2: "GPU-2"}
    found = slots(None, (gpu(0), nameless), known)
    assert [(slot.gpu, slot.wrong) for slot in found] == [(gpu(0), ""), (nameless, ""), (None, "")]
    devices = watched(sight(gpu(0), gpu(1), gpu(2)), *[sight(gpu(0), nameless)] * 5)
    assert [(d.index, d.watch) for d in devices.report(0).devices if d.sick or d.watch] == [(1, "can't be read: ?")]
    assert slots(("²", "GPU-1"), (gpu(0), nameless), {})[1] == Slot(1)


def test_nothing_read_at_all_is_unknown() -> None:
    report = watched(Sight(error="version mismatch")).report(0)
    assert report.devices == ()
    node = NodeSpec(NodeId("n"), "n", Resources.of({"GPU": 2}), (Device(0), Device(1)))
    layer = DeviceLayer()
    layer.take(node.id, report, 0.0)
    assert layer.applied(node) == replace(node, device_note="version mismatch")


def test_a_reading_without_a_value_forgets_no_error() -> None:
    devices = watched(sight(gpu(0, clock_reasons=HOT)), sight(gpu(0, clock_reasons=HOT)))
    for number in range(20):
        devices.observe(sight(gpu(0, fault=Fault.ERROR, fault_text="?")), 2000.0 + number)
    assert "throttled" in of(devices).watch


def test_processes_that_should_not_be_there_are_named() -> None:
    def used(*owners: ProcessOwner) -> GpuFacts:
        return gpu(0, processes=tuple(GpuProcess(n, 1, f"/usr/bin/p{n} x", o, "w/2") for n, o in enumerate(owners)))

    fine = used(ProcessOwner.ATTEMPT, ProcessOwner.RAY, ProcessOwner.UNKNOWN)
    assert not of(watched(sight(fine), sight(fine))).watch
    left = used(ProcessOwner.ENDED, ProcessOwner.STRAY)
    watch = of(watched(sight(left), sight(left))).watch
    assert watch == "used by process 0 (p0) of w/2, which is over; process 1 (p1), which no grant covers"
    many = used(*[ProcessOwner.STRAY] * 9)
    assert of(watched(sight(many), sight(many))).watch.endswith("and 6 more")


# ---------------------------------------------------------------- XIDs


def test_a_fatal_xid_makes_it_sick_for_good() -> None:
    devices = watched(sight(gpu(0), gpu(1), xids=(XidEvent("GPU-0", 79),)))
    for number in range(100):
        devices.observe(sight(gpu(0), gpu(1)), 2000.0 + number * 86_400.0)
    assert of(devices).sick == "XID 79 (GPU has fallen off the bus)"
    assert not of(devices, 1).sick
    assert devices.clear(0) and not devices.clear(7)
    devices.observe(sight(gpu(0), gpu(1)), 1e9)
    assert not of(devices).sick


def test_errors_of_applications_only_count_when_there_are_many_in_a_day() -> None:
    once = sight(gpu(0), xids=(XidEvent("GPU-0", 31),))
    assert not of(watched(*[once] * 4)).watch
    assert of(watched(*[once] * 5)).watch == "many errors of applications (XID 31)"
    assert not of(watched(*[once] * 5, period_s=90_000.0)).watch


def test_codes_that_nobody_knows_are_watched() -> None:
    assert of(watched(sight(gpu(0), xids=(XidEvent("GPU-0", 999),)))).watch == "XID 999, which is not known here"


def test_a_gauges_old_value_is_no_proof_that_it_is_sick_now() -> None:
    old = XidEvent("GPU-0", 79, fresh=False)
    device = of(watched(sight(gpu(0), xids=(old,))))
    assert not device.sick and "before it was watched" in device.watch
    assert of(watched(sight(gpu(0), xids=(old,)), sight(gpu(0), xids=(XidEvent("GPU-0", 79),)))).sick


def test_what_is_kept_of_xids_is_bounded_and_keeps_the_fatal_ones() -> None:
    events = tuple(XidEvent("GPU-0", code) for code in (79, *range(500, 600)))
    history = watched(sight(gpu(0), xids=events)).report(0).histories[0]
    assert len(history.xids) == MAX_XIDS
    assert 79 in {x.code for x in history.xids}


def test_the_table_of_xids_says_what_the_catalogue_says() -> None:
    for action, codes in {
        XidAction.RESTART_APP: (13, 31, 94, 96, 105, 135),
        XidAction.RESET_GPU: (46, 48, 62, 64, 74, 95, 109, 119, 120, 144, 150),
        XidAction.REBOOT: (79, 151),
        XidAction.RECORD: (43, 45, 63, 137, 154),
        XidAction.UNKNOWN: (1, 61, 138, 173),
    }.items():
        assert {xid_action(code) for code in codes} == {action}, action
    assert len(XID_ACTIONS) == 109
    assert xid_text(145) == "XID 145 (NVLink 5 error)"


# ---------------------------------------------------------------- which device is meant


def test_entries_of_the_variable() -> None:
    assert visible_entries(None) is None
    assert visible_entries("") == visible_entries("NoDevFiles") == ()
    assert visible_entries("3, 1") == ("3", "1")


@pytest.mark.parametrize(
    ("visible", "meant"),
    [
        (None, ["GPU-0", "GPU-1", "GPU-2"]),
        (("2", "0"), ["GPU-2", "GPU-0"]),
        (("GPU-1", "GPU-2"), ["GPU-1", "GPU-2"]),
        (("MIG-b", "MIG-GPU-2/1/0"), ["MIG-b", "MIG-a"]),
        (("7", "0"), ["", "GPU-0"]),
        (("GPU-", "0"), ["", "GPU-0"]),
        ((), []),
    ],
)
def test_rays_index_means_the_entry_of_the_nodes_variable(visible: tuple[str, ...] | None, meant: list[str]) -> None:
    instances = (MigInstance("MIG-a", "1g.10gb", 1, 0), MigInstance("MIG-b", "1g.10gb", 2, 0))
    found = slots(visible, [gpu(0), gpu(1), gpu(2, mig_enabled=True, instances=instances)], {})
    assert [slot.uuid for slot in found] == meant
    assert [bool(slot.wrong) for slot in found] == [not uuid for uuid in meant]


def test_a_device_that_is_declared_twice_is_sick() -> None:
    devices = watched(sight(gpu(0), gpu(1)), visible=("0", "GPU-0"))
    assert not of(devices).sick
    assert of(devices, 1).sick == "declared twice: the same device as index 0"


def test_a_device_that_vanishes_is_lost_at_the_second_look_though_the_others_are_numbered_anew() -> None:
    left = sight(gpu(0), replace(gpu(2), nvml_index=1))
    devices = watched(sight(gpu(0), gpu(1), gpu(2)), left)
    assert not any(device.sick for device in devices.report(0).devices)
    devices.observe(left, 2000.0)
    first, second, third = devices.report(0).devices
    assert second.lost and second.uuid == "GPU-1" and second.memory_bytes == 80 * 2**30
    assert (first.sick, third.sick, third.uuid) == ("", "", "GPU-2")


@given(st.permutations(range(6)), st.sets(st.integers(0, 5), min_size=1, max_size=5))
def test_whatever_order_and_losses_an_index_keeps_its_device(order: list[int], gone: set[int]) -> None:
    machine = {n: gpu(n) for n in range(6)}
    visible = tuple(f"GPU-{n}" if n % 2 else str(n) for n in order)
    devices = watched(sight(*machine.values()), visible=visible)
    left = [replace(machine[n], nvml_index=i) for i, n in enumerate(n for n in range(6) if n not in gone)]
    for number in range(RULES.raise_after):
        devices.observe(sight(*left), 2000.0 + number)
    assert [device.uuid for device in devices.report(0).devices] == [f"GPU-{n}" for n in order]
    assert [device.lost for device in devices.report(0).devices] == [n in gone for n in order]


def test_instances_are_as_sick_as_their_gpu() -> None:
    instances = (MigInstance("MIG-a", "1g.10gb", 1, 0, 10 * 2**30), MigInstance("MIG-b", "3g.40gb", 2, 0))
    sliced = gpu(0, mig_enabled=True, mig_pending=True, instances=instances)
    devices = watched(sight(sliced, xids=(XidEvent("GPU-0", 48),)), visible=("MIG-a", "MIG-b"))
    first, second = devices.report(0).devices
    assert (first.mig_profile, first.memory_bytes, second.mig_profile) == ("1g.10gb", 10 * 2**30, "3g.40gb")
    assert first.sick == second.sick == "XID 48 (double-bit ECC error)"


def test_a_node_that_offers_whole_gpus_and_their_slices_offers_only_the_slices() -> None:
    instances = tuple(MigInstance(f"MIG-{n}", "1g.10gb", n, 0) for n in range(7))
    devices = watched(
        sight(gpu(0, mig_enabled=True, mig_pending=True, instances=instances)),
        visible=("GPU-0", *(f"MIG-{n}" for n in range(7))),
    )
    whole, *slices = devices.report(0).devices
    assert whole.sick == "declared as a whole GPU, but MIG is on (7 x 1g.10gb)"
    assert not any(device.sick for device in slices)


def test_a_source_without_names_of_instances_knows_nothing_of_them() -> None:
    nameless = gpu(0, mig_enabled=True, mig_pending=None, instances=(MigInstance("", "1g.10gb", 1, 0),))
    devices = watched(sight(nameless), sight(nameless), sight(nameless), visible=("MIG-a",))
    assert not of(devices).sick


def test_neighbours_by_links_and_by_switches() -> None:
    def linked(index: int, *peers: str, switch: bool = False) -> GpuFacts:
        return gpu(index, links=tuple(NvLink(n, True, peer, switch) for n, peer in enumerate(peers)))

    bridge = [linked(0, "0000:11:00.0"), linked(1, "0000:10:00.0"), linked(2)]
    assert [d.nvlink for d in watched(sight(*bridge)).report(0).devices] == [(1,), (0,), ()]
    fabric = [linked(n, "0000:B0:00.0", switch=True) for n in range(3)]
    assert [d.nvlink for d in watched(sight(*fabric)).report(0).devices] == [(1, 2), (0, 2), (0, 1)]


# ---------------------------------------------------------------- a reader that is restarted


def test_a_new_reader_knows_what_the_old_one_told() -> None:
    old = watched(
        sight(gpu(0), gpu(1), gpu(2), xids=(XidEvent("GPU-2", 119),)),
        sight(gpu(0), replace(gpu(2), nvml_index=1)),
        sight(gpu(0), replace(gpu(2), nvml_index=1)),
    )
    new = NodeDevices(None, histories=old.report(0).histories)
    new.observe(sight(gpu(0), replace(gpu(2), nvml_index=1)), 3000.0)
    first, second, third = new.report(0).devices
    assert (first.sick, second.lost, third.uuid) == ("", True, "GPU-2")
    assert third.sick == "XID 119 (GSP RPC time-out)"


def test_the_same_reading_gives_the_same_report() -> None:
    once = watched(sight(gpu(0, temperature_c=40), gpu(1)))
    twice = watched(sight(gpu(0, temperature_c=40), gpu(1)), sight(gpu(0, temperature_c=70, power_w=1.0), gpu(1)))
    assert once.report(0) == twice.report(0)


@given(st.lists(st.booleans(), max_size=40))
def test_a_latch_changes_only_after_enough_readings_running(readings: list[bool]) -> None:
    latch, on = Latch(), False
    for number, now in enumerate(readings):
        latch = latch.step("hot" if now else "", 2, 5)
        recent = readings[: number + 1]
        if not on and recent[-2:] == [True, True]:
            on = True
        elif on and recent[-5:] == [False] * 5:
            on = False
        assert bool(latch.text) == on


# ---------------------------------------------------------------- two sources


def test_a_second_source_only_adds() -> None:
    first = Sight((gpu(0, temperature_c=None), gpu(1)), (), hears_xids=True)
    page = Sight(
        (GpuFacts(5, "GPU-0", temperature_c=60, uncorrectable=9), GpuFacts(6, "GPU-x")),
        (XidEvent("GPU-0", 31), XidEvent("GPU-1", 13, fresh=False)),
    )
    both = merged(first, page)
    assert both.gpus[0] == gpu(0, temperature_c=60)
    assert len(both.gpus) == 2
    assert both.xids == (XidEvent("GPU-1", 13, fresh=False),)  # the fresh one was heard by the first source itself
    assert merged(first, Sight(error="no page")) == first
    assert merged(Sight(error="no library"), page) == page
    assert merged(replace(first, hears_xids=False), page).xids == page.xids


# ---------------------------------------------------------------- the inventory's layer

NODE = NodeSpec(
    NodeId("n"),
    "n",
    Resources.of({"GPU": 4}),
    tuple(Device(n, "H100") for n in range(4)),
    exact=True,
)


def told(*looks: Sight) -> DeviceReport:
    """A report after these looks."""
    return watched(*looks).report(1)


def test_a_sick_device_takes_nothing_new_and_its_node_keeps_the_rest() -> None:
    inventory = Inventory()
    inventory.observe((NODE,), 0.0)
    before = inventory.version
    assert inventory.take_devices(NODE.id, told(sight(gpu(0), gpu(1, uncorrectable=2), gpu(2), gpu(3))), 1.0)
    node = inventory.nodes[NODE.id]
    assert inventory.version > before
    assert [device.model for device in node.devices] == ["H100"] * 4
    room = Room.of([node], [], 0.0)
    assert room.take(NODE.id, Resources.of({"GPU": 3})) == (0, 2, 3)
    assert not room.fits(NODE.id, Resources.of({"GPU": 1}))


def test_an_equal_report_changes_no_version() -> None:
    inventory = Inventory()
    inventory.observe((NODE,), 0.0)
    report = told(sight(*(gpu(n) for n in range(4))))
    inventory.take_devices(NODE.id, report, 1.0)
    before = inventory.version
    inventory.take_devices(NODE.id, replace(report, sequence=9), 31.0)
    inventory.observe((NODE,), 31.0)
    assert inventory.version == before


def test_reports_of_unknown_nodes_and_old_ones_are_left_out() -> None:
    inventory = Inventory()
    report = told(sight(gpu(0)))
    assert not inventory.take_devices(NODE.id, report, 0.0)
    inventory.observe((NODE,), 0.0)
    assert inventory.take_devices(NODE.id, replace(report, sequence=5), 0.0)
    assert not inventory.take_devices(NODE.id, replace(report, sequence=4), 0.0)


def test_a_node_that_was_forgotten_begins_anew() -> None:
    inventory = Inventory()
    inventory.observe((NODE,), 0.0)
    inventory.take_devices(NODE.id, told(sight(gpu(0, uncorrectable=1), *(gpu(n) for n in range(1, 4)))), 0.0)
    inventory.observe((), 1.0)
    inventory.forget(NODE.id)
    inventory.observe((NODE,), 2.0)
    assert inventory.nodes[NODE.id].devices == NODE.devices
    assert inventory.device_report(NODE.id) is None


def test_an_agent_that_falls_silent_is_said_to_be_and_changes_no_verdict() -> None:
    inventory = Inventory()
    inventory.observe((NODE,), 0.0)
    inventory.take_devices(NODE.id, told(sight(gpu(0, uncorrectable=1), *(gpu(n) for n in range(1, 4)))), 0.0)
    inventory.observe((NODE,), 99.0)
    assert not inventory.nodes[NODE.id].device_note
    inventory.observe((NODE,), 101.0)
    node = inventory.nodes[NODE.id]
    assert "not been read" in node.device_note
    assert [bool(device.sick) for device in node.devices] == [True, False, False, False]


def test_more_declared_than_there_are_makes_all_of_them_doubtful() -> None:
    devices = with_report(NODE.devices, told(sight(gpu(0), gpu(1))))
    assert {device.sick for device in devices} == {"Ray counts 4 GPUs here, the driver shows 2"}


def test_a_driver_that_shows_none_of_those_that_ray_counts() -> None:
    inventory = Inventory()
    inventory.observe((NODE,), 0.0)
    inventory.take_devices(NODE.id, told(sight()), 0.0)
    assert {d.sick for d in inventory.nodes[NODE.id].devices} == {"Ray counts 4 GPUs here, the driver shows 0"}


def test_a_node_without_gpus_says_nothing_of_a_driver_that_is_not_there() -> None:
    bare = replace(NODE, devices=(), total=Resources())
    inventory = Inventory()
    inventory.observe((bare,), 0.0)
    inventory.take_devices(NODE.id, told(Sight(error="NVML: Driver Not Loaded")), 0.0)
    assert inventory.nodes[NODE.id] == bare


def test_devices_beyond_rays_count_are_nobodys_concern() -> None:
    devices = with_report(NODE.devices[:1], told(sight(gpu(0), gpu(1, uncorrectable=1))))
    assert [device.sick for device in devices] == [""]


def test_where_ray_chooses_nothing_behind_a_sick_device_is_in_reach() -> None:
    plain = replace(NODE, exact=False)
    inventory = Inventory()
    inventory.observe((plain,), 0.0)
    inventory.take_devices(NODE.id, told(sight(gpu(0), gpu(1), gpu(2, uncorrectable=2), gpu(3))), 1.0)
    node = inventory.nodes[NODE.id]
    assert "out of reach" in node.devices[3].sick
    assert Room.of([node], [], 0.0).take(NODE.id, Resources.of({"GPU": 2})) == (0, 1)
    assert within_reach(NODE.devices) == NODE.devices


# ---------------------------------------------------------------- MIG profiles of a group


def test_the_node_whose_profiles_differ_is_named() -> None:
    usual, other = ("1g.10gb",) * 7, ("2g.20gb", "2g.20gb", "3g.40gb")
    drift = profile_drift({"g": {"a": usual, "b": other, "c": usual}, "h": {"d": other}})
    assert drift == {
        "b": "its MIG profiles (2 x 2g.20gb, 1 x 3g.40gb) are not those of group g (7 x 1g.10gb)",
    }
    assert "(none)" in profile_drift({"g": {"a": usual, "b": (), "c": usual}})["b"]


@given(st.dictionaries(st.text("abc", min_size=1), st.sampled_from([(), ("1g.10gb",), ("2g.20gb", "3g.40gb")])))
def test_most_nodes_of_a_group_are_never_called_wrong(nodes: dict[str, tuple[str, ...]]) -> None:
    drift = profile_drift({"g": nodes})
    kept = [profiles for node, profiles in nodes.items() if node not in drift]
    assert len(set(kept)) <= 1
    assert not nodes or len(kept) >= max(list(nodes.values()).count(p) for p in nodes.values())


def test_drift_shows_at_the_node_and_goes_away() -> None:
    def sliced(*profiles: str) -> Sight:
        instances = tuple(MigInstance(f"MIG-{n}", p, n, 0) for n, p in enumerate(profiles))
        return sight(gpu(0, mig_enabled=True, mig_pending=True, instances=instances))

    nodes = tuple(NodeSpec(NodeId(n), n, Resources.of({"GPU": 1}), (Device(0),), group="g") for n in "abc")
    inventory = Inventory()
    inventory.observe(nodes, 0.0)
    for node, profile in zip(nodes, ("1g.10gb", "1g.10gb", "2g.20gb"), strict=True):
        inventory.take_devices(node.id, told(sliced(profile)), 0.0)
    inventory.observe(nodes, 1.0)
    assert [bool(inventory.nodes[node.id].device_note) for node in nodes] == [False, False, True]
    inventory.take_devices(nodes[2].id, replace(told(sliced("1g.10gb")), sequence=2), 1.0)
    inventory.observe(nodes, 2.0)
    assert not inventory.nodes[nodes[2].id].device_note
