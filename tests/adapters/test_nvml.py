"""NVML read for real, against a library that a test can change: every fact, every fault, and calls that hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayorch.adapters.nvml import NvmlReader, ReaderLimits
from rayorch.core.device_facts import Fault, MigInstance, Sight, XidEvent
from rayorch.core.devices import NodeDevices
from tests.nvml.fake import FakeMachine, build

LIMITS = ReaderLimits(start_s=60.0, call_s=2.0, look_s=60.0, hangs=2, retry_hung_s=3600.0, heard_s=0.0)
"""A call takes microseconds; `call_s` is what a hang costs."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, built once."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A machine that the readers' child processes will see; this process does not."""
    fake = FakeMachine(tmp_path, library)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def reader_of() -> Iterator[Callable[..., NvmlReader]]:
    """Makes readers and closes them."""
    made: list[NvmlReader] = []

    def make(limits: ReaderLimits = LIMITS) -> NvmlReader:
        made.append(NvmlReader(limits))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


def test_everything_about_healthy_gpus(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    machine.shows("3 temp 61 power 512500 limit 650000 clk 1755 mem 1024 sbe 4 ecc_agg 9 numa 1", "7 links 2 direct 1")
    sight = reader_of().read()
    assert (sight.error, sight.hears_xids, sight.xids) == ("", True, ())
    assert [gpu.nvml_index for gpu in sight.gpus] == list(range(8))
    assert len({gpu.uuid for gpu in sight.gpus}) == 8
    assert {gpu.fault for gpu in sight.gpus} == {None}
    third = sight.gpus[3]
    assert (third.name, third.pci, third.numa) == ("NVIDIA H100 80GB HBM3", "0000:13:00.0", 1)
    assert (third.memory_total_bytes, third.memory_used_bytes) == (81_559 * 2**20, 2**30)
    assert (third.temperature_c, third.power_w, third.power_limit_w) == (61, 512.5, 650.0)
    assert (third.sm_clock_mhz, third.max_sm_clock_mhz, third.clock_reasons) == (1755, 1980, 1)
    assert (third.correctable, third.uncorrectable, third.uncorrectable_lifetime) == (4, 0, 9)
    assert (third.remap_pending, third.remap_failed, third.recovery_action) == (False, False, 0)
    assert (third.mig_enabled, third.mig_pending, third.instances, third.processes) == (False, False, (), ())
    assert len(third.links) == 18 and all(link.up and link.switch for link in third.links)
    assert [(link.peer, link.switch) for link in sight.gpus[7].links] == [
        ("0000:16:00.0", False),
        ("0000:10:00.0", False),
    ]


def test_neighbours_as_rays_indices(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    machine.shows("* links 2 direct 1", "0 links_down 1")
    devices = NodeDevices(None)
    devices.observe(reader_of().read(), 0.0)
    assert devices.report(0).devices[3].nvlink == (2, 4)
    assert devices.report(0).devices[0].nvlink == (1,)
    assert devices.report(0).devices[0].watch == "1 of 2 NVLinks are down"


def test_faults_and_what_asks_for_attention(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    reader = reader_of()
    reader.read()
    machine.shows(
        "0 reasons 0x60", "1 ecc 2", "2 remap_failed 1 remap_pending 1", "3 recovery 2", "4 lost 1", "5 error 999"
    )
    gpus = reader.read().gpus
    assert gpus[0].clock_reasons == 0x60
    assert gpus[1].uncorrectable == 2
    assert (gpus[2].remap_failed, gpus[2].remap_pending) == (True, True)
    assert gpus[3].recovery_action == 2
    assert (gpus[4].fault, gpus[4].fault_text) == (Fault.LOST, "GPU is lost")
    assert gpus[4].uuid.startswith("GPU-00000004")  # it is still said which one was lost
    assert gpus[5].fault is Fault.ERROR
    assert {gpu.fault for gpu in gpus[6:]} == {None}
    machine.shows()
    assert {gpu.fault for gpu in reader.read().gpus} == {None}


def test_a_gpu_that_is_gone_from_the_list(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    reader = reader_of()
    before = reader.read()
    machine.shows("2 gone 1", "event 1 2 79")
    after = reader.read()
    assert after.xids == (XidEvent(before.gpus[2].uuid, 79),)
    assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in before.gpus if gpu.nvml_index != 2]
    assert after.hears_xids
    devices = NodeDevices(None)
    for number, sight in enumerate((before, after, after)):
        devices.observe(sight, float(number))
    assert [device.index for device in devices.report(0).devices if device.lost] == [2]
    machine.shows()
    again = reader.read()
    assert [gpu.uuid for gpu in again.gpus] == [gpu.uuid for gpu in before.gpus]
    assert again.hears_xids


def test_slices_and_their_profiles(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    machine.shows("0 mig 1 instances 1g.10gb+3g.40gb", "1 mig 0 mig_pending 1", "2 mig 1")
    gpus = reader_of().read().gpus
    assert gpus[0].instances == (
        MigInstance("MIG-00000000-0000-0000-0000-000000000000", "1g.10gb", 1, 0, 10 * 2**30),
        MigInstance("MIG-00000000-0000-0000-0000-000000000001", "3g.40gb", 2, 0, 40 * 2**30),
    )
    assert (gpus[1].mig_enabled, gpus[1].mig_pending) == (False, True)
    assert (gpus[2].mig_enabled, gpus[2].instances) == (True, ())


def test_a_node_of_slices_and_one_that_was_left_half_way(
    machine: FakeMachine, reader_of: Callable[..., NvmlReader]
) -> None:
    machine.shows("0 mig 1 instances 1g.10gb+3g.40gb", "1 mig 1 instances 1g.10gb")
    reader = reader_of()
    sight = reader.read()
    slices = tuple(instance.uuid for gpu in sight.gpus for instance in gpu.instances)
    devices = NodeDevices((slices[2], slices[0], "2"))
    devices.observe(sight, 0.0)
    first, second, whole = devices.report(0).devices
    assert (first.mig_profile, second.mig_profile, whole.mig_profile) == ("1g.10gb", "1g.10gb", "")
    assert (first.pci, second.pci) == ("0000:11:00.0", "0000:10:00.0")
    assert not first.sick and not second.sick and not whole.sick
    assert devices.report(0).profiles == ("1g.10gb", "1g.10gb", "3g.40gb")
    machine.shows("0 mig 1 instances 3g.40gb", "1 mig 1", "2 mig 1 mig_pending 0")
    for _ in range(2):
        devices.observe(reader.read(), 1.0)
    first, second, whole = devices.report(0).devices
    assert first.lost and "shows no MIG instance" in first.sick
    assert not second.lost  # the fake names instances by their place: the first one is still there
    assert "MIG is being switched off" in whole.sick


def test_each_xid_is_heard_once(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    machine.shows("event 1 0 13")
    reader = reader_of()
    assert reader.read().xids == ()  # from before anybody listened
    second, fifth = (reader.read().gpus[n].uuid for n in (2, 5))
    machine.shows("event 1 0 13", "event 2 2 79", "event 3 5 31", "event 4 5 31")
    assert reader.read().xids == (XidEvent(second, 79), XidEvent(fifth, 31), XidEvent(fifth, 31))
    assert reader.read().xids == ()


def test_the_xid_of_a_lost_gpu_is_heard_after_the_loss(
    machine: FakeMachine, reader_of: Callable[..., NvmlReader]
) -> None:
    reader = reader_of()
    uuid = reader.read().gpus[4].uuid
    machine.shows("4 lost 1")
    assert reader.read().gpus[4].fault is Fault.LOST
    machine.shows("4 lost 1", "event 1 4 79")
    assert reader.read().xids == (XidEvent(uuid, 79),)


def test_where_events_are_refused_it_is_said(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    machine.shows("6 deaf 1")
    assert not reader_of().read().hears_xids
    reader = reader_of()
    machine.shows()
    assert reader.read().hears_xids
    machine.shows("wait 15")
    assert not reader.read().hears_xids


def test_what_came_before_a_child_listened_is_left_to_others_to_tell(
    machine: FakeMachine, reader_of: Callable[..., NvmlReader]
) -> None:
    assert not reader_of(ReaderLimits()).read().hears_xids


def test_a_call_that_fails_costs_only_its_own_fact(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    reader, devices = reader_of(), NodeDevices(None)
    machine.shows("2 ecc 3 power 80000", "4 power_error 999")
    devices.observe(reader.read(), 0.0)
    machine.shows("2 ecc_error 999 power_error 999", "4 power_error 999 ecc 1")
    for number in range(2):
        sight = reader.read()
        devices.observe(sight, float(number))
    assert (sight.gpus[2].uncorrectable, sight.gpus[2].power_w, sight.gpus[4].power_w) == (3, 80.0, None)
    second, fourth = (devices.report(0).devices[n] for n in (2, 4))
    assert "3 uncorrectable" in second.sick and "nvmlDeviceGetTotalEccErrors" in second.watch
    assert "1 uncorrectable" in fourth.sick
    assert fourth.watch == "can't be read: nvmlDeviceGetPowerUsage: Unknown Error"


def test_processes_of_a_gpu(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    machine.shows("1 procs 4242:100+77:20")
    assert [(p.pid, p.memory_bytes) for p in reader_of().read().gpus[1].processes] == [
        (77, 20 * 2**20),
        (4242, 100 * 2**20),
    ]


# ---------------------------------------------------------------- calls that hang, processes that die


def test_a_call_that_hangs_is_that_gpus_fault_and_the_others_go_on(
    machine: FakeMachine, reader_of: Callable[..., NvmlReader]
) -> None:
    reader = reader_of()
    reader.read()
    machine.shows("3 hang 1", "5 temp 70")
    looks = [reader.read() for _ in range(4)]
    for look in looks:
        assert not look.error
        assert [gpu.nvml_index for gpu in look.gpus if gpu.fault is Fault.HANG] == [3]
    assert looks[0].gpus[3].fault_text == "nvmlDeviceGetPowerUsage does not return"
    assert looks[0].gpus[3].uuid.startswith("GPU-00000003")
    assert looks[-1].gpus[5].temperature_c == 70  # from the third look on it is left alone, and the others are read
    assert looks[-1].gpus[3].uuid.startswith("GPU-00000003")  # also by a child that has never read it
    devices = NodeDevices(None)
    for number, look in enumerate(looks):
        devices.observe(look, float(number))
    assert devices.report(0).devices[3].sick == "hangs: nvmlDeviceGetPowerUsage does not return"


def test_one_that_hangs_from_the_start_is_left_alone_too(
    machine: FakeMachine, reader_of: Callable[..., NvmlReader]
) -> None:
    known = NodeDevices(None)
    known.observe(reader_of().read(), 0.0)
    machine.shows("3 hang 1")
    reader = reader_of(ReaderLimits(start_s=5.0, call_s=2.0, look_s=60.0))
    assert [bool(reader.read().error) for _ in range(3)] == [True, True, False]
    devices = NodeDevices(None, histories=known.report(0).histories)
    for number in range(2):
        devices.observe(reader.read(), float(number))
    assert [(d.index, d.sick, d.lost) for d in devices.report(0).devices if d.sick] == [
        (3, "hangs: a call about it did not return", False)
    ]


def test_one_that_can_not_be_read_keeps_its_verdict_and_is_not_lost(
    machine: FakeMachine, reader_of: Callable[..., NvmlReader]
) -> None:
    reader, devices = reader_of(), NodeDevices(None)
    machine.shows("2 ecc 3")
    devices.observe(reader.read(), 0.0)
    machine.shows("2 error 999", "4 error 999")
    for number in range(3):
        devices.observe(reader.read(), float(number))
    reader.close()  # the next child has read neither
    for number in range(3):
        devices.observe(reader.read(), float(number))
    second, fourth = (devices.report(0).devices[n] for n in (2, 4))
    assert (second.sick, second.lost) == ("3 uncorrectable ECC errors since the driver was loaded", False)
    assert (fourth.sick, fourth.watch, fourth.lost) == ("", "can't be read: Unknown Error", False)


def test_nonsense_between_the_answers_is_an_error_and_a_new_child(
    machine: FakeMachine, reader_of: Callable[..., NvmlReader]
) -> None:
    reader = reader_of()
    reader.read()
    reader._buffer = b"nvml: something that a library prints\n"
    assert "nonsense" in reader.read().error
    assert len(reader.read().gpus) == 8


def test_one_that_answers_again_is_read_again(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    reader = reader_of(ReaderLimits(start_s=60.0, call_s=2.0, look_s=60.0, hangs=2, retry_hung_s=0.0))
    reader.read()
    machine.shows("3 hang 1")
    for _ in range(2):
        assert reader.read().gpus[3].fault is Fault.HANG
    machine.shows()
    assert reader.read().gpus[3].fault is None


def test_a_slow_call_is_no_hang(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    reader = reader_of(ReaderLimits(start_s=60.0, call_s=60.0, look_s=60.0))
    reader.read()
    machine.shows("3 slow 300")
    assert {gpu.fault for gpu in reader.read().gpus} == {None}


def test_many_slow_calls_together_are_bounded(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    reader = reader_of(ReaderLimits(start_s=60.0, call_s=60.0, look_s=4.0))
    reader.read()
    machine.shows("* slow 1000")
    (late,) = [gpu for gpu in reader.read().gpus if gpu.fault is Fault.HANG]
    assert late.nvml_index < 7


def test_a_driver_that_hangs_from_the_start_is_an_unknown_and_leaves_no_process(machine: FakeMachine) -> None:
    machine.shows("0 hang 1")
    reader = NvmlReader(ReaderLimits(start_s=5.0, look_s=1.0))
    try:
        sight = reader.read()
        assert sight.gpus == () and "has not returned" in sight.error
    finally:
        reader.close()
    assert _readers() == []


def test_a_reader_that_is_killed_is_started_anew(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    reader = reader_of()
    reader.read()
    (pid,) = _readers()
    os.kill(pid, 9)
    while _readers():
        time.sleep(0.01)
    looks = [reader.read(), reader.read()]
    assert any(not look.error for look in looks)
    assert len(looks[-1].gpus) == 8


def test_a_driver_that_comes_back_is_found(machine: FakeMachine, reader_of: Callable[..., NvmlReader]) -> None:
    machine.shows("init 9")
    reader = reader_of()
    assert reader.read() == Sight(error="NVML: Driver Not Loaded")
    machine.shows()
    assert len(reader.read().gpus) == 8


@pytest.mark.parametrize("hang", [False, True])
def test_a_reader_ends_with_its_parent(machine: FakeMachine, hang: bool) -> None:
    machine.shows("0 hang 1" if hang else "")
    code = """
import os, threading, time
from rayorch.adapters.nvml import NvmlReader
reader = NvmlReader()
threading.Thread(target=reader.read, daemon=True).start()
while reader._at[0] < 0:
    time.sleep(0.01)
print(reader._child.pid, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    deadline_s = time.monotonic() + 60.0
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline_s, "it outlives its parent"
        time.sleep(0.02)


@pytest.mark.parametrize(("with_library", "present"), [(True, "True"), (False, "False")])
def test_whether_there_is_a_driver(machine: FakeMachine, with_library: bool, present: str) -> None:
    environment = {**os.environ}
    if not with_library:
        environment.pop("LD_LIBRARY_PATH")
        if Path("/dev/nvidiactl").exists():
            pytest.skip("this machine has a driver")
    code = "from rayorch.adapters.nvml import nvml_present; print(nvml_present())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == present


def test_without_a_driver_a_look_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    reader = NvmlReader(LIMITS)
    try:
        assert reader.read() == Sight(error="NVML: NVML Shared Library Not Found")
    finally:
        reader.close()


def _readers() -> list[int]:
    """The reader processes that this process has and that have not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == os.getpid() and state != "Z" and b"rayorch.adapters.nvml.child" in command:
                found.append(int(folder.name))
    return found
