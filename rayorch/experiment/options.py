"""Words of the command line that become values: seeds, loads, and the models of the simulated world."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from rayorch.config import typed_duration_s
from rayorch.core.errors import SpecError
from rayorch.experiment.faults import laws_of
from rayorch.sim.models import (
    Amdahl,
    FailureModel,
    FaultKind,
    FaultLaw,
    Misstatement,
    ProvisioningModel,
    RestartCost,
    RestartModel,
    RuntimeModel,
    SimModels,
    Told,
)
from rayorch.sim.models.distributions import Lognormal, Weibull
from rayorch.sim.models.speed import SERIAL
from rayorch.sim.readers.rows import LONGEST_S
from rayorch.sim.trace.model import Trace

PROVISION_SIGMA = 0.35
"""How much the time varies that a new node takes (log-normal): nine in ten are there after 1.6 times the median."""
MOST_SEEDS = 10_000


def numbers_of(text: str, field: str) -> tuple[int, ...]:
    """Whole numbers from 0 on: "3", "0-4", "0,2,5-7", each once, in order; SpecError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        if match is None:
            raise SpecError(field, f"must be numbers such as 0-4 or 0,2,5, got {text!r}")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high - low >= MOST_SEEDS:
            raise SpecError(field, f"must be a range of at most 10,000 numbers, got {part.strip()!r}")
        found += range(low, high + 1)
    return tuple(dict.fromkeys(found))


def check_values(seeds: object, until_s: object, jobs: object) -> None:
    """SpecError for what a program gave that is of another kind: a text would be taken for its letters."""
    if isinstance(seeds, str) or not isinstance(seeds, Iterable) or any(not _whole(seed) for seed in seeds):
        raise SpecError("--seeds", f"must be whole numbers from 0, such as range(5), got {seeds!r}")
    if until_s is not None and not (_real(until_s) and 0.0 < until_s < math.inf):
        raise SpecError("--until", f"must be a time in seconds, more than 0, got {until_s!r}")
    if jobs is not None and not _whole(jobs):
        raise SpecError("--jobs", f"must be a whole number, got {jobs!r}")


def check_jobs(trace: Trace) -> None:
    """SpecError for a job whose times are none: negative, not a number, or farther away than readers let through.

    A duration may be endless.
    """
    for job in trace.jobs:
        if not 0.0 <= job.submit_s <= LONGEST_S:
            raise SpecError(
                "TRACE", f"job {job.id}: submit_s must be from 0 to a century in seconds, got {job.submit_s}"
            )
        if not (0.0 <= job.duration_s <= LONGEST_S or job.duration_s == math.inf):
            said = f"must be from 0 to a century in seconds, or infinite, got {job.duration_s}"
            raise SpecError("TRACE", f"job {job.id}: duration_s {said}")


