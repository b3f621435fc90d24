"""Which GPUs a process sees in a bundle that names them; and the private parts of Ray that this stands on."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray._private import ray_constants
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayorch.adapters import ray_devices
from rayorch.adapters.ray_devices import HOOKED, Held, held_of, share_out
from rayorch.adapters.ray_job import hooks, runner_runtime_env
from rayorch.adapters.ray_job.attempt import AttemptIdentity, GrantReader
from rayorch.adapters.ray_job.hooks import DEVICES_SETUP
from rayorch.adapters.ray_nodes import observe_nodes, used_by_node
from rayorch.adapters.ray_serve.builder import with_devices_setup
from rayorch.core.bound_devices import bundle_of
from rayorch.core.device_binding import device_resource
from rayorch.core.errors import ClusterError
from rayorch.core.payload import Payload
from rayorch.core.reports import AttemptReport, SeatInUse, SeatsInUse
from rayorch.core.types import UNIT, Member, NodeId, Resources
from tests.ray_cluster import EmulatedCluster

GROUP = "2a92a185753ff764e00f06814b1801000000"
HOOK = ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR


# ---------------------------------------------------------------- which part of which bundle


def test_the_bundle_is_the_one_whose_gpus_are_held() -> None:
    ids = {
        f"bundle_group_1_{GROUP}": [(0, 0.001)],  # of another bundle, as Ray may have it for work in any bundle
        f"GPU_group_{GROUP}": [(1, 1.0), (0, 1.0)],
        f"GPU_group_0_{GROUP}": [(1, 1.0), (0, 1.0)],
    }
    assert held_of(ids) == Held(GROUP, 0, (0, 1))
    assert held_of({"GPU": [(0, 1.0)], "CPU": [(0, 1.0)]}) is None
    assert held_of({f"CPU_group_0_{GROUP}": [(0, 1.0)], f"gpu3_group_0_{GROUP}": [(0, 1.0)]}) is None


@given(st.data())
def test_the_processes_of_a_bundle_share_its_gpus_out_whatever_their_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    devices = data.draw(st.lists(st.integers(0, 15), min_size=count, max_size=count, unique=True))
    numbers = data.draw(st.lists(st.integers(0, 15), min_size=count, max_size=count, unique=True))
    known: dict[int, int] = {}
    for number in numbers:
        shared = share_out(known, [number], devices)
        assert known.items() <= shared.items(), "what was said stays"
        known = shared
    assert sorted(known.values()) == sorted(devices)
    assert share_out(known, numbers, devices) == known


def test_a_number_that_is_one_of_the_gpus_keeps_it_and_one_too_many_is_an_error() -> None:
    assert share_out({}, [5, 2], (1, 2)) == {2: 2, 5: 1}
    with pytest.raises(ClusterError, match="holds more"):
        share_out({5: 1}, [6], (1,))


def test_what_was_agreed_survives_whoever_dies_while_writing(tmp_path: Path) -> None:
    path = str(tmp_path / "bundle")
    assert ray_devices._agreed(path, [0], (4, 7)) == {0: 4}
    with open(path, "a", encoding="utf-8") as file:
        file.write("1 ")  # and then it was killed, or the disk was full
    assert ray_devices._agreed(path, [0], (4, 7)) == {0: 4}
    assert ray_devices._agreed(path, [9], (4, 7)) == {0: 4, 9: 7}
    assert ray_devices._agreed(path, [0, 9], (4, 7)) == {0: 4, 9: 7}


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(ray_devices, "_session_folder", lambda: str(tmp_path / "file"))
    bindings = ray_devices._Bindings()
    bindings._named[GROUP] = ((4, 7),)
    with pytest.raises(ClusterError, match="could not agree"):
        bindings.devices(Held(GROUP, 0, (0,)))


def test_processes_that_ask_at_once_agree(tmp_path: Path) -> None:
    path, code = (
        str(tmp_path / "bundle"),
        (
            "import sys; from rayorch.adapters.ray_devices import _agreed;"
            "print(_agreed(sys.argv[1], [int(sys.argv[2])], range(4, 8))[int(sys.argv[2])])"
        ),
    )
    asking = [subprocess.Popen([sys.executable, "-c", code, path, str(n)], stdout=subprocess.PIPE) for n in range(4)]
    assert sorted(int(process.communicate()[0]) for process in asking) == [4, 5, 6, 7]


# ---------------------------------------------------------------- where the hook is


def test_the_hook_is_in_the_environment_of_replicas_and_of_commands_with_gpus_and_spares_the_users_own() -> None:
    assert with_devices_setup({"working_dir": "x", "env_vars": {"A": "1"}}) == {
        "working_dir": "x",
        "env_vars": {"A": "1", HOOK: DEVICES_SETUP},
    }
    assert with_devices_setup({"env_vars": {HOOK: "mine.setup"}})["env_vars"] == {HOOK: "mine.setup"}
    assert runner_runtime_env(Payload(driver_resources={"GPU": 1}))["env_vars"][HOOK] == DEVICES_SETUP
    assert HOOK not in runner_runtime_env(Payload())["env_vars"]


# ---------------------------------------------------------------- telling what is seen


class Desk:
    """In place of `ray_devices` in the hooks: what it has seen, and what was put back."""

    def __init__(self, seats: tuple[SeatInUse, ...]) -> None:
        self.seats = seats

    def load(self, path: str) -> Callable[..., Any]:
        return {hooks.DEVICES_SEEN: self.take, hooks.DEVICES_NOT_TOLD: self.put_back}[path]

    def take(self) -> tuple[SeatInUse, ...]:
        seats, self.seats = self.seats, ()
        return seats

    def put_back(self, seats: tuple[SeatInUse, ...]) -> None:
        self.seats = seats


class Line(GrantReader):
    """A runner that is not there at first."""

    def __init__(self) -> None:
        super().__init__(AttemptIdentity("w", 1, "runner/main/w/1", "rayorch", 6.0))
        self.told: list[AttemptReport] = []
        self.broken = True

    def report(self, report: AttemptReport) -> None:
        if self.broken:
            raise ConnectionError("no route")
        self.told.append(report)


def test_what_could_not_be_told_is_told_with_the_next_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    seats = (SeatInUse("", "n", GROUP, devices=(3,)),)
    desk, line = Desk(seats), Line()
    monkeypatch.setattr(hooks, "load_class", desk.load)
    hooks.tell_devices(line)
    assert desk.seats == seats
    line.broken = False
    hooks.tell_devices(line)
    hooks.tell_devices(line)
    assert [report.seats for report in line.told if isinstance(report, SeatsInUse)] == [seats]


def test_a_process_reports_a_number_once() -> None:
    bindings = ray_devices._Bindings()
    bindings._named[GROUP] = ((), (4,))
    assert bindings.devices(Held(GROUP, 0, (2,))) == ()
    assert bindings.devices(Held(GROUP, 1, (0,))) == (4,), "named: nothing to report"
    assert bindings.take_news() == ((GROUP, 0, (2,)),)
    bindings.devices(Held(GROUP, 0, (2,)))
    assert bindings.take_news() == ()
    bindings.devices(Held(GROUP, 0, (1,)))
    news = bindings.take_news()
    bindings.put_back((group, index) for group, index, _ in news)
    assert bindings.take_news() == news == ((GROUP, 0, (1, 2)),)


# ---------------------------------------------------------------- what we stand on in Ray


def test_ray_still_asks_one_method_for_a_processs_accelerators() -> None:
    method = getattr(ray_worker.Worker, HOOKED)
    assert list(inspect.signature(method).parameters) == ["self", "resource_name", "resource_regex"]
    assert "original_visible_accelerator_ids" in inspect.getsource(ray_worker.Worker.__init__)
    assert HOOKED in inspect.getsource(ray_worker.get_gpu_ids)
    assert HOOKED in inspect.getsource(ray.runtime_context.RuntimeContext.get_accelerator_ids)
    assert "get_accelerator_ids" in inspect.getsource(ray_utils.set_visible_accelerator_ids)


class Sees:
    """An actor that says what it sees."""

    def sees(self) -> tuple[list[Any], str | None, tuple[Any, ...]]:
        """Its GPUs by Ray and by the variable that CUDA reads, and what it would report of them."""
        import os

        return ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES"), ray_devices.take_seen()


@pytest.fixture(scope="module")
def node(ray_cluster: Any) -> Iterator[str]:
    """A node whose raylet was started with a list of GPUs and MIG instances, each declared by its place in it."""
    cluster: EmulatedCluster = ray_cluster(nodes=0)
    yield cluster.add_node(
        4,
        env_vars={"CUDA_VISIBLE_DEVICES": "GPU-a,MIG-b,MIG-c,MIG-d"},
        resources={device_resource(index): 1 for index in range(4)},
    )


@pytest.mark.ray
def test_a_place_in_the_raylets_list_is_a_gpus_number_and_what_is_seen_is_its_uuid(node: str) -> None:
    (spec,) = (n for n in observe_nodes(()) if n.id == node)
    assert spec.exact and len(spec.devices) == 4
    group = placement_group([{"GPU": 1, "gpu2": 1}, {"GPU": 2, "gpu0": 1, "gpu3": 1}, {"GPU": 0.5}])
    ray.get(group.ready(), timeout=60)

    def start(bundle: int, gpus: float) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        env = {"env_vars": {HOOK: DEVICES_SETUP}}
        return ray.remote(num_gpus=gpus, num_cpus=0, scheduling_strategy=strategy, runtime_env=env)(Sees).remote()

    actors = [start(0, 1), start(1, 1), start(1, 1), start(2, 0.5)]
    single, *parts, unnamed = ray.get([actor.sees.remote() for actor in actors], timeout=120)
    assert single == (["MIG-c"], "MIG-c", ())
    assert sorted(ids for ids, _, _ in parts) == [["GPU-a"], ["MIG-d"]]
    assert all([visible] == ids for ids, visible, _ in parts)
    ids, visible, (place,) = unnamed
    assert ids == [visible] == ["MIG-d"], "Ray's own number 3"
    assert (place.node_id, place.group_id, place.bundle_index, place.devices) == (node, group.id.hex(), 2, (3,))

    for actor in actors[1:3]:
        ray.kill(actor)
    both = ray.get(start(1, 2).sees.remote(), timeout=120)
    assert both[:2] == (["GPU-a", "MIG-d"], "GPU-a,MIG-d")
    used = used_by_node()[NodeId(node)]
    assert [used.units(name) for name in ("gpu0", "gpu1", "gpu2", "gpu3")] == [UNIT, 0, UNIT, UNIT]
    ray.util.remove_placement_group(group)


@pytest.mark.ray
def test_parts_of_several_gpus_lie_beside_each_other_and_are_all_seen(node: str) -> None:
    """Seats as the books make them: two members that share gpu0 and gpu1, a share by memory, an instance by profile."""
    both = Member("w", 0, NodeId(node), Resources.of({"GPU": 1, "gpu-devices": 2}), devices=(0, 1), exact=True)
    memory = replace(both, bundle=Resources.of({"GPU": 0.25, "gpu-memory-mib": 20_000}), devices=(2,))
    instance = replace(both, bundle=Resources.of({"mig-1g.10gb": 1}), devices=(3,))
    bundles = [bundle_of(m).to_floats() for m in (both, both, memory, instance)]
    assert bundles[2:] == [{"GPU": 0.25, "gpu2": 0.25}, {"GPU": 1.0, "gpu3": 1.0}]
    group = placement_group(bundles)
    ray.get(group.ready(), timeout=60)

    def start(bundle: int, gpus: float) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        env = {"env_vars": {HOOK: DEVICES_SETUP}}
        return ray.remote(num_gpus=gpus, num_cpus=0, scheduling_strategy=strategy, runtime_env=env)(Sees).remote()

    actors = [start(0, 1), start(1, 0.5), start(2, 0.25), start(3, 1)]
    seen = [ids for ids, _, _ in ray.get([actor.sees.remote() for actor in actors], timeout=120)]
    assert seen == [["GPU-a", "MIG-b"], ["GPU-a", "MIG-b"], ["MIG-c"], ["MIG-d"]]
    ray.util.remove_placement_group(group)
