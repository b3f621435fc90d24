"""Which GPUs a worker process sees: those that its placement group names, instead of the ones that Ray counted off.

Ray binds a bundle to GPU numbers of its own, lowest first. On a node that declares `gpu0`, `gpu1`, … the bundles of our
groups name the GPUs that they take, and a process in such a bundle must see those. `install` sees to that for this
process and all that asks Ray in it: `ray.get_gpu_ids()`, CUDA_VISIBLE_DEVICES, Ray Train. It works with groups of
anybody who names GPUs so, and changes nothing in groups that name none. See docs/device-binding.md.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import worker as ray_worker
from ray._raylet import PlacementGroupID
from ray.util.placement_group import PlacementGroup, placement_group_table

from rayorch.core.device_binding import devices_of, is_spread
from rayorch.core.errors import ClusterError
from rayorch.core.reports import SeatInUse
from rayorch.core.types import GPU, Resources

HOOKED = "get_accelerator_ids_for_accelerator_resource"
"""The method of Ray's Worker that everything about this process's accelerators goes through."""
FOLDER = "rayorch_devices"
"""In Ray's session folder: which number of Ray's stands for which GPU in bundles of several, one small file each."""

_BUNDLE = re.compile(rf"{GPU}_group_(?P<index>[0-9]+)_(?P<group>[0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Held:
    """The part of a bundle that this process holds; `numbers` are Ray's, in order."""

    group_id: str
    bundle_index: int
    numbers: tuple[int, ...]


def held_of(resource_ids: Mapping[str, Sequence[tuple[int, float]]]) -> Held | None:
    """What a task or actor holds of a group's GPUs, from Ray's `resource_ids`; None outside groups or without GPUs."""
    for name, assigned in resource_ids.items():
        if match := _BUNDLE.fullmatch(name):
            return Held(match["group"], int(match["index"]), tuple(sorted(int(number) for number, _ in assigned)))
    return None


def share_out(known: Mapping[int, int], numbers: Iterable[int], devices: Sequence[int]) -> dict[int, int]:
    """`known` (Ray's number → GPU) with these numbers added, each GPU once; a number that is one of the GPUs keeps it.

    ClusterError when there are more numbers than GPUs: the bundle holds more than it names.
    """
    shared = dict(known)
    for number in sorted(set(numbers) - known.keys()):
        free = [device for device in devices if device not in shared.values()]
        if not free:
            raise ClusterError(f"a bundle that names the GPUs {list(devices)} holds more: Ray's number {number}")
        shared[number] = number if number in free else free[0]
    return shared


def _agreed(path: str, numbers: Iterable[int], devices: Sequence[int]) -> dict[int, int]:
    """What the processes of a bundle have agreed on (Ray's number → GPU), these numbers included. OSError.

    One line a number, only ever appended: who dies or finds the disk full while writing leaves at most a line without
    an end, which counts for nothing, and the others keep what they were told. The lock goes with its holder.
    """
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        known = {int(number): int(device) for number, device in map(bytes.split, whole.splitlines())}
        shared = share_out(known, numbers, devices)
        news = "".join(f"{number} {device}\n" for number, device in shared.items() if number not in known)
        if news:
            file.truncate(len(whole))
            file.write(news.encode())
            file.flush()
    return shared


