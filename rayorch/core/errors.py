"""The one tree of errors.

    RayorchError
    ├── SpecError          bad input, with the path of the field that is wrong
    ├── AdmissionError     a well-formed workload that this cluster must refuse
    ├── StalePlanError     a decision was made on facts that have changed since
    ├── TransitionError    a state change that the lifecycle table does not have
    └── ClusterError       Ray, the network or a disk failed us

Expected outcomes are values, not errors: a workload that does not fit is a `Wait`.
"""

from __future__ import annotations


class RayorchError(Exception):
    """Root of every error that rayorch raises on purpose; `code` is stable across releases."""

    code: str = "error"


class SpecError(RayorchError):
    """Input that can't be right whatever the cluster looks like.

    `field` is the path of the offending field, for example `spec.gang.workers`.
    """

    code = "invalid"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, str]]:
        return (type(self), (self.field, self.message))


class AdmissionError(RayorchError):
    """A valid workload refused at the door: unknown queue, never fits, queue full.

    `field` is the path of the field that would have to change.
    """

    code = "rejected"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message

    def __reduce__(self) -> tuple[type[AdmissionError], tuple[str, str]]:
        return (type(self), (self.field, self.message))


class StalePlanError(RayorchError):
    """The facts under a decision have changed; the answer is to plan again, not to retry it."""

    code = "stale"


class TransitionError(RayorchError):
    """A state change that the lifecycle table does not have; the message tells the object's story."""

    code = "transition"


class ClusterError(RayorchError):
    """The world outside failed: Ray, a disk, the network. Bounded retries are the caller's."""

    code = "cluster"