def _real(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def loads_of(texts: Sequence[str | float] | str | float) -> tuple[float | None, ...]:
    """Offered loads: "0.8", "0.5,0.8,1.0"; nothing: as in the trace. SpecError beyond 0.001 to 1000."""
    found: list[float] = []
    for text in [texts] if isinstance(texts, str | int | float) else texts:
        for part in str(text).split(","):
            try:
                value = float(part)
            except ValueError as error:
                raise SpecError("--load", f"must be a number such as 0.8, got {part!r}") from error
            if not 1e-3 <= value <= 1e3:
                raise SpecError("--load", f"must be from 0.001 to 1000, got {part!r}")
            found.append(value)
    return tuple(dict.fromkeys(found)) or (None,)


def models_of(
    runtime_spread: float = 0.0,
    told: bool = True,
    misstate: str | None = None,
    restart: str | None = None,
    checkpoint_every: str | None = None,
    *,
    node_mtbf: str | None = None,
    node_repair: str = "4h",
    faults: Sequence[str] = (),
    serial: float = SERIAL,
    provision: str | None = None,
    refused: float = 0.0,
) -> SimModels:
    """The world as the options say; SpecError names the option that can't be right.

    `misstate`: "2" or "2:0.5", by which factor (and with what noise) owners misstate run times; "provision=0.5" what
    profiles are told of new nodes; both by a comma. `restart`: what each
    new attempt takes before it goes on. `checkpoint_every`: work between two checkpoints, which is what a failure
    costs; without it every moment is saved. `node_mtbf`: mean time between failures of one node. `faults`: further
    ways to fail (`faults.laws_of`). `serial`: the part of a step that further members of elastic work do not shorten.
    `provision`: how long a new node takes (the median); `refused`: what part of the orders is never filled.
    """
    if not 0.0 <= runtime_spread <= 10.0:
        raise SpecError("--runtime-spread", f"must be 0 to 10, got {runtime_spread}")
    stated = _misstatements(misstate)
    if "provision" in stated and provision is None:
        raise SpecError("--misstate", "provision=… needs --provision")
    runtime = RuntimeModel(runtime_spread, Told.EXPECTED if told else Told.NOTHING, stated["run"])
    cost = RestartCost(
        0.0 if restart is None else seconds(restart, "--restart"),
        interval_s=0.0 if checkpoint_every is None else seconds(checkpoint_every, "--checkpoint-every"),
    )
    laws: tuple[FaultLaw, ...] = ()
    if node_mtbf is not None:
        mean_s = seconds(node_mtbf, "--node-mtbf")
        if mean_s <= 0:
            raise SpecError("--node-mtbf", "must be more than nothing")
        repair = Lognormal(max(1.0, seconds(node_repair, "--node-repair")), 1.0)
        laws = (FaultLaw(FaultKind.NODE, Weibull.of_mean(mean_s), repair),)
    more = laws_of(faults)
    if laws and any(law.key == laws[0].key for law in more):
        raise SpecError("--node-mtbf", "and --fault node=… exclude each other")
    laws += more
    if not 0.0 <= serial <= 1.0:
        raise SpecError("--serial", f"must be 0 to 1, got {serial}")
    return SimModels(
        runtime,
        RestartModel(default=cost),
        FailureModel(laws),
        _provisioning(provision, refused, stated.get("provision", Misstatement())),
        scaling=Amdahl(serial),
    )


def _provisioning(text: str | None, refused: float, misstated: Misstatement) -> ProvisioningModel:
    if not 0.0 <= refused < 1.0:
        raise SpecError("--provision-refused", f"must be from 0 to less than 1, got {refused}")
    if text is None:
        if refused:
            raise SpecError("--provision-refused", "needs --provision")
        return ProvisioningModel()
    median_s = seconds(text, "--provision")
    if median_s <= 0:
        raise SpecError("--provision", "must be more than nothing")
    return ProvisioningModel(Lognormal(median_s, PROVISION_SIGMA), refused=refused, misstated=misstated)


def _misstatements(text: str | None) -> dict[str, Misstatement]:
    """By what is misstated: "run" where nothing is said, and "provision"."""
    found = {"run": Misstatement()}
    seen: set[str] = set()
    for part in () if text is None else text.split(","):
        key, equals, value = part.strip().rpartition("=")
        key = key if equals else "run"
        if key not in ("run", "provision") or key in seen:
            raise SpecError("--misstate", f"must be FACTOR[:NOISE] and provision=FACTOR[:NOISE], got {text!r}")
        seen.add(key)
        found[key] = _misstatement(value)
    return found


def _misstatement(text: str | None) -> Misstatement:
    if text is None:
        return Misstatement()
    factor, _, noise = text.partition(":")
    try:
        found = Misstatement(float(factor), float(noise or 0.0))
    except ValueError as error:
        raise SpecError("--misstate", f"must be FACTOR or FACTOR:NOISE, got {text!r}") from error
    if not (0.0 < found.factor <= 1e6 and 0.0 <= found.noise <= 10.0):
        raise SpecError("--misstate", f"must be a factor of at most 1e6 and a noise of 0 to 10, got {text!r}")
    return found


def seconds(text: str, field: str) -> float:
    """A length of time such as 90, 90s, 30m or 7d."""
    try:
        return typed_duration_s(text)
    except ValueError as error:
        raise SpecError(field, str(error)) from error


def sizes_of(text: str, field: str = "--elastic") -> tuple[float, float]:
    """ "0.5:2": from half to twice. SpecError for anything else."""
    low, _, high = text.partition(":")
    try:
        least, most = float(low), float(high)
    except ValueError:
        raise SpecError(field, f"must be LEAST:MOST such as 0.5:2, got {text!r}") from None
    if not (0.0 < least <= 1.0 <= most <= 1000.0):
        raise SpecError(field, f"must be from at most 1 to at least 1 times what is asked for, got {text!r}")
    return least, most


def reader_options(texts: Sequence[str]) -> dict[str, object]:
    """KEY=VALUE for a trace's reader: whole numbers, true and false are those, the rest is text."""
    found: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise SpecError("--trace-option", f"must be KEY=VALUE, got {text!r}")
        words: dict[str, object] = {"true": True, "false": False}
        found[key] = int(value) if re.fullmatch(r"\d{1,9}", value) else words.get(value, value)
    return found
