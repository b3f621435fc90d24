"""What a lookout remembers; `tests/sim/test_lookout.py` plays whole lives with it."""

from __future__ import annotations

import pytest

from rayorch.core import lookout
from rayorch.core.lookout import Lookout
from rayorch.core.reconcile import DropReservation, Known, actions_for
from rayorch.core.types import Allocation, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.build import seat


def test_news_is_kept_when_a_defect_keeps_it_from_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    key = (WorkloadId("w"), 1)
    known = Known({}, {key: Allocation(*key, (seat("n1"),), 0.0, 30.0)}, {}, {}, 1.0, DEFAULT)
    eyes = Lookout()

    def defect(*args: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(lookout, "actions_for", defect)
    with pytest.raises(KeyError):
        eyes.look(known, {key})
    monkeypatch.setattr(lookout, "actions_for", actions_for)
    assert eyes.look(known, ()) == (DropReservation(*key),)
