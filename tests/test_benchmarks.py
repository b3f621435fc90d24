"""The benchmarks' common part: every bound has its evidence, and figures are judged by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from benchmarks import harness
from benchmarks.harness import Bound, bounds, percentile, report

BENCHMARKS = sorted(yaml.safe_load(harness.RANGES.read_text())["benchmarks"])


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_bound_limits_something_and_says_why(benchmark: str) -> None:
    for bound in bounds(benchmark):
        assert (bound.at_most is None) != (bound.at_least is None), bound
        assert len(bound.evidence) > 20, bound


def test_every_benchmark_has_bounds() -> None:
    shared = {"__init__", "harness"}
    files = {path.stem for path in Path(harness.__file__).parent.glob("*.py")} - shared
    assert files <= set(BENCHMARKS)


def test_a_bound_holds_on_its_own_side_only() -> None:
    assert Bound("a", "ms", "", at_most=5).holds(5)
    assert not Bound("a", "ms", "", at_most=5).holds(5.1)
    assert Bound("a", "/s", "", at_least=5).holds(5)
    assert not Bound("a", "/s", "", at_least=5).holds(4.9)
    assert not Bound("a", "ms", "", at_most=5).holds(float("nan"))


def test_the_last_line_is_json_and_a_missed_bound_fails_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    good = {"restart_s": 1.25, "lost": 0.0}
    bad = {"restart_s": 1.0, "lost": 1.0}
    assert report("restart", good, check=True) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == good
    assert report("restart", bad, check=False) == 0
    assert report("restart", bad, check=True) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile([float(i) for i in range(1, 101)], 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0
