"""What was learned from the past: who used how much, and how long finished work took.

Usage is kept per queue and owner as one decayed sum: what was used `half_life_s` ago counts half (Slurm's
PriorityDecayHalfLife, Kueue's usageHalfLifeTime). Between two events an account holds a constant amount, so its sum
at any later time is exact, and each event costs O(1). Finished work is kept as the newest samples of classes from fine
to coarse (see `classes_of`); of the coarsest, all work of a kind, also the distribution of a long past is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rayorch.core.log_histogram import LogHistogram, quantiles
from rayorch.core.pace import PaceKey, kind_of
from rayorch.core.types import GPU, UNIT, Kind, QueueId, WorkloadSpec

HALF_LIFE_S = 7 * 24 * 3600.0
"""Slurm's and Kueue's default; a profile may say otherwise."""

MAX_SAMPLES = 256
"""Samples kept of a class; older ones say less of what comes."""

PERIOD_S = 30 * 24 * 3600.0
"""What finished work tells of the long past counts half after each; so old work is forgotten, but slowly."""

AccountKey = tuple[QueueId, str]
"""(queue, owner)."""

KIND = "kind/"
"""How the names of the classes of all work of a kind begin."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one owner has used in one queue, those below it excluded.

    `gpu_s`, `cpu_s`: GPU-seconds and CPU-seconds, decayed, up to `at_s`. `gpu_units`, `cpu_units`: held since then, in
    stored units.
    """

    queue: QueueId
    owner: str
    at_s: float
    gpu_s: float = 0.0
    cpu_s: float = 0.0
    gpu_units: int = 0
    cpu_units: int = 0

    @property
    def key(self) -> AccountKey:
        """Whose it is."""
        return (self.queue, self.owner)

    def used(self, now_s: float, half_life_s: float) -> tuple[float, float]:
        """(GPU-seconds, CPU-seconds) decayed up to `now_s`, what is held since `at_s` included.

        `half_life_s` 0: nothing decays.
        """
        elapsed_s = max(0.0, now_s - self.at_s)
        if half_life_s <= 0:
            kept, weight_s = 1.0, elapsed_s
        else:
            rate = math.log(2) / half_life_s
            kept, weight_s = math.exp(-rate * elapsed_s), -math.expm1(-rate * elapsed_s) / rate
        gpus, cpus = self.gpu_units / UNIT, self.cpu_units / UNIT
        return (self.gpu_s * kept + gpus * weight_s, self.cpu_s * kept + cpus * weight_s)


@dataclass(frozen=True, slots=True)
class Sample:
    """One workload that succeeded: seconds of work that counted, and GPU-seconds that all its attempts held."""

    run_s: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class LongPast:
    """How the samples of a long past are distributed, those of each earlier period counting half as much.

    `period`: the number of the newest period of `PERIOD_S` that a sample came in; a clock that is set back changes
    nothing. `run_s`, `gpu_s`: seconds of work and GPU-seconds, as in `Sample`.
    """

    period: int
    run_s: LogHistogram = field(default_factory=LogHistogram)
    gpu_s: LogHistogram = field(default_factory=LogHistogram)

    def with_samples(self, samples: Sequence[Sample], at_s: float) -> LongPast:
        """With samples that came at `at_s`."""
        past = self.at(int(at_s // PERIOD_S))
        return LongPast(
            past.period,
            past.run_s.with_values(sample.run_s for sample in samples),
            past.gpu_s.with_values(sample.gpu_s for sample in samples),
        )

    def at(self, period: int) -> LongPast:
        """The same as it counts in a later period."""
        if period <= self.period:
            return self
        passed = period - self.period
        return LongPast(period, self.run_s.halved(passed), self.gpu_s.halved(passed))


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """The newest samples of one class, the oldest first. `at_s`: when the last one came.

    `past`: of a class of all work of a kind, all samples that there ever were, with the newest.
    """

    name: str
    at_s: float
    samples: tuple[Sample, ...]
    past: LongPast | None = None

    def after(self, older: ServiceClass) -> ServiceClass:
        """These samples after those of the same class that were known before."""
        past = older.past.with_samples(self.samples, self.at_s) if older.past is not None else None
        samples = older.samples[-MAX_SAMPLES:] + self.samples
        if len(samples) > MAX_SAMPLES:
            samples = samples[-MAX_SAMPLES:]
        return ServiceClass(self.name, self.at_s, samples, past)

    def with_past(self) -> ServiceClass:
        """With a long past, which begins with what is known, if it is of a class that has one."""
        if self.past is not None or not self.name.startswith(KIND):
            return self
        past = LongPast(int(self.at_s // PERIOD_S)).with_samples(self.samples, self.at_s)
        return ServiceClass(self.name, self.at_s, self.samples, past)


@dataclass(frozen=True, slots=True)
class HistoryChanges:
    """What a reader's copy lacks; with `full`, all that there is.

    `further`: classes that the reader has, with their new samples alone. `gone`: the names of those that are forgotten.
    `paces`: all of them, None where the reader knows them.
    """

    half_life_s: float = HALF_LIFE_S
    accounts: tuple[Account, ...] = ()
    classes: tuple[ServiceClass, ...] = ()
    full: bool = False
    further: tuple[ServiceClass, ...] = ()
    gone: tuple[str, ...] = ()
    paces: Mapping[PaceKey, float] | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What a plan may know of the past. `paces`: how fast kinds of work go, alone and beside each other on one GPU."""

    half_life_s: float = HALF_LIFE_S
    accounts: Mapping[AccountKey, Account] = field(default_factory=dict)
    classes: Mapping[str, ServiceClass] = field(default_factory=dict)
    paces: Mapping[PaceKey, float] = field(default_factory=dict)

    def changed(self, news: HistoryChanges) -> History:
        """With the news; the same object, or the same accounts or classes, where there are none.

        So what was made of them can be kept: much changes what was used, little what is known of finished work.
        """
        accounts: Mapping[AccountKey, Account] = {account.key: account for account in news.accounts}
        classes: dict[str, ServiceClass] = {entry.name: entry for entry in news.classes}
        if news.full:
            accounts = self.accounts if accounts == self.accounts else accounts
            known = self.classes if classes == self.classes else classes
        else:
            accounts = {**self.accounts, **accounts} if accounts else self.accounts
            for entry in news.further:
                classes[entry.name] = entry.after(self.classes[entry.name])
            known = {**self.classes, **classes} if classes or news.gone else self.classes
            for name in news.gone:
                known.pop(name, None)  # type: ignore[attr-defined]  # then it is our own
        paces = self.paces if news.paces is None or news.paces == self.paces else news.paces
        same = accounts is self.accounts and known is self.classes and paces is self.paces
        if same and news.half_life_s == self.half_life_s:
            return self
        return History(news.half_life_s, accounts, known, paces)


