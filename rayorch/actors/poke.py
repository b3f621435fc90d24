"""Telling the controller that something may start or has come free, without waiting for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from rayorch.actors.names import controller_name, find_or_none

log = logging.getLogger(__name__)

HANDLE_MAX_AGE_S = 5.0
"""How long a found controller is poked without looking it up again: one that was created anew is found by then."""


class Poker:
    """Many pokes become few: while one is being sent, all further ones become the next. Belongs to one event loop."""

    def __init__(self, send: Callable[[], None]) -> None:
        """`send` may block; it is called in a thread, never twice at once."""
        self._send = send
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def poke(self) -> None:
        """Returns at once. Losing a poke only costs the controller its idle period."""
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await asyncio.to_thread(self._send)
            except Exception:  # Ray raises many kinds, and none of them concerns who pokes
                log.exception("the controller could not be poked")


def controller_sender(instance: str) -> Callable[[], None]:
    """Pokes the instance's controller if there is one."""
    handle: Any = None
    found_s = 0.0

    def send() -> None:
        nonlocal handle, found_s
        now_s = time.monotonic()
        if handle is None or now_s - found_s > HANDLE_MAX_AGE_S:
            handle, found_s = find_or_none(controller_name(instance)), now_s
        if handle is not None:
            handle.poke.remote()

    return send
