"""Submissions that were refused, remembered for a while under the id that they asked for.

KubeRay's operator asks for a job before it submits it, and tries a refused submission for ever, with the reason in its
own log only. Told that the job has failed, and why, it ends the RayJob with that message.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_REFUSALS = 1000
KEEP_S = 3600.0
MAX_CHARACTERS = 1000
"""Of each text that is kept: a refused request may be as large as any."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was asked for and why it was refused, at `at_s` [s since the epoch]."""

    id: str
    entrypoint: str
    reason: str
    at_s: float


class Refusals:
    """The last of them, in memory: a gateway that was started again refuses the next try as well."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[str, Refusal] = OrderedDict()

    def note(self, identity: str, entrypoint: str, reason: str) -> None:
        """Remember one, at the cost of the oldest; nothing where no id was asked for, or one that nobody asks again."""
        if not identity or len(identity) > MAX_CHARACTERS:
            return
        entrypoint, reason = entrypoint[:MAX_CHARACTERS], reason[:MAX_CHARACTERS]
        self._known[identity] = Refusal(identity, entrypoint, reason, self._clock())
        self._known.move_to_end(identity)
        while len(self._known) > MAX_REFUSALS:
            self._known.popitem(last=False)

    def forget(self, identity: str) -> None:
        """It was accepted after all."""
        self._known.pop(identity, None)

    def get(self, identity: str) -> Refusal | None:
        """The refusal of that id, None when there is none or it is old."""
        found = self._known.get(identity)
        if found is not None and self._clock() - found.at_s > KEEP_S:
            self.forget(identity)
            return None
        return found
