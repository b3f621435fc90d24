"""Keeping an attempt that reports a thousand steps a second from filling the journal."""

from __future__ import annotations

from rayorch.core.reports import DemandReported, StepReported
from rayorch.core.requests import AttemptRef, ReportRequest

Key = tuple[AttemptRef, type]

PACED = (StepReported, DemandReported)
"""Reports of which only the newest matters. All others are written at once."""


class ReportPacer:
    """Of each attempt and kind, lets one paced report pass in `period_s` and keeps the newest of the others."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._held: dict[Key, ReportRequest] = {}
        self._passed_s: dict[Key, float] = {}

    def __bool__(self) -> bool:
        """Whether anything is held."""
        return bool(self._held)

    def passes(self, request: ReportRequest, now_s: float) -> bool:
        """True: write it now. False: it is to be held (`hold`)."""
        if not isinstance(request.report, PACED):
            return True
        key = _key(request)
        last_s = self._passed_s.get(key)
        if key in self._held or (last_s is not None and now_s - last_s < self._period_s):
            return False
        self._passed_s[key] = now_s
        return True

    def hold(self, request: ReportRequest) -> None:
        """Keep it instead of an older one."""
        self._held[_key(request)] = request

    def due(self, now_s: float) -> tuple[ReportRequest, ...]:
        """Take out everything that is held."""
        held, self._held = self._held, {}
        self._passed_s = {key: at_s for key, at_s in self._passed_s.items() if now_s - at_s < self._period_s}
        self._passed_s.update(dict.fromkeys(held, now_s))
        return tuple(held.values())

    def settle(self, attempt: AttemptRef) -> tuple[ReportRequest, ...]:
        """Take out what is held of one attempt, because something final follows."""
        keys = [(attempt, kind) for kind in PACED]
        for key in keys:
            self._passed_s.pop(key, None)
        return tuple(self._held.pop(key) for key in keys if key in self._held)


def _key(request: ReportRequest) -> Key:
    return AttemptRef(request.workload, request.attempt), type(request.report)
