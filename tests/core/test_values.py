"""`changed` gives what `dataclasses.replace` gives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from rayorch.core.types import Member, State, Workload
from rayorch.core.values import changed
from tests.build import seats, workload


@dataclass(frozen=True, slots=True)
class _Made:
    text: str
    length: int = field(init=False, default=7)


def test_it_is_what_replace_gives() -> None:
    work = Workload(workload("w", 2, 4), State.PENDING, 3.0)
    assert changed(work) == work
    new = changed(work, state=State.RUNNING, placement=seats("n1", 2), step=4)
    assert new == replace(work, state=State.RUNNING, placement=seats("n1", 2), step=4)
    member: Member = changed(seats("n1", 1)[0], group_id="g")
    assert member == replace(seats("n1", 1)[0], group_id="g")


def test_what_is_no_field_or_no_such_class_is_refused() -> None:
    with pytest.raises(KeyError, match="colour"):
        changed(seats("n1", 1)[0], colour="red")
    with pytest.raises(TypeError, match="_Made"):
        changed(_Made("a"), text="b")
