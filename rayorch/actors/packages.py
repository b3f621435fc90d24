"""The packages that clients upload, and their environments, for those who may not touch Ray's private names."""

from rayorch.adapters.ray_job import check_runtime_env, package_exists, package_uri, store_package

__all__ = ["check_runtime_env", "package_exists", "package_uri", "store_package"]
