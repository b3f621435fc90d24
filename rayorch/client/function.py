"""The driver of a submitted function: `python -m rayorch.client.function FILE`, run inside the workload's gang.

This is the only place where the function is unpickled. What it returns or raises goes back pickled, under the
attempt's number; the exit code is 0 only if it returned and that arrived.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rayorch.core.errors import ClusterError, RayorchError

log = logging.getLogger(__name__)

FUNCTION_FILE = "rayorch_function.pkl"
HAND_IN_TIMEOUT_S = 60.0
FAILED = 1

Outcome = tuple[bool, object, str]
"""(whether it returned, its value or exception, the traceback)."""


def pickling() -> ModuleType:
    """cloudpickle, Ray's own copy where there is no other."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return importlib.import_module("ray.cloudpickle")


def main(path: str) -> int:
    """Run the function of a file and hand its outcome in; the exit code of the process."""
    pickle = pickling()
    function, args, kwargs = pickle.loads(Path(path).read_bytes())
    try:
        outcome: Outcome = (True, function(*args, **kwargs), "")
    except Exception as error:  # noqa: BLE001 - it is the user's, and goes back to the user
        text = traceback.format_exc()
        sys.stderr.write(text)
        outcome = (False, error, text)
    returned, data = _pickled(pickle, outcome)
    _hand_in(data)
    return 0 if returned else FAILED


def _pickled(pickle: ModuleType, outcome: Outcome) -> tuple[bool, bytes]:
    """(whether a value is in it, the bytes); what can't be pickled becomes an error that says so."""
    try:
        data: bytes = pickle.dumps(outcome)
        if not outcome[0]:
            pickle.loads(data)  # many exceptions can be pickled but not made again, which would hide them
        return outcome[0], data
    except Exception as error:  # noqa: BLE001 - anything can happen in a user's __reduce__
        text = outcome[2] or traceback.format_exc()
        what = "result" if outcome[0] else "exception"
        message = f"the {what} can't be pickled: {error}\n{text}"
        sys.stderr.write(f"{message}\n")
        return False, pickle.dumps((False, RuntimeError(message), text))


def _hand_in(data: bytes) -> None:
    """Through the gateway where the environment names one, else through Ray; ClusterError when it is refused."""
    workload, attempt = os.environ["RAYORCH_WORKLOAD"], int(os.environ["RAYORCH_ATTEMPT"])
    if os.environ.get("RAYORCH_ADDRESS", "").startswith("http"):
        _through_gateway(workload, attempt, data)
    else:
        _through_ray(workload, attempt, data)


def _through_gateway(workload: str, attempt: int, data: bytes) -> None:
    from rayorch.client.address import resolve
    from rayorch.client.transport import Http, raise_for

    http = Http(resolve())
    try:
        path = f"/api/v1/workloads/{workload}/result"
        raise_for(http.request("PUT", path, params={"attempt": attempt}, content=data))
    finally:
        http.close()


def _through_ray(workload: str, attempt: int, data: bytes) -> None:
    import ray

    from rayorch.core.requests import AttemptRef, Reply
    from rayorch.core.types import WorkloadId

    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False)
    instance = os.environ.get("RAYORCH_INSTANCE", "main")
    namespace = os.environ.get("RAYORCH_NAMESPACE", "rayorch")
    store: Any = ray.get_actor(f"results/{instance}", namespace=namespace)
    handed = store.put.remote(AttemptRef(WorkloadId(workload), attempt), data)
    get: Callable[..., Reply] = ray.get
    reply = get(handed, timeout=HAND_IN_TIMEOUT_S)
    if not reply.accepted:
        raise ClusterError(reply.message)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    try:
        sys.exit(main(sys.argv[1]))
    except RayorchError as error:
        log.error("the result was not handed in: %s", error)
        sys.exit(FAILED)
