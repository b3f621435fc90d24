"""Traces made from traces: brought to a load, cut, drawn again by weeks, or generated anew from what was fitted."""

from __future__ import annotations

from rayorch.sim.generators.fitted import Generator as Generator
from rayorch.sim.generators.fitted import JobKind as JobKind
from rayorch.sim.generators.fitted import fit as fit
from rayorch.sim.generators.scaling import DAY_S as DAY_S
from rayorch.sim.generators.scaling import WEEK_S as WEEK_S
from rayorch.sim.generators.scaling import at_load as at_load
from rayorch.sim.generators.scaling import bootstrap as bootstrap
from rayorch.sim.generators.scaling import first_jobs as first_jobs
from rayorch.sim.generators.scaling import gpu_seconds as gpu_seconds
from rayorch.sim.generators.scaling import gpus_of as gpus_of
from rayorch.sim.generators.scaling import of_queues as of_queues
from rayorch.sim.generators.scaling import offered_load as offered_load
from rayorch.sim.generators.scaling import window as window
