"""Packages that clients upload for a job (`--working-dir`, `py_modules`): kept on our disk and given to Ray.

Ray keeps a package in its control store for ten minutes unless a job uses it, and loses all of them with the head.
A workload may wait for hours and is started again after a restart of the head, so each package also lies in a
folder on the head's disk, from where it is given to Ray again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ray._private.runtime_env import packaging

from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.payload import Payload

log = logging.getLogger(__name__)

PIN_S = 3600
"""How long Ray keeps a package that no job uses, from each upload or question on. Longer than a start takes."""
_URI = re.compile(r"gcs://([A-Za-z0-9_.\-]+)")


def package_uri(protocol: str, name: str) -> str:
    """The URI of `/api/packages/{protocol}/{name}`; SpecError unless it is one that a cluster keeps itself."""
    uri = f"{protocol}://{name}"
    _file_name(uri)
    return uri


def _file_name(uri: str) -> str:
    match = _URI.fullmatch(uri)
    if match is None or match[1].startswith("."):
        raise SpecError("package", f"not a package of this cluster: {uri!r}")
    return match[1]


def store_package(uri: str, data: bytes, folder: Path | None = None) -> None:
    """Keep a package in `folder` and give it to Ray. Repeating it is harmless: the URI names the content.

    SpecError when it is too large for Ray, ClusterError when Ray does not take it.
    """
    name = _file_name(uri)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{name}.{os.getpid()}"
        partial.write_bytes(data)
        partial.rename(folder / name)
    _upload(uri, data)


def _upload(uri: str, data: bytes) -> None:
    try:
        packaging.pin_runtime_env_uri(uri, expiration_s=PIN_S)
        packaging.upload_package_to_gcs(uri, data)
    except ValueError as error:
        raise SpecError("package", str(error)) from error
    except Exception as error:  # RuntimeError, and the control store's own
        raise ClusterError(f"Ray did not take the package {uri}: {error}") from error


def package_exists(uri: str, folder: Path | None = None) -> bool:
    """Whether Ray has the package, if need be again from `folder`. Ray keeps it for PIN_S from now on.

    The file in `folder` counts as young again: who asks is about to submit a workload that needs it.
    """
    name = _file_name(uri)
    if folder is not None and (folder / name).is_file():
        os.utime(folder / name)
    try:
        packaging.pin_runtime_env_uri(uri, expiration_s=PIN_S)
        if packaging.package_exists(uri):
            return True
    except Exception as error:
        raise ClusterError(f"Ray does not say whether it has the package {uri}: {error}") from error
    if folder is None or not (folder / name).is_file():
        return False
    log.info("giving the package %s to Ray again", uri)
    _upload(uri, (folder / name).read_bytes())
    return True


def package_uris(payload: Payload) -> tuple[str, ...]:
    """The packages of this cluster that a payload needs, in a fixed order."""
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, str) and _URI.fullmatch(value):
            found.append(value)
        elif isinstance(value, list):
            for item in value:
                look(item)

    for field in ("working_dir", "py_modules"):
        look(payload.runtime_env.get(field))
    return tuple(dict.fromkeys(found))


def prepare_packages(payload: Payload, folder: Path | None) -> None:
    """Make sure that Ray has every package which the payload needs; SpecError naming one that nobody has."""
    for uri in package_uris(payload):
        if not package_exists(uri, folder):
            raise SpecError("payload.runtime_env", f"the package {uri} is lost; submit the workload again")


def prune_packages(folder: Path, needed: Iterable[str], older_than_s: float) -> tuple[str, ...]:
    """Remove the files of packages that no workload needs and that were stored before `older_than_s` (since the epoch).

    Returns their URIs. A client uploads before it submits, so young ones must be left alone.
    """
    keep = {_file_name(uri) for uri in needed}
    gone: list[str] = []
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        if file.name not in keep and file.stat().st_mtime < older_than_s:
            file.unlink()
            gone.append(f"gcs://{file.name}")
    return tuple(gone)
