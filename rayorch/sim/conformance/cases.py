"""The cases as text: the folder schema "rayorch-conformance/kai/0.1", whose README says what each field means.

Unknown fields are ignored, so that a later minor version of the schema can be read.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rayorch.core.errors import SpecError

SCHEMA = "rayorch-conformance/kai/0."
"""What the schema of a file must begin with."""

ROUNDS = "rounds"
"""The group of the cases that run all actions, several times."""


class _Text(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class MigText(_Text):
    """How a node's GPUs are partitioned: `instances` counts the partitions by resource name."""

    strategy: str = ""
    instances: dict[str, int] = {}


class NodeText(_Text):
    """A node; `gpu_memory_mib` is that of each of its GPUs."""

    name: str
    gpus: float = 0
    cpus: float = 20000
    memory_bytes: float = 20e9
    labels: dict[str, str] = {}
    gpu_memory_mib: int | None = None
    mig: MigText | None = None


class QueueText(_Text):
    """A queue; -1 means unlimited."""

    name: str
    parent: str | None = None
    quota_gpus: float = 0
    limit_gpus: float = -1
    over_quota_weight: float = 1
    priority: int = 100
    created_order: int = 0
    quota_cpu_milli: float = -1
    quota_memory: float = -1
    limit_cpu_milli: float = -1
    limit_memory: float = -1


class TopologyText(_Text):
    """Levels of a topology that what it stands on must, or should, keep together at."""

    topology: str = ""
    required: str | None = None
    preferred: str | None = None


class PodsetText(_Text):
    """A leaf of the tree of groups: so many of its tasks at least."""

    name: str
    min_available: int = 1
    topology: TopologyText | None = None


class GroupText(_Text):
    """An inner node of the tree of groups."""

    name: str = "root"
    min_subgroups: int | None = None
    topology: TopologyText | None = None
    podsets: tuple[PodsetText, ...] = ()
    subgroups: tuple[GroupText, ...] = ()


class TaskText(_Text):
    """One pod."""

    id: str
    state: str
    node: str | None = None
    subgroup: str | None = None
    gpu_groups: tuple[str, ...] = ()
    gpus: float | None = None
    task_priority: int | None = None
    mig: dict[str, int] | None = None
    legacy_mig: bool | dict[str, int] | None = None


class JobText(_Text):
    """A gang of pods."""

    name: str
    queue: str
    priority: int = 50
    preemptibility: str = "preemptible"
    age_minutes: float = 1
    gpus_per_task: float = 0
    cpu_per_task: float | None = None
    memory_per_task: float | None = None
    gpu_memory_mib: int | None = None
    fraction_devices: int | None = None
    min_available: int = 1
    subgroups: GroupText | None = None
    preemption_delay_s: float | None = None
    stale_for_s: float | None = None
    staleness_grace_s: float | None = None
    best_effort: bool = False
    deleted_in_test: bool = False
    tasks: tuple[TaskText, ...] = ()


class Levels(_Text):
    """A topology: its levels from the outside in."""

    name: str
    levels: tuple[str, ...] = ()


class Outcome(_Text):
    """What a job (all its tasks) or a task has become."""

    status: str | None = None
    node: str | None = None


class Expectation(_Text):
    """What must hold at the end; `tasks` goes before `jobs`."""

    jobs: dict[str, Outcome] = {}
    tasks: dict[str, Outcome] = {}
    max_calls: dict[str, int] | None = None


class Case(_Text):
    """One scenario."""

    id: str
    name: str = ""
    mode: str = "single_session"
    actions: tuple[str, ...] = ()
    rounds_until_match: int = 2
    rounds_after_match: int = 5
    features: tuple[str, ...] = ()
    nodes: tuple[NodeText, ...] = ()
    queues: tuple[QueueText, ...] = ()
    jobs: tuple[JobText, ...] = ()
    topologies: tuple[Levels, ...] = ()
    expect: Expectation = Expectation()

    @property
    def group(self) -> str:
        """What the case is counted under: its action, or "rounds" where all of them run."""
        return ROUNDS if self.mode == ROUNDS else "+".join(self.actions)


def read_cases(folder: Path) -> list[Case]:
    """All cases of the folder's JSON files, files by name, cases in the order of the file.

    SpecError names the file that can't be read, or is of another schema.
    """
    found: list[Case] = []
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            schema = str(document.get("schema", ""))
            if not schema.startswith(SCHEMA):
                raise SpecError(path.name, f"is of schema {schema!r}, not {SCHEMA}*")
            found += [Case.model_validate(case) for case in document["cases"]]
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise SpecError(path.name, f"can't be read as cases: {error}") from error
    return found
