"""A scenario as data: a small cluster, what happens to it, and what must then be true. One JSON file each.

The files under tests/cases are such scenarios, and a report of a misbehaviour may bring one (`rayorch replay FILE`).
Times are seconds since the start; steps happen in the order of their times. See docs/scenarios.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field, ValidationError

from rayorch.config.fields import wrong_fields
from rayorch.config.profile import ProfileSettings, load_profile
from rayorch.core.errors import SpecError
from rayorch.core.policy import DefragmentKnobs, ModelKnobs, OrderKnobs, Profile
from rayorch.core.types import NodeSpec, QueueSpec
from rayorch.sim.autoscaler import SimAutoscaler
from rayorch.sim.cluster import SimCluster
from rayorch.sim.groups import GroupPlay, SimProvider
from rayorch.sim.scenario_expect import Expect, Finding, findings
from rayorch.sim.scenario_expect import check as check
from rayorch.sim.scenario_steps import Step, happen, told
from rayorch.sim.scenario_text import GroupText, NodeText, QueueText, Text, Timing

MAX_BYTES = 4 * 1024 * 1024
"""A scenario is for reading; what is larger is no scenario."""


class MakeCluster(Protocol):
    """What makes the cluster: `SimCluster` itself, or one that checks at every step."""

    def __call__(
        self,
        nodes: tuple[NodeSpec, ...],
        queues: tuple[QueueSpec, ...],
        *,
        profile: Profile,
        tick_s: float,
        provider: SimProvider | None,
        autoscaler: SimAutoscaler | None,
    ) -> SimCluster:
        """A cluster at rest."""
        ...


@dataclass(frozen=True, slots=True)
class Played:
    """A step that has happened: `told` in words, and what was looked at afterwards."""

    at_s: float
    told: str
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> list[str]:
        """What is not as it should be."""
        return [str(finding) for finding in self.findings if not finding.holds]


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


class Scenario(Text):
    """A whole file. `about`: what happens and what is right, in a sentence. `cases`: where it was seen.

    `counts_are`: "ours" to change, or "ray's", whose autoscaler hears our demand. `preset`, `policies`, `knobs`,
    `ordering`, `models`, `defragment`: of the profile, as in a cluster's document but by core's names. `quiet`: whether
    at the end everything must end and nothing be left, within `limit_s`; `end`: what must then be true.
    """

    about: str
    cases: list[str] = []
    nodes: list[NodeText] = []
    queues: list[QueueText] = [QueueText(name="q")]
    groups: dict[str, GroupText] = {}
    counts_are: Literal["ours", "ray's"] = "ours"
    timing: Timing = Timing()
    preset: str = "default"
    policies: dict[str, str] = {}
    knobs: dict[str, bool | int | float | str] = {}
    models: dict[str, bool | float] = {}
    defragment: dict[str, bool | int | float] = {}
    ordering: dict[str, bool | int | float | str | tuple[float, ...]] = {}
    tick_s: float = Field(default=1.0, gt=0, le=60)
    seed: int = 0
    steps: list[Step]
    quiet: bool = True
    limit_s: float = Field(default=900.0, ge=0, le=100_000)
    end: Expect = Field(default_factory=Expect)

    @staticmethod
    def read(path: Path) -> Scenario:
        """The scenario in a file. SpecError with the path of the field that is wrong."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SpecError("", f"{path} can't be read: {error.strerror}") from error
        if len(data) > MAX_BYTES:
            raise SpecError("", f"{path} has {len(data)} bytes, a scenario at most {MAX_BYTES}")
        return Scenario.parse(data)

    @staticmethod
    def parse(text: str | bytes) -> Scenario:
        """The scenario in a text. SpecError with the path of the field that is wrong."""
        try:
            return Scenario.model_validate_json(text)
        except ValidationError as error:
            (location, message), *others = wrong_fields(error)
            also = f"; also wrong: {', '.join(_place(one) for one, _ in others[:5])}" if others else ""
            raise SpecError(_place(location), message + also) from error

    def profile(self) -> Profile:
        """The policies and knobs that it runs under. SpecError for one that does not exist."""
        parts = ("knobs", Profile), ("ordering", OrderKnobs), ("models", ModelKnobs), ("defragment", DefragmentKnobs)
        for part, known in parts:
            for name in getattr(self, part):
                if name not in known.__dataclass_fields__:
                    raise SpecError(f"{part}.{name}", f"is none; there are {', '.join(known.__dataclass_fields__)}")
        settings = ProfileSettings(
            "scenario",
            self.policies,
            preset=self.preset,
            ordering=self.ordering,
            models=self.models,
            defragment=self.defragment,
        )
        profile = replace(load_profile(settings, "policies"), **self.timing.model_dump())
        return replace(profile, **self.knobs)  # type: ignore[arg-type]  # by name

    def cluster(self, make: MakeCluster) -> SimCluster:
        """The cluster before anything has happened."""
        provider = None
        if self.groups:
            groups = {text.to_core(name): text.play.over(GroupPlay()) for name, text in self.groups.items()}
            provider = SimProvider(groups, self.seed)
        return make(
            tuple(node for text in self.nodes for node in text.to_core()),
            tuple(queue.to_core() for queue in self.queues),
            profile=self.profile(),
            tick_s=self.tick_s,
            provider=provider,
            autoscaler=SimAutoscaler(provider) if provider is not None and self.counts_are == "ray's" else None,
        )

    def play(self, cluster: SimCluster) -> Iterator[Played]:
        """Let the steps happen; answers each with what was looked at."""
        for step in sorted(self.steps, key=lambda s: s.at):
            while cluster.now_s < cluster.start_s + step.at:
                cluster.tick()
            refusal = happen(cluster, step)
            looked = [] if refusal is None else [refusal]
            looked += findings(cluster, step.expect) if step.expect is not None else []
            yield Played(step.at, told(step), tuple(looked))
