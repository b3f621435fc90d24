"""The names by which workloads, queues and nodes are known everywhere."""

from __future__ import annotations

from typing import NewType

WorkloadId = NewType("WorkloadId", str)
QueueId = NewType("QueueId", str)  # a path in the queue tree: "research/nlp"
NodeId = NewType("NodeId", str)  # Ray's node id, hex

CellNodes = tuple[str, tuple[NodeId, ...]]
"""A domain that is a cell: its name within its level, and all its nodes."""
