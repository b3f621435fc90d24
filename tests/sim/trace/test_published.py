"""Runs whose outcome others have published: the same work comes out of the loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.played import pollux, tiresias


@pytest.mark.parametrize("golden", [g for g in tiresias.GOLDEN if g.exact], ids=lambda g: g.profile.name)
def test_tiresias_own_workload_comes_out_as_in_its_artifact(data_dir: Path, golden: tiresias.Golden) -> None:
    assert tiresias.play(data_dir, golden) == golden.expected


def test_tiresias_on_workload_6_of_pollux_takes_as_long_as_published(data_dir: Path) -> None:
    assert pollux.published_s(data_dir, 6) == pytest.approx(3469.69375)
    assert pollux.tiresias_w6_s(data_dir) == pytest.approx(3469.69375, rel=0.005)
