"""The node agent's look at its GPUs: what it tells, how often, whose processes it sees; and the whole way on Ray."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rayorch.actors.device_watch import (
    MAX_FAILED_PAUSE_S,
    MAX_PERIOD_S,
    PERIOD_S,
    DeviceWatch,
    MachineSource,
    WatchSettings,
    named_only,
)
from rayorch.actors.gpu_processes import MAX_ENDED, GpuProcesses
from rayorch.core.device_facts import GpuFacts, GpuProcess, ProcessOwner, Sight, XidEvent
from rayorch.core.devices import DeviceReport, DeviceRules, NodeReading
from rayorch.core.requests import AttemptRef
from rayorch.core.types import Device, NodeId, WorkloadId
from tests.instance import Instance, eventually, gang_spec, short_profile
from tests.machine import FAST_HEALTH_CHECKS, Machine, free_port
from tests.nvml.fake import FakeMachine, build

PROMISE_S = 10.0
"""A device that throttles, fails or disappears is seen within this time."""


def test_the_period_keeps_the_promise() -> None:
    assert PERIOD_S <= MAX_PERIOD_S
    for period_s in (PERIOD_S, MAX_PERIOD_S):
        settings, look_s = WatchSettings({}, period_s), 2.0
        between_s = look_s + settings.pause_s(True, look_s)
        longest_s = DeviceRules().raise_after * between_s + look_s  # the change may come just after it was looked for
        assert longest_s <= PROMISE_S
    assert settings.pause_s(True, 60.0) > 0.0
    assert settings.pause_s(True, 0.0, 1) == settings.period_s
    pauses_s = [settings.pause_s(True, 0.0, failed) for failed in range(2, 2000)]
    assert pauses_s == sorted(pauses_s) and settings.period_s < pauses_s[0] < pauses_s[-1] == MAX_FAILED_PAUSE_S
    assert settings.pause_s(False, 0.0) == settings.absent_period_s


# ---------------------------------------------------------------- what is told, and when


class Script:
    """A source that shows what a test says."""

    def __init__(self, *gpus: GpuFacts) -> None:
        self.sight = Sight(gpus)
        self.there = True
        self.asked = 0

    def present(self) -> bool:
        """Whether there is a driver."""
        self.asked += 1
        return self.there

    def read(self) -> Sight:
        """One look."""
        return self.sight

    def close(self) -> None:
        """Nothing to let go of."""


class Told:
    """A watch with a clock that a test moves, and the reports that it told."""

    def __init__(self, source: Script, environment: dict[str, str] | None = None, **settings: float) -> None:
        self.reports: list[DeviceReport] = []
        self.now_s = 1000.0
        self.source = source
        chosen = WatchSettings(environment or {}, **settings)
        self.watch = DeviceWatch(chosen, source, self._take, clock=lambda: self.now_s)

    async def _take(self, report: DeviceReport) -> None:
        self.reports.append(report)

    def looks(self, count: int = 1) -> int:
        """Look so often; answers how many reports that gave."""
        before = len(self.reports)
        for _ in range(count):
            self.now_s += PERIOD_S
            asyncio.run(self.watch.look())
        return len(self.reports) - before


def gpu(index: int, **changes: Any) -> GpuFacts:
    """A healthy GPU."""
    return replace(GpuFacts(index, f"GPU-{index}", clock_reasons=1, uncorrectable=0), **changes)


def test_it_tells_when_something_has_changed_and_else_once_in_a_while() -> None:
    told = Told(Script(gpu(0), gpu(1)), push_period_s=30.0)
    assert told.looks() == 1
    told.source.sight = Sight((gpu(0, temperature_c=80), gpu(1, power_w=700.0)))
    assert told.looks(9) == 0
    assert told.looks() == 1  # 30 s have passed
    told.source.sight = Sight((gpu(0, uncorrectable=1), gpu(1)))
    assert told.looks() == 1
    assert told.reports[-1].devices[0].sick
    assert told.looks(5) == 0
    assert [r.sequence for r in told.reports] == sorted({r.sequence for r in told.reports})


def test_a_noisy_fact_is_told_once_when_it_counts_and_once_when_it_is_over() -> None:
    told = Told(Script(gpu(0)), push_period_s=1e9)
    told.looks()
    told.source.sight = Sight((gpu(0, clock_reasons=0x40),))
    assert [told.looks() for _ in range(4)] == [0, 1, 0, 0]
    assert told.reports[-1].devices[0].watch == "throttled: hardware thermal slowdown"
    told.source.sight = Sight((gpu(0),))
    assert [told.looks() for _ in range(6)] == [0, 0, 0, 0, 1, 0]
    assert not told.reports[-1].devices[0].watch


def test_a_look_that_fails_is_told_and_takes_nothing_back() -> None:
    told = Told(Script(gpu(0, uncorrectable=1)), push_period_s=1e9)
    told.looks()
    told.source.sight = Sight(error="no driver")
    assert told.looks(3) == 1
    assert told.reports[-1].note == "no driver" and told.reports[-1].devices[0].sick
    assert told.watch.reading.error == "no driver" and told.watch.reading.devices


def test_a_clock_that_is_set_back_keeps_nothing_from_being_told() -> None:
    told = Told(Script(gpu(0)), push_period_s=30.0)
    told.looks()
    told.now_s -= 3600.0
    told.source.sight = Sight((gpu(0, uncorrectable=1),))
    assert told.looks() == 1
    told.now_s -= 3600.0
    assert told.looks() == 1
    assert [r.sequence for r in told.reports] == sorted({r.sequence for r in told.reports})
    anew = DeviceWatch(WatchSettings({}), told.source, told._take, told.watch.report, clock=lambda: 0.0)
    asyncio.run(anew.look())
    assert told.reports[-1].sequence > told.reports[-2].sequence
    assert anew.report == told.reports[-1]


def test_a_machine_without_a_driver_tells_nothing_and_is_asked_again() -> None:
    source = Script(gpu(0))
    source.there = False
    told = Told(source)
    assert told.looks(3) == 0
    assert told.watch.report is None and told.watch.reading.read_s is None
    source.there = True
    assert told.looks(2) == 1
    assert source.asked == 4


def test_rays_index_follows_the_variable_of_the_raylet() -> None:
    told = Told(Script(gpu(0), gpu(1), gpu(2)), {"CUDA_VISIBLE_DEVICES": "GPU-2,0"})
    told.looks()
    assert [device.uuid for device in told.reports[0].devices] == ["GPU-2", "GPU-0"]


def test_an_operator_may_clear_a_device() -> None:
    told = Told(Script(gpu(0)), push_period_s=1e9)
    told.source.sight = Sight((gpu(0),), (XidEvent("GPU-0", 79),))
    told.looks()
    told.source.sight = Sight((gpu(0),))
    assert told.looks() == 0 and told.reports[-1].devices[0].sick
    assert asyncio.run(told.watch.clear(0))
    assert not told.reports[-1].devices[0].sick
    assert not asyncio.run(told.watch.clear(5))


def test_two_looks_are_never_made_at_once() -> None:
    class Slow(Script):
        at_once = most = 0

        def read(self) -> Sight:
            """One look, during which another one could begin."""
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            time.sleep(0.05)
            self.at_once -= 1
            return self.sight

    source = Slow(gpu(0))
    told = Told(source)

    async def both() -> None:
        await told.watch.look()
        await asyncio.gather(told.watch.look(), told.watch.clear(0), told.watch.look())

    asyncio.run(both())
    assert source.most == 1


@pytest.mark.parametrize(
    ("text", "period_s"), [("1.5", 1.5), ("0", PERIOD_S), ("60", PERIOD_S), ("x", PERIOD_S), ("nan", PERIOD_S)]
)
def test_the_period_can_only_be_set_within_its_bound(text: str, period_s: float) -> None:
    assert WatchSettings.of_environment({"RAYORCH_DEVICE_PERIOD_S": text}).period_s == period_s


def test_it_can_be_switched_off() -> None:
    told = Told(Script(gpu(0)), {"RAYORCH_READ_DEVICES": "0"})
    asyncio.run(told.watch.run())  # returns
    assert told.reports == []


def test_an_exporters_page_shows_only_the_gpus_of_this_container() -> None:
    page = Sight((gpu(0, pci="0000:1B:00.0"), gpu(5, pci="0000:10:00.0"), gpu(6)))
    ours = named_only(page, "GPU-5,GPU-0")
    assert [(g.uuid, g.nvml_index) for g in ours.gpus] == [("GPU-5", 0), ("GPU-0", 1)]
    assert "shows 1 of this node's 2 GPUs" in named_only(page, "GPU-5,GPU-9").error
    assert "can't be told apart" in named_only(page, "all").error
    assert named_only(Sight(error="x"), "all").error == "x"


# ---------------------------------------------------------------- whose processes


@dataclass(frozen=True)
class Proc:
    """A folder like /proc."""

    folder: Path

    def add(self, pid: int, command: str, *environment: str, maps: str = "") -> None:
        """A process."""
        place = self.folder / str(pid)
        place.mkdir()
        (place / "environ").write_bytes("\0".join(environment).encode())
        (place / "cmdline").write_bytes(command.replace(" ", "\0").encode())
        (place / "maps").write_text(maps)


def owners(processes: GpuProcesses, *pids: int) -> list[ProcessOwner]:
    """Of processes on one GPU."""
    sight = processes.named(Sight((GpuFacts(0, processes=tuple(GpuProcess(pid) for pid in pids)),)))
    return [process.owner for process in sight.gpus[0].processes]


def test_whose_a_process_is(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    ours = ("RAYORCH_INSTANCE=main", "RAYORCH_WORKLOAD=w", "RAYORCH_ATTEMPT=2")
    proc.add(1, "python train.py", *ours)
    proc.add(2, "python other.py", *ours[:2], "RAYORCH_ATTEMPT=3")
    proc.add(3, "ray::RayTrainWorker", "HOME=/")
    proc.add(4, "python worker.py", "RAY_JOB_ID=01000000")
    proc.add(5, "/usr/bin/miner -x", "HOME=/root")
    proc.add(6, "python train.py", "RAYORCH_INSTANCE=second", *ours[1:], "RAY_JOB_ID=02000000")
    processes = GpuProcesses("main", tmp_path, host_pids=True)
    processes.over(AttemptRef(WorkloadId("w"), 2))
    assert owners(processes, 1, 2, 3, 4, 5, 6, 7) == [
        ProcessOwner.ENDED,
        ProcessOwner.ATTEMPT,
        ProcessOwner.RAY,
        ProcessOwner.RAY,
        ProcessOwner.STRAY,
        ProcessOwner.RAY,
        ProcessOwner.UNKNOWN,
    ]


@pytest.mark.parametrize("attempt", ["²", "9" * 5000, "-1", ""])
def test_nobody_blinds_the_agent_by_a_strange_attempt(tmp_path: Path, attempt: str) -> None:
    ours = ("RAYORCH_INSTANCE=main", "RAYORCH_WORKLOAD=w", f"RAYORCH_ATTEMPT={attempt}")
    Proc(tmp_path).add(1, "miner", *ours)
    assert owners(GpuProcesses("main", tmp_path, host_pids=True), 1) == [ProcessOwner.STRAY]


def test_what_a_process_calls_itself_is_one_short_line(tmp_path: Path) -> None:
    Proc(tmp_path).add(1, "\x1b[2Jminer\nGPU_0_is_fine\u2028" + "x" * 100_000)
    processes = GpuProcesses("main", tmp_path, host_pids=True)
    (process,) = processes.named(Sight((GpuFacts(0, processes=(GpuProcess(1),)),))).gpus[0].processes
    assert process.command.startswith("[2Jminer GPU_0_is_fine xxx")
    assert process.command.isprintable() and len(process.command) <= 200


def test_in_a_container_a_number_may_be_somebody_elses(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.add(1, "sleep 9")
    proc.add(2, "miner", maps="7f00-7f01 r-xp 0 0:0 0 /usr/lib/libcuda.so.1\n")
    processes = GpuProcesses("main", tmp_path, host_pids=False)
    assert owners(processes, 1, 2) == [ProcessOwner.UNKNOWN, ProcessOwner.STRAY]


def test_which_attempts_are_over_is_remembered_for_a_bounded_number() -> None:
    processes = GpuProcesses("main", host_pids=True)
    for number in range(3 * MAX_ENDED):
        processes.over(AttemptRef(WorkloadId("w"), number))
    assert len(processes._ended) == MAX_ENDED


def test_a_machine_with_only_an_exporter_is_read(tmp_path: Path) -> None:
    source = MachineSource(GpuProcesses("main", tmp_path, host_pids=True), {"RAYORCH_DCGM_URL": "http://127.0.0.1:1/"})
    assert source.present()
    assert "can't be read" in source.read().error
    source.close()


# ---------------------------------------------------------------- on Ray

GPUS = 8
LAST = GPUS - 1


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """Machines that the test has started; all are powered off in the end."""
    started: list[Machine] = []
    yield started
    import ray

    ray.shutdown()
    for machine in started:
        machine.power_off()


@pytest.mark.ray
def test_ray_finds_the_gpus_and_the_inventory_hears_how_they_are(tmp_path: Path, machines: list[Machine]) -> None:
    import ray

    from rayorch.actors.start import InstanceSettings, start_instance, stop_instance

    fake = FakeMachine(tmp_path, build(tmp_path), GPUS)
    backwards = ",".join(_uuid(number) for number in reversed(range(GPUS)))
    machines += [
        Machine(tmp_path, "head", env={**FAST_HEALTH_CHECKS, "RAYORCH_READ_DEVICES": "1"}),
        Machine(
            tmp_path, "gpus", env={**fake.environment, "RAYORCH_READ_DEVICES": "1", "CUDA_VISIBLE_DEVICES": backwards}
        ),
    ]
    port = free_port()
    names = json.dumps({f"gpu{number}": 1 for number in range(GPUS)})
    machines[0].ray("--head", f"--port={port}", "--num-gpus=0", "--num-cpus=8", "--include-dashboard=false")
    address = f"127.0.0.1:{port}"
    eventually("the head is up", lambda: _connected(address))
    agent_port = f"--dashboard-agent-listen-port={free_port()}"
    machines[1].ray(f"--address={address}", "--num-cpus=8", f"--resources={names}", agent_port)
    row = eventually("the node with GPUs has joined", _gpu_node)
    assert row["Resources"]["GPU"] == float(GPUS)
    assert row["Resources"]["accelerator_type:H100"] == 1.0
    assert row["Labels"]["ray.io/accelerator-type"] == "H100"

    start_instance(InstanceSettings(short_profile(), tmp_path / "home"))
    instance = Instance()
    try:
        _devices_of_a_machine(instance, NodeId(row["NodeID"]), fake)
    finally:
        instance.close()
        stop_instance("main")
        ray.shutdown()


def _devices_of_a_machine(instance: Instance, node: NodeId, fake: FakeMachine) -> None:
    from rayorch.actors.names import agent_name

    def devices() -> tuple[Device, ...]:
        return next(n for n in instance.facts().nodes if n.id == node).devices

    eventually("the agent has told of its devices", lambda: all(device.uuid for device in devices()))
    assert [device.uuid for device in devices()] == [_uuid(LAST - index) for index in range(GPUS)]
    assert {(device.model, device.sick, device.watch) for device in devices()} == {("H100", "", "")}
    assert devices()[0].nvlink == tuple(range(1, GPUS))
    agent = instance.actor(agent_name("main", node))
    if not Path("/dev/nvidiactl").exists():
        (head,) = [n for n in instance.facts().nodes if n.id != node]
        assert instance.ask(instance.actor(agent_name("main", head.id)).reading.remote()) == NodeReading()
        assert not head.device_note

    before = instance.ask(agent.reading.remote()).looks
    fake.shows("1 reasons 0x40", "3 ecc 2", "5 gone 1", "event 1 0 79")
    seen = eventually("all four are seen", lambda: _all_seen(devices()))
    looks = instance.ask(agent.reading.remote()).looks - before
    assert (seen[LAST - 1].watch, seen[LAST - 1].sick) == ("throttled: hardware thermal slowdown", "")
    assert seen[LAST - 3].sick == "2 uncorrectable ECC errors since the driver was loaded"
    assert seen[LAST - 5].lost and "shows no GPU" in seen[LAST - 5].sick
    assert seen[LAST].sick == "XID 79 (GPU has fallen off the bus)"
    assert [device.index for device in seen if device.sick] == [2, 4, 7]
    assert looks * PERIOD_S <= 2 * PROMISE_S  # polled from here, on a busy machine; the exact number is tested above

    instance.submit(gang_spec("five", 5), gang_spec("one", 1))
    instance.keep("five")
    (held,) = instance.facts().allocations
    assert sorted(device for member in held.members for device in member.devices) == [0, 1, 3, 5, 6]
    eventually("it is said why the other one waits", lambda: instance.waits("one"))

    instance.kill(agent)
    eventually("the new agent has looked", lambda: instance.ask(agent.reading.remote()).looks)
    assert [device.index for device in devices() if device.sick] == [2, 4, 7]
    assert {r.device.index for r in instance.ask(agent.reading.remote()).devices if r.device.sick} == {2, 4, 7}
    instance.kill(instance.inventory)  # it asks the agents before it answers for the first time
    assert [device.index for device in devices() if device.sick] == [2, 4, 7]

    fake.shows()
    eventually("what has passed is over", lambda: not any(d.sick or d.watch for d in devices()[:LAST]))
    assert devices()[LAST].sick
    assert instance.ask(agent.clear_device.remote(LAST))
    eventually("the operator has dealt with the last one", lambda: not devices()[LAST].sick)
    instance.ready("one")
    instance.let_go("five")


def _uuid(number: int) -> str:
    return f"GPU-{number:08d}-0000-0000-0000-000000000000"


def _all_seen(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    return devices if devices[LAST - 1].watch and all(devices[n].sick for n in (2, 4, LAST)) else ()


def _connected(address: str) -> bool:
    import ray

    if ray.is_initialized():
        return True
    try:
        ray.init(address=address, namespace="rayorch", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        print(f"not yet: {error}", file=sys.stderr)
        return False
    return True


def _gpu_node() -> Any:
    import ray

    return next((row for row in ray.nodes() if row["Alive"] and row["Resources"].get("GPU")), None)
