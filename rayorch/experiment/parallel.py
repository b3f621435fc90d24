"""Runs side by side as tasks of Ray. Ray is imported here only, and only when several at once are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from rayorch.core.errors import ClusterError
from rayorch.experiment.plays import Inputs, Play, Played, play

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
"""Of a Ray that is started for these runs alone."""


def played_by_ray(inputs: Inputs, plays: Sequence[Play], parallel: int) -> Iterator[tuple[Play, Played]]:
    """The runs as they finish, at most `parallel` at once, each with one CPU.

    On the Ray that this process is connected to, else on that of RAY_ADDRESS, else on one that is started on this
    machine and ended with the last run. ClusterError when Ray can't be had or a run fails there.
    """
    import ray
    from ray.exceptions import RayError

    own = not ray.is_initialized()
    try:
        if own:
            _connect(parallel)
        shared = ray.put(inputs)
        task: Callable[..., object] = ray.remote(num_cpus=1, max_retries=2)(play).remote
        waiting = list(reversed(plays))
        open_runs: dict[object, Play] = {}
        while waiting or open_runs:
            while waiting and len(open_runs) < parallel:
                one = waiting.pop()
                open_runs[task(shared, one)] = one
            (done,), _ = ray.wait(list(open_runs), num_returns=1)
            yield open_runs.pop(done), ray.get(done)
    except (RayError, ConnectionError, RuntimeError) as error:
        raise ClusterError(f"runs on Ray: {type(error).__name__}: {error}") from error
    finally:
        if own:
            ray.shutdown()


def _connect(parallel: int) -> None:
    import ray

    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, log_to_driver=False)
        return
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    ray.init(num_cpus=parallel, num_gpus=0, include_dashboard=False, log_to_driver=False, configure_logging=False)
