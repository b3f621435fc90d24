"""When nodes, devices, links and whole domains fail, become slow or are taken away, and for how long.

Each unit (a node, a GPU, a rack) draws from a stream of its own that is named after it: what happens to it does not
depend on how many others there are, on the order in which anyone asks, or on what the policy does.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rayorch.core.types import UNIT, NodeId, NodeSpec
from rayorch.sim.models.distributions import Distribution, Fixed, Lognormal, Weibull
from rayorch.sim.models.misstatement import TRUTH, Misstatement
from rayorch.sim.models.streams import stream

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

MARKET_LABEL = "ray.io/market-type"
"""The node label that says whether a node is "spot" or "on-demand", as Ray sets it."""


class FaultKind(StrEnum):
    """What goes wrong."""

    NODE = "node"  # the node is gone; so is what ran on it
    DEVICE = "device"  # one GPU is gone; so is what ran on it
    LINK = "link"  # the node's network: a gang that spans nodes is slow, or fails where `slowdown` is infinite
    SLOW = "slow"  # fail-slow: what runs there is slow and nobody says so
    SPOT = "spot"  # the provider takes the node back, after a notice


NODE = "node"
GPU = "gpu"

REPAIR = Lognormal(4 * HOUR_S, 1.0)
"""How long a failed unit is away where nothing else is known."""


@dataclass(frozen=True, slots=True)
class FaultLaw:
    """One way to fail.

    `between`: time of one unit from its repair to its next failure. `repair`: how long it is away, or slow.
    `per`: what one unit is: "node", "gpu", or a topology level ("rack"), whose nodes then all fail at once.
    `slowdown`: work there takes that many times as long (of links and slow nodes). `notice_s`: how long before it
    happens it is announced. `labels`: only nodes that have all of these.
    """

    kind: FaultKind
    between: Distribution
    repair: Distribution = REPAIR
    per: str = NODE
    slowdown: float = math.inf
    notice_s: float = 0.0
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def ends_work(self) -> bool:
        """Whether an attempt that is hit is over."""
        return math.isinf(self.slowdown)

    @property
    def key(self) -> str:
        """What its streams are named after."""
        return "/".join((self.kind.value, self.per, *(f"{name}={value}" for name, value in self.labels)))


@dataclass(frozen=True, slots=True)
class Fault:
    """`nodes` fail at `at_s` (one `device` of the one node, where it is not None) and are well again at `until_s`.

    `announced_s`: when that is known beforehand, at the latest `at_s`. `slowdown`: infinite where it is gone.
    """

    at_s: float
    kind: FaultKind
    nodes: tuple[NodeId, ...]
    until_s: float
    device: int | None = None
    slowdown: float = math.inf
    announced_s: float = 0.0

    @property
    def ends_work(self) -> bool:
        """Whether an attempt that is hit is over."""
        return math.isinf(self.slowdown)

    @property
    def sort_key(self) -> tuple[float, float, str, tuple[NodeId, ...], int]:
        """By when it is known, then when it happens; ties end in the node and device."""
        return (self.announced_s, self.at_s, self.kind.value, self.nodes, -1 if self.device is None else self.device)


@dataclass(frozen=True, slots=True)
class FailureModel:
    """`laws`: every way in which something fails; none: nothing does. `misstated`: the mean times as policies are told.

    `told` is what a policy that plans checkpoints and spares believes.
    """

    laws: tuple[FaultLaw, ...] = ()
    misstated: Misstatement = TRUTH

    def draw(self, nodes: Sequence[NodeSpec], seed: int, until_s: float, from_s: float = 0.0) -> Iterator[Fault]:
        """All faults that begin in [from_s, until_s), in the order in which they are known; drawn when asked for."""
        streams = [
            _faults(law, unit, members, device, seed, from_s, until_s)
            for law in self.laws
            for unit, members, device in _units(law, nodes)
        ]
        return heapq.merge(*streams, key=lambda fault: fault.sort_key)

    def mtbf_s(self, nodes: int = 1, gpus: int = 0) -> float:
        """Mean time between faults that end a gang on so many nodes and GPUs; infinite where none do.

        Domain failures count once: a gang is taken to lie in one domain, and on nodes without the labels of a law.
        """
        rate = 0.0
        for law in self.laws:
            if law.ends_work and not law.labels:
                units = nodes if law.per == NODE else gpus if law.per == GPU else 1
                rate += units / law.between.mean
        return math.inf if rate == 0.0 else 1.0 / rate

    def told(self, seed: int) -> FailureModel:
        """What the policy believes: each law's mean time misstated, drawn once."""
        laws = tuple(
            replace(law, between=law.between.scaled(self.misstated.of(1.0, stream(seed, "failures", "told", law.key))))
            for law in self.laws
        )
        return FailureModel(laws)

    @staticmethod
    def fit(observed: Iterable[FaultSample], base: FailureModel | None = None) -> FailureModel:
        """From what was counted: for each kind the mean time between, the shape where there are enough intervals.

        A kind that never failed in what was watched keeps the law that it has in `base`, or has none.
        """
        base = base if base is not None else FailureModel()
        laws = {law.key: law for law in base.laws}
        for sample in observed:
            if sample.failures <= 0 or sample.exposed_s <= 0:
                continue
            mean_s = sample.exposed_s / sample.failures
            shape = 1.0
            if len(sample.intervals_s) >= LEAST_INTERVALS:
                shape = Weibull.fit(sample.intervals_s).shape
            law = FaultLaw(sample.kind, Weibull.of_mean(mean_s, shape), per=sample.per, labels=sample.labels)
            known = laws.get(law.key)
            if known is not None:
                law = replace(known, between=law.between)
            if sample.repairs_s:
                law = replace(law, repair=Lognormal.fit(sample.repairs_s))
            laws[law.key] = law
        return FailureModel(tuple(laws[key] for key in sorted(laws)), base.misstated)


