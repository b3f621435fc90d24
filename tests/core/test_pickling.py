"""Values through pickle, in the quick way and in the dataclasses' own, each readable by whoever reads the other."""

from __future__ import annotations

import copyreg
import pickle
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rayorch.core.pickling import register
from rayorch.core.types import State, Workload
from tests.build import seats, workload


@dataclass(frozen=True, slots=True)
class _One:
    text: str


@dataclass(frozen=True, slots=True)
class _Made:
    text: str
    length: int = field(init=False, default=7)


WORK = Workload(workload("w", 2, 4), State.RUNNING, 3.0, placement=seats("n1", 2), reason="room")


@pytest.mark.parametrize("value", [WORK, _One("a"), _Made("b"), (WORK, replace(WORK, step=4))])
def test_a_value_is_the_same_at_the_other_end(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Workload, type(WORK.spec), _One, _Made):
        monkeypatch.delitem(copyreg.dispatch_table, cls, raising=False)
    plain = pickle.dumps(value, 5)
    register((Workload, type(WORK.spec), _One, _Made))
    quick = pickle.dumps(value, 5)
    assert pickle.loads(quick) == pickle.loads(plain) == value
    assert len(quick) <= len(plain)


def test_one_that_can_not_be_made_from_its_fields_stays_as_it_is() -> None:
    register((_One, _Made))
    assert _One in copyreg.dispatch_table and _Made not in copyreg.dispatch_table
