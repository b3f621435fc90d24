"""Who shares a GPU with whom in a run, and how fast each is because of it."""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.sharing import device_shares
from rayorch.core.types import UNIT, Member, NodeId, WorkloadId
from rayorch.sim.models.colocation import Colocation
from rayorch.sim.trace.jobs import RunningJob

Device = tuple[NodeId, int]


class Beside:
    """See the module. `jobs`: those that have not ended, by id; devices are those that the books charge."""

    def __init__(self, model: Colocation, jobs: Mapping[WorkloadId, RunningJob]) -> None:
        self._model = model
        self._jobs = jobs
        self._on: dict[Device, list[WorkloadId]] = {}
        self._devices: dict[WorkloadId, tuple[Device, ...]] = {}

    def seated(self, id: WorkloadId, members: tuple[Member, ...]) -> tuple[WorkloadId, ...]:
        """It has these seats now, in place of those that it had; answers whose pace that may have changed."""
        changed = self.gone(id)
        shared = {
            (member.node, device)
            for member in members
            for device, units in device_shares(member.bundle, member.devices)
            if units < UNIT
        }
        if not shared:
            return changed
        self._devices[id] = tuple(sorted(shared))
        for device in self._devices[id]:
            self._on.setdefault(device, []).append(id)
        return tuple(sorted({*changed, *self._others(id)}))

    def gone(self, id: WorkloadId) -> tuple[WorkloadId, ...]:
        """It holds nothing any more; answers whose pace that may have changed."""
        others = self._others(id)
        for device in self._devices.pop(id, ()):
            self._on[device].remove(id)
            if not self._on[device]:
                del self._on[device]
        return others

    def rate(self, id: WorkloadId) -> float:
        """How fast it is, of what it is alone: as fast as where it is slowest."""
        return min((self._rate_on(id, device) for device in self._devices.get(id, ())), default=1.0)

    def _rate_on(self, id: WorkloadId, device: Device) -> float:
        kinds = (self._jobs[other].job.name for other in self._on[device] if other != id)
        return self._model.rate(self._jobs[id].job.name, kinds)

    def _others(self, id: WorkloadId) -> tuple[WorkloadId, ...]:
        return tuple(sorted({other for at in self._devices.get(id, ()) for other in self._on[at]} - {id}))
