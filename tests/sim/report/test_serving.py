"""Attainment of applications, and their demand, against what can be worked out on paper."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rayorch.core.errors import SpecError
from rayorch.core.types import Resources
from rayorch.sim.generators.demand import Diurnal, read_demand
from rayorch.sim.report.serving import answering, attainment, gpus_held, over_time, share_of
from rayorch.sim.trace.model import Service
from rayorch.sim.trace.outcome import ReplicaRun, ServiceRecord

CHAT = Service("chat", ((0.0, 2.0), (20.0, 6.0), (60.0, 1.0)), Resources.of({"GPU": 2}), most=8, start_s=10.0)
RUNS = (ReplicaRun(0, 20, 2), ReplicaRun(20, 75, 6), ReplicaRun(75, 100, 2))


def test_a_replica_answers_after_its_start_and_the_newest_go_first() -> None:
    steps = answering(RUNS, 10.0)
    assert dict(zip(steps.times_s.tolist(), steps.values.tolist(), strict=True)) == {
        10.0: 2.0,
        30.0: 6.0,
        75.0: 2.0,
        100.0: 0.0,
    }
    short = answering((ReplicaRun(0, 50, 1), ReplicaRun(50, 55, 3), ReplicaRun(55, 60, 1)), 10.0)
    assert short.times_s.tolist() == [10.0, 60.0]  # what went before it answered never did
    gap = answering((ReplicaRun(0, 20, 1), ReplicaRun(40, 60, 1)), 5.0)
    assert gap.times_s.tolist() == [5.0, 20.0, 45.0, 60.0]


def test_attainment_is_the_part_of_the_requests_that_could_be_taken() -> None:
    share = share_of(ServiceRecord(CHAT, RUNS), 0.0, 100.0)
    # Of 2 x 20 + 6 x 40 + 1 x 40 = 320, 2 x 10 are lost at the beginning and 4 x 10 when four replicas start.
    assert share.attainment == pytest.approx((320 - 20 - 40) / 320)
    assert share.met == pytest.approx(0.8)
    assert share.replicas_avg == pytest.approx((2 * 20 + 6 * 55 + 2 * 25) / 100)
    assert share.gpu_h == pytest.approx(2 * 420 / 3600)
    two = Service("two", ((50.0, 4.0),), Resources.of({"CPU": 1}), most=1, target=2.0)
    other = ServiceRecord(two, (ReplicaRun(50, 100, 1),))
    assert share_of(other, 0.0, 100.0).attainment == pytest.approx(0.5)
    assert attainment([ServiceRecord(CHAT, RUNS), other], 0.0, 100.0) == pytest.approx((260 + 100) / (320 + 200))
    wanted, able = over_time([ServiceRecord(CHAT, RUNS), other], np.array([0.0, 50.0, 100.0]))
    assert wanted.tolist() == pytest.approx([(40 + 180) / 50, (60 + 40 + 200) / 50])
    assert able.tolist() == pytest.approx([(40 + 120) / 50, (150 + 50 + 100) / 50])


def test_what_an_application_holds_is_its_queues() -> None:
    assert gpus_held(ServiceRecord(CHAT, RUNS)).means(np.array([0.0, 20.0, 75.0, 100.0])).tolist() == [4.0, 12.0, 4.0]


def test_one_that_was_never_there_attained_nothing() -> None:
    share = share_of(ServiceRecord(CHAT, (), 0, "no queue"), 0.0, 100.0)
    assert (share.attainment, share.met, share.gpu_h, share.refused) == (0.0, 0.0, 0.0, "no queue")
    idle = Service("idle", ((0.0, 0.0),), Resources.of({"GPU": 1}), most=1)
    assert share_of(ServiceRecord(idle), 0.0, 100.0).attainment is None
    assert attainment([], 0.0, 100.0) is None


def test_a_day_has_its_wave_and_the_noise_its_spread() -> None:
    plain = Diurnal(10.0, low=0.2, noise=0.0).draw("chat", 0, 86_400.0)
    assert len(plain) == 288
    assert max(plain, key=lambda step: step[1]) == (54_000.0, 10.0)
    assert min(value for _, value in plain) == pytest.approx(2.0)
    noisy = Diurnal(10.0, low=1.0, noise=0.3)
    values = np.array([value for _, value in noisy.draw("chat", 1, 60 * 86_400.0)])
    assert float(values.mean()) == pytest.approx(10.0, rel=0.05)
    assert float(np.log(values).std()) == pytest.approx(0.3, rel=0.1)
    assert noisy.draw("chat", 1, 3_600.0) == noisy.draw("chat", 1, 86_400.0)[:12]
    assert noisy.draw("chat", 1, 3_600.0) != noisy.draw("chat", 2, 3_600.0) != noisy.draw("code", 2, 3_600.0)
    with pytest.raises(SpecError, match="steps"):
        Diurnal(1.0, step_s=1.0).draw("chat", 0, math.ldexp(1, 30))


def test_a_file_of_demand_is_read_and_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "demand.csv"
    path.write_text("time,requests\n0,2\n60,3.5\n")
    assert read_demand(path) == ((0.0, 2.0), (60.0, 3.5))
    for text, said in (
        ("time,requests\n", "has no row"),
        ("time,requests\n0,2\n0,3\n", "times must rise"),
        ("time,requests\n0,2\n60,many\n", "line 3"),
        ("time,requests\n0,-2\n", "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(SpecError, match=said):
            read_demand(path)
