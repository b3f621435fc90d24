"""Asking all agents how the devices of their nodes are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import ray

from rayorch.actors.names import NAMESPACE, agent_name, find_or_none
from rayorch.core.devices import DeviceReport
from rayorch.core.types import NodeId

log = logging.getLogger(__name__)

RECALL_TIMEOUT_S = 5.0
"""How long a new inventory waits for the agents; who answers later tells in his next report anyway."""


async def device_reports(instance: str, nodes: Sequence[NodeId]) -> dict[NodeId, DeviceReport]:
    """What the agents of these nodes told last. Nodes whose agent does not run, or not answer, are left out."""
    handles = await asyncio.to_thread(_agents, instance, nodes)
    calls = {asyncio.ensure_future(handle.device_report.remote()): node for node, handle in handles.items()}
    if not calls:
        return {}
    done, late = await asyncio.wait(calls, timeout=RECALL_TIMEOUT_S)
    for call in late:
        call.cancel()
    found: dict[NodeId, DeviceReport] = {}
    for call in done:
        error = call.exception()
        if error is not None:
            log.info("the agent of node %s does not say how its devices are: %s", calls[call], error)
        elif call.result() is not None:
            found[calls[call]] = call.result()
    if late:
        log.warning("%d agents have not said how their devices are", len(late))
    return found


def _agents(instance: str, nodes: Sequence[NodeId]) -> dict[NodeId, Any]:
    named = {row["name"] for row in ray.util.list_named_actors(all_namespaces=True) if row["namespace"] == NAMESPACE}
    handles = {node: find_or_none(agent_name(instance, node)) for node in nodes if agent_name(instance, node) in named}
    return {node: handle for node, handle in handles.items() if handle is not None}
