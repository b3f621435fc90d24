"""The log of changes: a reader that keeps up gets the news only, and the log does not grow with all that ever was."""

from __future__ import annotations

from rayorch.core.allocations import Allocations
from rayorch.core.changes import ChangeLog
from rayorch.core.inventory import Inventory
from rayorch.core.types import NodeId, WorkloadId
from tests.build import node, seats


def test_the_last_change_of_each_counts() -> None:
    log: ChangeLog[str] = ChangeLog(floor=10)
    for version, key in enumerate("abca", start=11):
        log.touch(key, version)
    assert (log.since(10), log.since(11), log.since(13), log.since(14)) == (None, ("a", "c", "b"), ("a",), ())


def test_what_is_gone_is_told_until_too_much_has_gone_since() -> None:
    log: ChangeLog[str] = ChangeLog(gone_kept=2)
    for version, key in enumerate("abc", start=1):
        log.touch(key, version)
    log.drop("a", 4)
    log.drop("b", 5)
    assert log.since(3) == ("b", "a")
    log.touch("a", 6)  # it is there again
    log.drop("c", 7)
    assert log.since(3) == ("c", "a", "b")
    log.drop("d", 8)
    assert log.since(5) is None or "b" not in log.since(5)  # type: ignore[operator]
    assert log.since(4) is None


def test_a_month_of_attempts_and_nodes_leaves_nothing_behind() -> None:
    books, inventory = Allocations(), Inventory()
    for number in range(30_000):
        workload, id = WorkloadId(f"w{number}"), NodeId(f"n{number}")
        books.reserve(workload, 1, seats("n1", 1), (node("n1"),), 0.0, 1.0)
        books.removed(workload, 1, 0)
        if number % 10 == 0:
            inventory.observe((node(id),), float(number))
            inventory.observe((), float(number))
            inventory.forget(id)
    assert len(books._log._changed) <= 10_000 and len(inventory._log._changed) <= 10_000
    assert books.changes_since(1).full and not books.changes_since(books.version - 5).full
