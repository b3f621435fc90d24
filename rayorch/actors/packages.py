"""The packages that clients upload, for those who may not touch Ray's private names."""

from rayorch.adapters.ray_job import package_exists, package_uri, store_package

__all__ = ["package_exists", "package_uri", "store_package"]
