"""Jobs that share GPUs, in words, and an experiment with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rayorch.core.errors import SpecError
from rayorch.core.policy import Profile
from rayorch.experiment.packs import Packing, Parts, packing_of
from rayorch.experiment.side_by_side import simulate
from rayorch.policies.default import DEFAULT
from rayorch.policies.place import apart
from rayorch.sim.trace.model import TraceJob
from tests.sim.trace.worlds import job, trace

PAIRS = "kind,beside,rate\nx,x,0.9\nx,y,0.8\ny,x,0.7\ny,y,0.2\n"
APART: Profile = replace(DEFAULT, name="apart", score=apart.score, device=apart.device)


def _of(kind: str, id: str, submit_s: float = 0.0, gpus: float = 1) -> TraceJob:
    return replace(job(id, submit_s, 100.0, gpus=gpus), name=kind)


MADE = trace(_of("x", "a"), _of("y", "b", 10.0), _of("z", "c", 20.0), _of("x", "d", 30.0, gpus=2))


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """A table of two kinds."""
    path = tmp_path / "pairs.csv"
    path.write_text(PAIRS)
    return str(path)


def test_words_become_a_way_to_pack(pairs: str) -> None:
    found = packing_of(pairs)
    assert found == Packing(found.colocation) and found.colocation.beside("x", "y") == 0.8
    other = packing_of(f"{pairs},parts=half,unknown=0.25,exact=no")
    assert (other.parts, other.exact, other.colocation.beside("z", "x")) == (Parts.HALF, False, 0.25)
    asked = {j.id: j.ask.each.to_floats()["GPU"] for j in found.offered(MADE).jobs}
    assert asked["a"] + asked["b"] <= 1.0 < 2 * asked["b"], "x goes with x and y, y does not go with y"
    assert (asked["c"], asked["d"]) == (1.0, 2.0), "what was not measured, and what has two GPUs, shares none"
    assert [j.ask.each.to_floats()["GPU"] for j in other.offered(MADE).jobs] == [0.5, 0.5, 0.5, 2.0]
    assert packing_of(f"{pairs},parts=asked").offered(MADE) is MADE


def test_the_published_form_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "throughputs.json"
    one, two = str(("x", 1)), str(("y", 1))
    path.write_text(json.dumps({"v100": {one: {"null": 10.0, two: [8.0, 2.0]}, two: {"null": 4.0}}, "k80": {}}))
    found = packing_of(str(path)).colocation
    assert (found.beside("x", "y"), found.beside("y", "x")) == (0.8, 0.5)
    for words, said in ((",gpu=h100", "gpu must be one of k80, v100"), (",gpu=k80", "holds no pair")):
        with pytest.raises(SpecError, match=said):
            packing_of(str(path) + words)
    path.write_text(json.dumps({"v100": {one: {"null": float("nan")}}}))
    with pytest.raises(SpecError, match=r"--colocation: .*must be a number of steps"):
        packing_of(str(path))
    path.write_text(json.dumps({"v100": {"('x', 'many')": {"null": 1.0}}}))
    with pytest.raises(SpecError, match=r"--colocation: .*must be named"):
        packing_of(str(path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (",gains=3", "gains must be"),
        (",gains=nan", "gains must be"),
        (",slowest=-1", "slowest must be"),
        (",unknown=0", "unknown must be"),
        (",parts=thirds", "parts must be one of pairs, half, asked"),
        (",parts=half,gains=1", "gains is of parts=pairs only"),
        (",exact=maybe", "exact must be yes or no"),
        (",gpu=v100", "gpu is of tables with several models"),
        (",size=3", "takes parts"),
        (",gains=1,gains=1", "each once"),
        (".not-there", "is not a file"),
    ],
)
def test_words_that_cannot_be_are_refused(pairs: str, words: str, said: str) -> None:
    with pytest.raises(SpecError, match=rf"--colocation: .*{said}"):
        packing_of(pairs + words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must begin with kind,beside,rate"),
        ("a,b\n", "must begin with"),
        ("kind,beside,rate\n", "holds no pair"),
        ("kind,beside,rate\nx,y\n", "line 2: must be kind"),
        ("kind,beside,rate\nx,,1\n", "line 2: must be kind"),
        ("kind,beside,rate\nx,y,fast\n", "line 2: rate must be"),
        ("kind,beside,rate\n\nx,y,nan\n", "line 3: rate must be"),
        ("kind,beside,rate\nx,y,-0.1\n", "line 2: rate must be"),
        ("kind,beside,rate\nx,y,1\nx,y,1\n", "line 3: x beside y is given twice"),
        ("[1]", "must begin with"),
        ("{", "is not JSON"),
        ('{"v100": 3}', "must be an object"),
    ],
)
def test_tables_that_cannot_be_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(text)
    with pytest.raises(SpecError, match=rf"--colocation: .*{said}"):
        packing_of(str(path))


def test_a_trace_of_which_no_job_could_share_is_refused(pairs: str) -> None:
    with pytest.raises(SpecError, match=r"--colocation: no job of made has a measured kind .* as its name, got 'z'"):
        packing_of(pairs).offered(trace(_of("z", "a")))
    with pytest.raises(SpecError, match=r"--colocation: no job of made is one member with one GPU"):
        packing_of(f"{pairs},parts=half").offered(trace(_of("x", "a", gpus=2)))


def test_an_experiment_packs_what_gains_and_says_how_long_it_then_takes(pairs: str) -> None:
    made = trace(_of("x", "a"), _of("x", "b"))

    def ends(profile: Profile, cluster: str, words: str) -> float | None:
        report = simulate(made, cluster, [profile], colocation=pairs + words, progress=False)
        return report.runs[0].figures["jct_avg_s"]

    assert ends(DEFAULT, "1x2", "") == pytest.approx(100 / 0.9), "best fit keeps a GPU whole"
    assert ends(APART, "1x2", "") == pytest.approx(100.0), "nodes name their GPUs, so that the profile can choose"
    assert ends(APART, "1x2", ",exact=no") == pytest.approx(100 / 0.9), "Ray binds to the first GPU that takes it"
    assert ends(APART, "1x1", ",gains=1.9") == pytest.approx(150.0), "they gain less than that, one after the other"
