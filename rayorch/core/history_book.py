"""The queue owner's history, fed from its events: charged as seats are committed and left, sampled as work succeeds.

Part of the queue tree's state: it is written with the journal's snapshots and comes out the same at replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile

from rayorch.core import pace as pacing
from rayorch.core.changes import ChangeLog
from rayorch.core.history import (
    HALF_LIFE_S,
    MAX_SAMPLES,
    Account,
    AccountKey,
    History,
    HistoryChanges,
    Sample,
    ServiceClass,
    classes_of,
)
from rayorch.core.pace import PaceKey
from rayorch.core.types import CPU, QueueId, Resources, Workload, WorkloadId

MAX_CLASSES = 512
"""Classes kept; beyond that those that heard nothing for longest are forgotten, never one of all work of a kind."""
MAX_ACCOUNTS = 20_000
"""Accounts kept; beyond that those that hold nothing and used least are forgotten."""
MAX_PACES = 4096
"""Paces of kinds, alone and beside each other; beyond that those that heard nothing for longest are forgotten."""
SPARE = 0.1
"""What part is forgotten at a time, so that it need not be looked for at each event."""


class HistoryBook:
    """The accumulator. `version`s are those of the tree that owns it and never go back."""

    def __init__(self, history: History | None = None, version: int = 0) -> None:
        """Empty, or what `state` gave when `version` was the tree's."""
        self._half_life_s = HALF_LIFE_S if history is None else history.half_life_s
        self._accounts: dict[AccountKey, Account] = dict(history.accounts) if history is not None else {}
        known = history.classes if history is not None else {}
        self._classes: dict[str, ServiceClass] = {name: entry.with_past() for name, entry in known.items()}
        self._came = {c.name: deque([version] * len(c.samples), MAX_SAMPLES) for c in self._classes.values()}
        """At which version each sample of a class came."""
        self._changed_accounts: ChangeLog[AccountKey] = ChangeLog(version)
        self._changed_classes: ChangeLog[str] = ChangeLog(version)
        self._nothing = HistoryChanges(self._half_life_s)
        self._paces: dict[PaceKey, float] = dict(history.paces) if history is not None else {}
        self._paces_version = version

    @property
    def half_life_s(self) -> float:
        """After so long what was used counts half; 0: nothing decays."""
        return self._half_life_s

    def state(self) -> History:
        """All of it, sorted; paces in the order in which they were heard of, by which they are forgotten."""
        return History(
            self._half_life_s,
            {key: self._accounts[key] for key in sorted(self._accounts)},
            {name: self._classes[name] for name in sorted(self._classes)},
            dict(self._paces),
        )

    def changes_since(self, version: int, near: bool = False) -> HistoryChanges:
        """What a reader of that version lacks; O(changes). `near`: it is in this process, and takes classes as they
        are; in a message only their new samples go."""
        accounts = self._changed_accounts.since(version)
        changed = self._changed_classes.since(version)
        if accounts is None or changed is None:
            everything = (tuple(self._accounts.values()), tuple(self._classes.values()))
            return HistoryChanges(self._half_life_s, *everything, full=True, paces=dict(self._paces))
        paces = dict(self._paces) if self._paces and version < self._paces_version else None
        if not accounts and not changed:
            return self._no_news() if paces is None else HistoryChanges(self._half_life_s, paces=paces)
        whole: list[ServiceClass] = []
        further: list[ServiceClass] = []
        if near:
            whole = [self._classes[name] for name in changed if name in self._classes]
        for name in changed if not near else ():
            entry = self._classes.get(name)
            if entry is not None:
                new = sum(1 for _ in takewhile(lambda came: came > version, reversed(self._came[name])))
                if new == len(entry.samples):
                    whole.append(entry)
                else:
                    further.append(ServiceClass(name, entry.at_s, entry.samples[-new:]))
        return HistoryChanges(
            self._half_life_s,
            tuple([self._accounts[key] for key in accounts]),
            tuple(whole),
            further=tuple(further),
            gone=tuple([name for name in changed if name not in self._classes]),
            paces=paces,
        )

    def _no_news(self) -> HistoryChanges:
        if self._nothing.half_life_s != self._half_life_s:
            self._nothing = HistoryChanges(self._half_life_s)
        return self._nothing

    # ------------------------------------------------------------ what happened

    def set_half_life(self, half_life_s: float, at_s: float, version: int) -> None:
        """What was used decays so from now on."""
        for key, account in self._accounts.items():
            self._accounts[key] = self._settled(account, at_s)
        self._half_life_s = half_life_s
        self._forget_all_changes(version)

    def held(self, queue: QueueId, owner: str, change: Resources, at_s: float, version: int) -> None:
        """An owner holds so much more (or, negative, less) in a queue from now on."""
        gpu_units, cpu_units = change.gpu_units, change.units(CPU)
        if not gpu_units and not cpu_units:
            return
        key = (queue, owner)
        known = self._accounts.get(key)
        if known is None:
            self._accounts[key] = Account(queue, owner, at_s, 0.0, 0.0, gpu_units, cpu_units)
        else:
            used = known.used(at_s, self._half_life_s)
            gpu_units, cpu_units = known.gpu_units + gpu_units, known.cpu_units + cpu_units
            self._accounts[key] = Account(queue, owner, max(at_s, known.at_s), *used, gpu_units, cpu_units)
        self._changed_accounts.touch(key, version)
        if len(self._accounts) > MAX_ACCOUNTS:
            self._drop_accounts(at_s, version)

    def succeeded(self, workload: Workload, at_s: float, version: int) -> None:
        """A workload has finished; it says how much it took in all. One that never said that it began tells nothing."""
        if workload.progress_s <= 0:
            return
        sample = Sample(workload.progress_s, workload.attained_gpu_s)
        for name in classes_of(workload.spec):
            known = self._classes.pop(name, None)  # the newest last
            newest = ServiceClass(name, at_s, (sample,))
            newest = newest.after(known) if known is not None else newest.with_past()
            self._classes[name] = newest
            self._came.setdefault(name, deque(maxlen=MAX_SAMPLES)).append(version)
            if known is not None and _aged(known, newest):
                self._send_whole(name, version)
            self._changed_classes.touch(name, version)
        if len(self._classes) > MAX_CLASSES:
            self._drop_classes(version)

    def paced(self, workload: Workload, others: Mapping[WorkloadId, Workload], version: int) -> None:
        """A window of its pace closes: what it tells of its kind is remembered, the newest of it counting half."""
        pace = workload.pace
        if pace is None:
            return
        beside = {id: pacing.kind_of(o.spec.owner, o.spec.name) for id, _ in pace.beside if (o := others.get(id))}
        kind = pacing.kind_of(workload.spec.owner, workload.spec.name)
        found = pacing.learned(pace, kind, beside, self._paces)
        if found is None:
            return
        key, value = found
        known = self._paces.pop(key, value)  # the newest last
        self._paces[key] = known + pacing.NEWEST * (value - known)
        if len(self._paces) > MAX_PACES:
            for old in list(self._paces)[: int(MAX_PACES * SPARE)]:
                del self._paces[old]
        self._paces_version = version

    def _send_whole(self, name: str, version: int) -> None:
        """A class whose long past has aged: a reader can't tell which of its new samples came before that."""
        came = self._came[name]
        self._came[name] = deque([version] * len(came), MAX_SAMPLES)

    def queue_deleted(self, queue: QueueId, version: int) -> None:
        """Nobody has used anything in a queue that does not exist."""
        gone = [key for key in self._accounts if key[0] == queue]
        for key in gone:
            del self._accounts[key]
        if gone:
            self._forget_all_changes(version)

    # ------------------------------------------------------------ bounds

    def _settled(self, account: Account, at_s: float) -> Account:
        """The same account at a later time; a clock that was set back changes nothing."""
        gpu_s, cpu_s = account.used(at_s, self._half_life_s)
        return replace(account, at_s=max(at_s, account.at_s), gpu_s=gpu_s, cpu_s=cpu_s)

    def _drop_accounts(self, at_s: float, version: int) -> None:
        idle = [a for a in self._accounts.values() if not a.gpu_units and not a.cpu_units]
        idle.sort(key=lambda a: (*a.used(at_s, self._half_life_s), a.key))
        for account in idle[: int(MAX_ACCOUNTS * SPARE)]:
            del self._accounts[account.key]
        self._forget_all_changes(version)

    def _drop_classes(self, version: int) -> None:
        named = [entry for entry in self._classes.values() if entry.past is None]
        oldest = sorted(named, key=lambda c: (c.at_s, c.name))
        for entry in oldest[: int(MAX_CLASSES * SPARE)]:
            del self._classes[entry.name], self._came[entry.name]
            self._changed_classes.drop(entry.name, version)

    def _forget_all_changes(self, version: int) -> None:
        """Every reader gets everything next time."""
        self._changed_accounts = ChangeLog(version - 1)
        self._changed_classes = ChangeLog(version - 1)


def _aged(known: ServiceClass, newest: ServiceClass) -> bool:
    return known.past is not None and newest.past is not None and known.past.period != newest.past.period
