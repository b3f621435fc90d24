"""Worker processes of one node: which there are, and starting some before anyone asks for them.

The raylet's own service is called, whose messages are private to Ray; `tests/adapters/test_ray_workers.py` checks them.
"""

from __future__ import annotations

from typing import Any

import grpc  # type: ignore[import-untyped]
from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

from rayorch.core.errors import ClusterError

ANSWER_TIMEOUT_S = 30.0


class NodeWorkers:
    """The workers of the node whose raylet listens at `address` ("host:port")."""

    def __init__(self, address: str) -> None:
        services: Any = node_manager_pb2_grpc
        self._address = address
        self._channel = grpc.insecure_channel(address)
        self._raylet: Any = services.NodeManagerServiceStub(self._channel)

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()

    def pids(self) -> frozenset[int]:
        """The worker processes that have registered, whoever's they are. ClusterError when the raylet is silent."""
        messages: Any = node_manager_pb2
        return frozenset(self._call(self._raylet.GetWorkerPIDs, messages.GetWorkerPIDsRequest()).pids)

    def prestart(self, job_id: str, count: int, keep_s: int) -> None:
        """Begin to start `count` workers for the tasks and actors of a job (hex id) that have no runtime environment.

        They stay for `keep_s` seconds at least when nobody takes them. ClusterError when the raylet refuses.
        """
        messages: Any = node_manager_pb2
        languages: Any = common_pb2
        request = messages.PrestartWorkersRequest(
            language=languages.Language.PYTHON,
            job_id=bytes.fromhex(job_id),
            num_workers=count,
            keep_alive_duration_secs=keep_s,
        )
        self._call(self._raylet.PrestartWorkers, request)

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=ANSWER_TIMEOUT_S)
        except grpc.RpcError as error:
            raise ClusterError(f"the raylet at {self._address} does not answer: {error}") from error
