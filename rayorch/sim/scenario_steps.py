"""The steps of a scenario: what happens, when, and whether it must be refused."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rayorch.config.calendar_documents import CronDocument, ReservationDocument
from rayorch.config.cluster import ClusterDocument
from rayorch.config.documents import QueueDocument
from rayorch.config.parsing import parse_document
from rayorch.core.adoption import parse_group_name
from rayorch.core.capacity import GroupName
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.types import NodeId, QueueId, Resources, WorkloadId
from rayorch.sim.cluster import SimCluster
from rayorch.sim.faults import Actor
from rayorch.sim.groups import SimProvider
from rayorch.sim.scenario_expect import Expect, Finding
from rayorch.sim.scenario_text import GroupText, NodeText, PlayText, QueueText, Text, WorkloadText, WorkText
from rayorch.sim.work import SimWork


class Step(Text):
    """One thing that happens, `at` so many seconds (or several at once).

    `submit`: one workload or several. `apply`: documents as of `rayorch apply`, `works`: how their work behaves.
    `cancel`: one or several. `queue`, `delete_queue`: a queue is changed, deleted; `drain_queue`: once it is empty.
    `refused`: what was submitted, applied, changed or deleted must be refused, with this in the error.
    `node`: a node comes, or is another one from now on. `lose`, `restore`: a node dies, comes back under a new id.
    `cordon`, `uncordon`; `drain`: with seconds until it must be empty. `foreign`: GPUs used outside grants, by node.
    `stuck`: nodes on which no group gets ready, though they look fine. `remove_group`: somebody removes the placement
    groups of a workload. `kill`: an owner's process ends; `restart`: the
    head does, with all of them. `lose_runner`: the process of a workload's runner dies.
    Of groups: `play`, `edit`: a group behaves otherwise, somebody changes its limits. `replicas`: somebody else writes
    the counts. `delete`, `take_back`: a pod is deleted by hand, a spot machine gets its notice. `outage_s`, `stale_s`:
    the provider can't be read, shows what is true now, for so long. `hide`, `show`: a group is not listed, is again.
    """

    at: float = Field(ge=0, le=100_000)
    submit: WorkloadText | list[WorkloadText] = []
    apply: list[dict[str, object]] = []
    works: dict[str, WorkText] = {}
    cancel: str | list[str] = []
    queue: QueueText | None = None
    delete_queue: str | None = None
    drain_queue: str | None = None
    refused: str | None = None
    node: NodeText | None = None
    lose: str | list[str] = []
    restore: str | None = None
    cordon: str | None = None
    uncordon: str | None = None
    drain: dict[str, float] = {}
    foreign: dict[str, float] = {}
    stuck: list[str] | None = None
    remove_group: str | None = None
    kill: Literal["queues", "inventory", "allocator", "controller"] | None = None
    restart: bool = False
    lose_runner: str | None = None
    play: dict[str, PlayText] = {}
    edit: dict[str, GroupText] = {}
    replicas: dict[str, int] = {}
    delete: str | None = None
    take_back: str | None = None
    outage_s: float | None = None
    stale_s: float | None = None
    hide: list[str] = []
    show: list[str] = []
    expect: Expect | None = None


def happen(cluster: SimCluster, step: Step) -> Finding | None:
    """One step's events. What came of a request that must be refused, or was and should not have been."""
    refusal = ""
    try:
        _ask(cluster, step)
    except (AdmissionError, SpecError) as error:
        refusal = str(error)
    _to_nodes(cluster, step)
    _to_owners(cluster, step)
    if cluster.scaling is not None:
        _to_groups(cluster, cluster.scaling.provider, step)
    if step.refused is not None:
        expected = f"refused with {step.refused!r}"
        return Finding("the request", expected, refusal or "accepted", bool(refusal) and step.refused in refusal)
    return Finding("the request", "accepted", f"refused: {refusal}", False) if refusal else None


def _several(one: str | list[str]) -> list[str]:
    return [one] if isinstance(one, str) else one