class _Bindings:
    """What this process has learned of the groups it works in; a group never changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: dict[str, tuple[tuple[int, ...], ...]] = {}
        self._spread: set[tuple[str, int]] = set()
        self._chosen: dict[Held, tuple[int, ...]] = {}
        self._unnamed: dict[tuple[str, int], set[int]] = {}
        self._news: set[tuple[str, int]] = set()

    def devices(self, held: Held) -> tuple[int, ...]:
        """The GPUs that this process has of a bundle; empty when the bundle names none."""
        with self._lock:
            named = self._of_group(held.group_id)
            devices = named[held.bundle_index] if held.bundle_index < len(named) else ()
            if not devices:
                self._note(held)
                return ()
            if held not in self._chosen:
                whole = len(held.numbers) == len(devices) or (held.group_id, held.bundle_index) in self._spread
                self._chosen[held] = tuple(sorted(devices)) if whole else self._part(held, devices)
            return self._chosen[held]

    def _of_group(self, group_id: str) -> tuple[tuple[int, ...], ...]:
        if group_id not in self._named:
            try:
                row = placement_group_table(PlacementGroup(PlacementGroupID(bytes.fromhex(group_id))))
            except Exception as error:  # the GCS client raises several unrelated classes
                raise ClusterError(f"could not read which GPUs group {group_id} names: {error}") from error
            bundles = row.get("bundles", {})
            amounts = [Resources.of({k: float(n) for k, n in bundles[i].items()}) for i in sorted(bundles, key=int)]
            self._named[group_id] = tuple(devices_of(amount) for amount in amounts)
            self._spread |= {(group_id, i) for i, amount in enumerate(amounts) if is_spread(amount)}
        return self._named[group_id]

    def _part(self, held: Held, devices: tuple[int, ...]) -> tuple[int, ...]:
        """Which of the bundle's GPUs; its processes, all on this node, agree on that by a file."""
        folder = os.path.join(_session_folder(), FOLDER)
        path = os.path.join(folder, f"{held.group_id}_{held.bundle_index}.txt")
        try:
            os.makedirs(folder, exist_ok=True)
            shared = _agreed(path, held.numbers, devices)
        except OSError as error:  # a full disk, another user's folder
            raise ClusterError(f"could not agree with others on the GPUs of group {held.group_id}: {error}") from error
        return tuple(sorted(shared[number] for number in held.numbers))

    def _note(self, held: Held) -> None:
        seen = self._unnamed.setdefault((held.group_id, held.bundle_index), set())
        if not seen.issuperset(held.numbers):
            seen.update(held.numbers)
            self._news.add((held.group_id, held.bundle_index))

    def take_news(self) -> tuple[tuple[str, int, tuple[int, ...]], ...]:
        with self._lock:
            news = tuple((*place, tuple(sorted(self._unnamed[place]))) for place in sorted(self._news))
            self._news.clear()
            return news

    def put_back(self, places: Iterable[tuple[str, int]]) -> None:
        with self._lock:
            self._news.update(places)


_bindings = _Bindings()


def _session_folder() -> str:
    node: Any = ray_worker.global_worker.node
    return str(node.get_session_dir_path())


def install() -> None:
    """Patch this process; named as its `worker_process_setup_hook`, so before its first task. Twice is once."""
    cls: Any = ray_worker.Worker
    original = getattr(cls, HOOKED)
    if getattr(original, "rayorch", False):
        return

    @functools.wraps(original)
    def accelerator_ids(worker: Any, resource_name: str, resource_regex: str) -> list[str] | list[int]:
        found: list[str] | list[int] = original(worker, resource_name, resource_regex)
        if resource_name != GPU or not found:
            return found
        held = held_of(worker.core_worker.resource_ids())
        devices = _bindings.devices(held) if held is not None else ()
        if not devices:
            return found
        visible = worker.original_visible_accelerator_ids.get(GPU)
        if visible is None:
            return list(devices)
        # The raylet was started with a list (of UUIDs, say, or of MIG instances), in which a GPU's number is a place.
        # A shorter one is the user's own choice for this process.
        return [str(visible[device]) for device in devices] if max(devices) < len(visible) else found

    accelerator_ids.rayorch = True  # type: ignore[attr-defined]
    setattr(cls, HOOKED, accelerator_ids)


# ---------------------------------------------------------------- what Ray has bound where nothing is named


def take_seen() -> tuple[SeatInUse, ...]:
    """Places with the GPUs that Ray has bound there, as far as this process has come to know since the last call."""
    node = ray.get_runtime_context().get_node_id()
    return tuple(
        SeatInUse("", node, group, bundle_index=index, devices=numbers)
        for group, index, numbers in _bindings.take_news()
    )


def put_back(seats: Iterable[SeatInUse]) -> None:
    """These could not be told: the next `take_seen` answers them again."""
    _bindings.put_back((seat.group_id, seat.bundle_index) for seat in seats)
