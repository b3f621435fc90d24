"""Which attempts a reconciliation must look at: those of which something is new, and those that are not at rest.

An attempt is at rest when nothing is to be done for it and nothing but news could change that: it runs, its seats are
those that were committed, its runner works under the right grant. Whatever waits for a time or for an effect is looked
at in every turn, so an action that was lost is sent again, as without this. `reconcile` over everything gives the same
actions; a test plays the same worlds both ways.
"""

from __future__ import annotations

from collections.abc import Iterable

from rayorch.core.reconcile import Action, Known, RunnerKey, RunnerPhase, actions_for
from rayorch.core.types import Kind, MemberPhase, NodeHealth, NodeId, State


class Lookout:
    """Between two turns it is told of every attempt whose workload, seats or runner is another object than before."""

    def __init__(self) -> None:
        self._restless: set[RunnerKey] = set()

    def look(self, known: Known, news: Iterable[RunnerKey], nodes: Iterable[NodeId] = ()) -> tuple[Action, ...]:
        """The next actions. `news`: the attempts with something new; `nodes`: those that are new, changed or gone."""
        keys = self._restless | set(news) | _on_nodes(known, frozenset(nodes))
        self._restless = keys  # should a defect keep us from an answer, the news is not lost
        made = actions_for(known, keys)
        busy = {key for key, _ in made}
        self._restless = {key for key in keys if key in busy or not at_rest(known, key)}
        return tuple(action for _, action in made)


def at_rest(known: Known, key: RunnerKey) -> bool:
    """Whether no passing of time could give something to do for an attempt for which nothing is to be done now."""
    workload, allocation, view = known.live(key), known.held.get(key), known.runners.get(key)
    if workload is None:
        return allocation is None and view is None
    if workload.state is not State.RUNNING or workload.ready_s is None or workload.release_by_s is not None:
        return False
    if workload.spec.kind is Kind.SERVE or allocation is None or allocation.failed:
        return False
    if workload.spec.kind is not Kind.GANG and (view is None or view.phase is not RunnerPhase.RUNNING):
        return False
    if any(member.phase is not MemberPhase.READY for member in allocation.members):
        return False
    nodes = [known.nodes.get(member.node) for member in workload.placement]
    return all(node is not None and node.health is not NodeHealth.LOST for node in nodes)


def _on_nodes(known: Known, nodes: frozenset[NodeId]) -> set[RunnerKey]:
    """The attempts that hold something on these nodes."""
    if not nodes:
        return set()
    return {key for key, held in known.held.items() if not nodes.isdisjoint(m.node for m in held.members)}