LEAST_INTERVALS = 20
"""So many times between two failures of one unit say something about the shape; fewer are taken as exponential."""


@dataclass(frozen=True, slots=True)
class FaultSample:
    """What was watched: so many `failures` of that kind in `exposed_s` unit-seconds.

    `intervals_s`: from one failure of a unit to its next. `repairs_s`: how long those that came back were away.
    """

    kind: FaultKind
    failures: int
    exposed_s: float
    per: str = NODE
    labels: tuple[tuple[str, str], ...] = ()
    intervals_s: tuple[float, ...] = ()
    repairs_s: tuple[float, ...] = ()


def _units(law: FaultLaw, nodes: Sequence[NodeSpec]) -> Iterator[tuple[str, tuple[NodeId, ...], int | None]]:
    """(name, nodes, device) of each unit that the law is about, by name."""
    wanted = set(law.labels)
    chosen = sorted((node for node in nodes if wanted.issubset(node.labels)), key=lambda node: node.id)
    if law.per == NODE:
        for node in chosen:
            yield node.id, (node.id,), None
    elif law.per == GPU:
        for node in chosen:
            for index in range(_devices(node)):
                yield f"{node.id}/{index}", (node.id,), index
    else:
        domains: dict[str, list[NodeId]] = {}
        for node in chosen:
            # A value is unique within the domain around it only: two zones may both have a rack "1".
            path = _path(node, law.per)
            if path is not None:
                domains.setdefault(path, []).append(node.id)
        for path in sorted(domains):
            yield path, tuple(domains[path]), None


def _devices(node: NodeSpec) -> int:
    return len(node.devices) if node.devices else node.total.gpu_units // UNIT


def _path(node: NodeSpec, level: str) -> str | None:
    values = []
    for name, value in node.topology:
        values.append(value)
        if name == level:
            return "/".join(values)
    return None


def _faults(
    law: FaultLaw, unit: str, nodes: tuple[NodeId, ...], device: int | None, seed: int, from_s: float, until_s: float
) -> Iterator[Fault]:
    """One unit's life: up, failed, repaired, up again."""
    rng = stream(seed, "failures", law.key, unit)
    now_s = 0.0
    while True:
        at_s = now_s + law.between.draw(rng)
        if at_s >= until_s:
            return
        announced_s = max(now_s, at_s - law.notice_s)  # not while it is away
        now_s = at_s + max(law.repair.draw(rng), SHORTEST_REPAIR_S)
        if at_s >= from_s:
            yield Fault(at_s, law.kind, nodes, now_s, device, law.slowdown, announced_s)


SHORTEST_REPAIR_S = 1.0
"""Nothing fails twice in the same moment, whatever the distributions are."""

LARGE_CLUSTER = FailureModel(
    (
        FaultLaw(FaultKind.DEVICE, Weibull.of_mean(50_000 * HOUR_S), Lognormal(12 * HOUR_S, 1.0), per=GPU),
        FaultLaw(FaultKind.NODE, Weibull.of_mean(400 * DAY_S), Lognormal(4 * HOUR_S, 1.0)),
        FaultLaw(FaultKind.LINK, Weibull.of_mean(300 * DAY_S), Lognormal(2 * HOUR_S, 1.0), slowdown=1.5),
        FaultLaw(FaultKind.SLOW, Weibull.of_mean(200 * DAY_S), Lognormal(6 * HOUR_S, 1.0), slowdown=1.3),
    )
)
"""Orders of magnitude of a large training cluster: 419 unexpected interruptions in 54 days on 16,384 GPUs were
reported for Llama 3, one in 50,000 GPU-hours. The split between the kinds is an assumption; fit your own."""


AN_HOUR = Fixed(HOUR_S)


def spot(mean_s: float, notice_s: float = 30.0, away: Distribution = AN_HOUR) -> FaultLaw:
    """Nodes labelled as spot are taken back every `mean_s` on average, and another comes after `away`."""
    return FaultLaw(FaultKind.SPOT, Weibull.of_mean(mean_s), away, notice_s=notice_s, labels=((MARKET_LABEL, "spot"),))
