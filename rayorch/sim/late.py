"""Messages that are under way: sent, and not yet arrived."""

from __future__ import annotations

from collections.abc import Callable

from rayorch.sim.faults import Actor

Message = tuple[float, Actor, Callable[[], object]]
"""(when it arrives, at whom, what it does there)"""


class LateMessages:
    """Kept until they are due. They arrive in the order of their times, whichever was sent first."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def __len__(self) -> int:
        return len(self._messages)

    def send(self, at_s: float, callee: Actor, effect: Callable[[], object]) -> None:
        """One more, that arrives at that time."""
        self._messages.append((at_s, callee, effect))

    def due(self, now_s: float) -> list[Message]:
        """Those that have arrived by now; they are under way no more."""
        found = sorted((message for message in self._messages if message[0] <= now_s), key=lambda message: message[0])
        self._messages = [message for message in self._messages if message[0] > now_s]
        return found
