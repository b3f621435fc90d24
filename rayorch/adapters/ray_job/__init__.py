"""Jobs on Ray: their hooks, their environments and their packages. See docs/jobs.md."""

from rayorch.adapters.ray_job.environment import (
    DriverIdentity,
    check_runtime_env,
    job_supervisor_env,
    runner_runtime_env,
)
from rayorch.adapters.ray_job.hooks import runtime_env_hook, worker_setup
from rayorch.adapters.ray_job.packages import (
    package_exists,
    package_uri,
    package_uris,
    prepare_packages,
    prune_packages,
    store_package,
)

__all__ = [
    "DriverIdentity",
    "check_runtime_env",
    "job_supervisor_env",
    "package_exists",
    "package_uri",
    "package_uris",
    "prepare_packages",
    "prune_packages",
    "runner_runtime_env",
    "runtime_env_hook",
    "store_package",
    "worker_setup",
]