def finished_quantiles(
    classes: Mapping[str, ServiceClass], measure: Literal["run_s", "gpu_s"], parts: Sequence[float], least: int
) -> tuple[float, ...]:
    """Below or at what these parts of all finished work lie; empty where fewer than `least` have finished.

    Exact as long as all that counts is among the newest samples, then from the long past, to within 1/32 of the value.
    """
    kinds = [entry.with_past() for entry in classes.values() if entry.name.startswith(KIND)]
    if sum(len(entry.samples) for entry in kinds) < least:
        return ()
    known = [(entry, entry.past) for entry in kinds if entry.past is not None]
    if all(past.gpu_s.total <= len(entry.samples) for entry, past in known):
        values = sorted(getattr(sample, measure) for entry, _ in known for sample in entry.samples)
        return tuple(values[math.ceil(part * len(values)) - 1] for part in parts)
    newest = max(past.period for _, past in known)
    return quantiles([getattr(past.at(newest), measure) for _, past in known], parts)


def classes_of(spec: WorkloadSpec) -> tuple[str, ...]:
    """The classes that a workload belongs to, the finest first; none for an application that serves.

    Its owner's work of that name (numbers in it don't matter) and size; its queue's work of that size; all work of
    that kind and size; all of that kind. Repeated work of one name is what predicts best.
    """
    if spec.kind is Kind.SERVE:
        return ()
    kind = spec.kind.value
    sized = f"{kind}/{spec.least(GPU) / UNIT:g}"
    return (
        f"name/{sized}/{kind_of(spec.owner, spec.name)}",
        f"queue/{sized}/{spec.queue}",
        f"size/{sized}",
        f"{KIND}{kind}",
    )
