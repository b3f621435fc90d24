"""The Python client, over HTTP; Ray is imported only where a placement group is handed out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayorch.client.connection import Client


def connect(address: str | None = None, token: str | None = None) -> Client:
    """A client of the gateway at `address`, else of RAYORCH_ADDRESS, else of the server that runs on this machine.

    `rayorch://<queue>` as address makes that queue the default. UnreachableError when no gateway answers,
    DeniedError when it wants another token (`token`, else RAYORCH_TOKEN or the file RAYORCH_TOKEN_FILE).
    """
    from rayorch.client.address import resolve
    from rayorch.client.connection import connect_to

    return connect_to(resolve(address, token))
