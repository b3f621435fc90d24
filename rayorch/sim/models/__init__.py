"""What the simulated world does that no policy decides: run times, restarts, failures, new nodes.

Each model is a small frozen value. `observed.fit` makes them from a live cluster's journal, a simulation *draws* from
them, and each has a `misstated` knob: `told` is what somebody who believes it takes for true. Of these a run tells run
times, and how long new nodes take.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.sim.models.colocation import Colocation as Colocation
from rayorch.sim.models.failures import FailureModel as FailureModel
from rayorch.sim.models.failures import Fault as Fault
from rayorch.sim.models.failures import FaultKind as FaultKind
from rayorch.sim.models.failures import FaultLaw as FaultLaw
from rayorch.sim.models.misstatement import Misstatement as Misstatement
from rayorch.sim.models.provisioning import ProvisioningModel as ProvisioningModel
from rayorch.sim.models.restart import RestartCost as RestartCost
from rayorch.sim.models.restart import RestartModel as RestartModel
from rayorch.sim.models.runtime import RuntimeModel as RuntimeModel
from rayorch.sim.models.runtime import RunTimes as RunTimes
from rayorch.sim.models.runtime import Told as Told
from rayorch.sim.models.speed import AMDAHL
from rayorch.sim.models.speed import Amdahl as Amdahl
from rayorch.sim.models.speed import SpeedModel as SpeedModel
from rayorch.sim.models.streams import stream as stream


@dataclass(frozen=True, slots=True)
class SimModels:
    """The world of one run. The default: runs take what the trace says and are told so, restarts cost nothing,
    nothing fails. `speed`: how fast work goes where it lies; None: as the trace says, else everywhere alike. `scaling`:
    how fast elastic work is with another number of members, where no speed model says it. `colocation`: how fast on a
    GPU that it shares; None: as fast as alone. `provisioning` is drawn from where nodes come and go.
    """

    runtime: RuntimeModel = RuntimeModel()
    restart: RestartModel = RestartModel()
    failures: FailureModel = FailureModel()
    provisioning: ProvisioningModel = ProvisioningModel()
    speed: SpeedModel | None = None
    scaling: Amdahl = AMDAHL
    colocation: Colocation | None = None