def _ask(cluster: SimCluster, step: Step) -> None:
    """What users and operators ask for."""
    now_s = cluster.now_s
    if step.queue is not None:
        cluster.record(cluster.tree.set_queue(step.queue.to_core(), now_s))
    if step.delete_queue is not None:
        cluster.record(cluster.tree.delete_queue(QueueId(step.delete_queue), now_s))
    if step.drain_queue is not None:
        cluster.record(cluster.tree.delete_queue(QueueId(step.drain_queue), now_s, drain=True))
    for text in [step.submit] if isinstance(step.submit, WorkloadText) else step.submit:
        cluster.submit(text.to_core(), text.to_work())
    for n, data in enumerate(step.apply):
        document = parse_document({"apiVersion": "rayorch/v1", **data}, f"apply[{n}]")
        if isinstance(document, ClusterDocument):
            raise SpecError(f"apply[{n}].kind", "a Cluster is read when a server starts, not applied")
        if isinstance(document, ReservationDocument):
            cluster.record(cluster.tree.set_reservation(document.to_core(), now_s))
        elif isinstance(document, CronDocument):
            raise SpecError(f"apply[{n}].kind", "no schedule is looked at here; submit what it would")
        elif isinstance(document, QueueDocument):
            cluster.record(cluster.tree.set_queue(document.to_core(), now_s))
        else:
            spec = document.to_core()
            cluster.submit(spec, step.works.get(spec.id, WorkText()).over(SimWork()))
    for id in _several(step.cancel):
        cluster.cancel(WorkloadId(id))


def _to_nodes(cluster: SimCluster, step: Step) -> None:
    """What becomes of nodes."""
    now_s = cluster.now_s
    if step.node is not None:
        for spec in step.node.to_core():
            cluster.world.add_node(spec)
    for node in _several(step.lose):
        cluster.lose_node(NodeId(node))
    if step.restore is not None:
        cluster.world.return_node(NodeId(step.restore))
    if step.cordon is not None:
        cluster.record(cluster.tree.cordon(NodeId(step.cordon), "maintenance", None, now_s))
    for node, seconds in step.drain.items():
        cluster.record(cluster.tree.cordon(NodeId(node), "maintenance", now_s + seconds, now_s))
    if step.uncordon is not None:
        cluster.record(cluster.tree.uncordon(NodeId(step.uncordon), "done", now_s))
    for node, amount in step.foreign.items():
        cluster.world.foreign[NodeId(node)] = Resources.of({"GPU": amount})
    if step.stuck is not None:
        cluster.world.stuck = {NodeId(node) for node in step.stuck}
    for group in list(cluster.world.groups.values()):
        key = parse_group_name(cluster.instance, group.name)
        if key is not None and key[0] == step.remove_group:
            cluster.world.remove_group(group.group_id)


def _to_owners(cluster: SimCluster, step: Step) -> None:
    """What becomes of our own processes."""
    if step.kill is not None:
        cluster.kill(Actor(step.kill))
    if step.restart:
        cluster.restart_head()
    if step.lose_runner is not None:
        for key in sorted(cluster.attempts.runners):
            if key[0] == step.lose_runner:
                cluster.attempts.lose_runner(key)


def _to_groups(cluster: SimCluster, provider: SimProvider, step: Step) -> None:
    """What becomes of node groups and of who provides them."""
    now_s = cluster.now_s
    for name, play in step.play.items():
        provider.play(GroupName(name), play.over(provider.plays[GroupName(name)]))
    for name, group in step.edit.items():
        provider.edit(group.to_core(name))
    for name, count in step.replicas.items():
        provider.set_replicas(GroupName(name), count, now_s)
    if step.delete is not None:
        provider.delete(step.delete, now_s)
    if step.take_back is not None:
        provider.notice(step.take_back, now_s)
    if step.outage_s is not None:
        provider.out_of_reach(now_s + step.outage_s)
    if step.stale_s is not None:
        provider.stale(now_s + step.stale_s)
    provider.hidden |= {GroupName(name) for name in step.hide}
    provider.hidden -= {GroupName(name) for name in step.show}


def told(step: Step) -> str:
    """What happens, in a line."""
    words = []
    for text in [step.submit] if isinstance(step.submit, WorkloadText) else step.submit:
        shape = f"{text.members}x{text.gpu:g}" if not text.roles else f"{len(text.roles)} roles"
        words.append(f"submit {text.id} ({shape}, queue {text.queue}, priority {text.priority})")
    for data in step.apply:
        metadata = data.get("metadata")
        words.append(f"apply {data.get('kind')} {metadata.get('name') if isinstance(metadata, dict) else ''}")
    if step.queue is not None:
        words.append(f"set queue {step.queue.name}")
    skipped = {"at", "submit", "apply", "works", "queue", "expect", "refused"}
    for name in step.model_fields_set - skipped:
        value = getattr(step, name)
        if isinstance(value, Text):
            value = getattr(value, "name", value)
        words.append(f"{name.replace('_', ' ')} {', '.join(value) if isinstance(value, list) else value}")
    return "; ".join(sorted(words)) or "nothing happens"
