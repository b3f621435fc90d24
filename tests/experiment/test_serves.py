"""Applications in words, and an experiment with one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rayorch.core.errors import SpecError
from rayorch.experiment.serves import served_of, with_services
from rayorch.experiment.side_by_side import simulate
from rayorch.policies.default import DEFAULT
from rayorch.sim.report.page import page
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import job, nodes, trace

MADE = trace(*(job(f"j{n}", 600.0 * n, 3_600.0, gpus=2, members=1 + n % 3) for n in range(12)))


def test_words_become_an_application(tmp_path: Path) -> None:
    path = tmp_path / "demand.csv"
    path.write_text("time,requests\n0,2\n60,3\n")
    wave, fixed = served_of(
        [
            "chat,peak=12,replicas=2-8,gpus=0.5,target=4,start=60s,queue=prod,priority=7,model=H100,low=0.5,step=10m",
            f"code,demand={path},cpus=2",
        ]
    )
    service = wave.service
    assert (service.id, service.least, service.most, service.target, service.start_s) == ("chat", 2, 8, 4.0, 60.0)
    assert (service.queue, service.priority, service.models) == ("prod", 7, ("H100",))
    assert service.each.to_floats() == {"GPU": 0.5}
    assert wave.wave is not None and (wave.wave.peak, wave.wave.low, wave.wave.step_s) == (12.0, 0.5, 600.0)
    assert fixed.drawn(3, 10.0).demand == ((0.0, 2.0), (60.0, 3.0)) and fixed.service.most == 16
    played = with_services(MADE, (wave, fixed), 1, None)
    assert [len(service.demand) for service in played.services] == [23, 2]  # 6,600 s and twice the longest run
    assert with_services(MADE, (wave,), 1, 1_200.0).services[0].demand == played.services[0].demand[:2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chat", "needs either peak"),
        ("", "must be NAME"),
        ("peak=3", "must be NAME"),
        ("chat,peak=3,demand=x.csv", "needs either peak"),
        ("chat,peak=3,size=2", "takes peak"),
        ("chat,peak=3,peak=4", "each once"),
        ("chat,peak=-1", "peak must be"),
        ("chat,peak=nan", "peak must be"),
        ("chat,peak=3,replicas=0-4", "replicas must be"),
        ("chat,peak=3,replicas=4-2", "replicas must be"),
        ("chat,peak=3,replicas=many", "replicas must be"),
        ("chat,peak=3,replicas=²-3", "replicas must be"),
        ("chat,peak=3,priority=1.5", "priority must be a whole number"),
        ("chat,peak=3,gpus=0", "a replica takes nothing"),
        ("chat,peak=3,target=0", "target must be"),
        ("chat,peak=3,start=soon", "start:"),
        ("chat,peak=3,step=0s", "step must be"),
        ("chat,peak=3,queue=", "--serve: queue must be a path of names"),
        ("chat,peak=3,queue=a//b", "--serve: queue must be a path of names"),
        ("chat,peak=3,model=", "--serve: model must name a GPU model"),
        ("chat,demand=/nowhere.csv,noise=1", "noise is of a wave"),
    ],
)
def test_what_can_not_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match="--serve") as caught:
        served_of([text])
    assert said in str(caught.value)


def test_names_are_given_once() -> None:
    with pytest.raises(SpecError, match="chat is given twice"):
        served_of(["chat,peak=1", "chat,peak=2"])
    with pytest.raises(SpecError, match="--serve: j3 is the id of a job"):
        simulate(MADE, "2x8", serve=["j3,peak=1"], progress=False)
    (served,) = served_of(["j3,peak=1"])
    with pytest.raises(SpecError, match=r"services\[0\].id"):
        run(with_services(MADE, (served,), 0, None), nodes(2), DEFAULT)
    for demand in ((), ((5.0, 1.0), (5.0, 2.0)), ((0.0, -1.0),), ((-1.0, 1.0),)):
        wrong = replace(served.service, id="x", demand=demand)
        with pytest.raises(SpecError, match=r"services\[0\].demand"):
            run(replace(MADE, services=(wrong,)), nodes(2), DEFAULT)


def test_an_application_beside_the_jobs_is_reported(tmp_path: Path) -> None:
    report = simulate(MADE, "2x8", serve=["chat,peak=8,start=60s,replicas=1-8"], progress=False, out=tmp_path)
    (found,) = report.runs
    (share,) = found.services
    attained = found.figures["attainment"]
    assert attained is not None and 0.5 < attained < 1.0 and share.attainment == pytest.approx(attained)
    assert found.figures["serving_gpu_h"] == pytest.approx(share.gpu_h) and share.gpu_h > 0
    assert len(found.over_time.requests) == len(found.over_time.answerable) == 300
    again = simulate(
        MADE, "2x8", serve=["chat,peak=8,start=60s,replicas=1-8"], progress=False, out=tmp_path, resume=True
    )
    assert again.runs == report.runs
    text = page(report.runs, "1")
    for heading in ("Requests at once, and what replicas could take", "Fragmentation: ", "Applications: default"):
        assert heading in text
    assert dict(found.over_time.held_by_queue)["serve"]
    alone = simulate(MADE, "2x8", progress=False, elastic="0.5:2").runs[0]
    assert alone.figures["elastic_size"] and "Elastic jobs: GPUs held over GPUs asked for" in page([alone], "1")
    assert alone.figures["attainment"] is None and alone.services == ()
    crowded = simulate(MADE, "1x8", serve=["chat,peak=8,gpus=9"], progress=False)
    assert any("the application chat was refused at the door" in note for note in crowded.notes)


def test_turns_beside_an_application_end_when_the_jobs_have_ended() -> None:
    gandiva = str(Path(__file__).parents[2] / "configs" / "profiles" / "gandiva.yaml")
    (found,) = simulate(MADE, "2x8", [gandiva], progress=False, serve=["chat,peak=3"], until_s=30 * 86_400.0).runs
    assert found.figures["finished"] == found.figures["jobs"] and (found.figures["turns"] or 0) < 1_000
