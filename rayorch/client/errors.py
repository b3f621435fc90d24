"""What can go wrong on the client's side, in the one tree of errors.

RayorchError
├── SpecError, AdmissionError      as the gateway answered, with the field
├── NotFoundError                  no workload, node or queue of that id
├── ConflictError                  the id is taken by another workload
├── DeniedError                    the token is missing or wrong
├── WorkloadFailedError            the work itself failed
├── WorkloadCancelledError         it was cancelled; also a CancelledError of concurrent.futures
└── ClusterError
    ├── UnreachableError           no gateway answered
    └── GangLostError              a leased gang was taken away or its lease lapsed
"""

from __future__ import annotations

import concurrent.futures

from rayorch.core.errors import AdmissionError, ClusterError, RayorchError, SpecError


class NotFoundError(RayorchError):
    """There is nothing of that id."""

    code = "not_found"


class ConflictError(RayorchError):
    """The id is taken by a workload with another spec, or the facts have changed."""

    code = "conflict"


class DeniedError(RayorchError):
    """The gateway wants a (different) token."""

    code = "denied"


class UnreachableError(ClusterError):
    """No gateway answered at the address, after the bounded retries."""

    code = "unreachable"


class GangLostError(ClusterError):
    """The gang is no longer held: preempted, its node lost, or its lease lapsed."""

    code = "gang_lost"


class WorkloadFailedError(RayorchError):
    """The work ended with a failure of its own. `log_tail`: the last of what it printed."""

    code = "failed"

    def __init__(self, workload: str, reason: str, exit_code: int | None, log_tail: str = "") -> None:
        tail = f"\n{log_tail}" if log_tail else ""
        super().__init__(f"{workload} failed: {reason or f'exit code {exit_code}'}{tail}")
        self.workload = workload
        self.reason = reason
        self.exit_code = exit_code
        self.log_tail = log_tail


class WorkloadCancelledError(RayorchError, concurrent.futures.CancelledError):
    """The workload was cancelled."""

    code = "cancelled"


def error_of(status: int, body: dict[str, object]) -> RayorchError:
    """The error that a problem document stands for."""
    code = str(body.get("code", ""))
    detail = str(body.get("detail", "")) or f"HTTP status {status}"
    field = str(body.get("field", ""))
    message = detail.removeprefix(f"{field}: ") if field else detail
    if code == "invalid":
        return SpecError(field, message)
    if code == "rejected":
        return AdmissionError(field, message)
    if code in ("not_found", "conflict", "stale"):
        return NotFoundError(detail) if code == "not_found" else ConflictError(detail)
    if status in (401, 403):
        return DeniedError(detail)
    if status in (400, 413, 422):
        return SpecError(field, message)
    return ClusterError(detail)
