"""Garbage is looked for seldom while a trace runs, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

from rayorch.sim.trace.collecting import THRESHOLDS, collecting_seldom


def test_thresholds_are_as_before_after_a_run_even_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), collecting_seldom():
        assert gc.get_threshold() == THRESHOLDS
        raise KeyError("a run that fails")
    assert gc.get_threshold() == before


def test_who_has_turned_collection_off_by_its_thresholds_keeps_it_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with collecting_seldom():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
