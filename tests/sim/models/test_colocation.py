"""How fast work is on a GPU that it shares, and which parts of GPUs follow from that."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.types import Resources
from rayorch.sim.models.colocation import CROWDED, PARTS, WHOLE, Colocation, fit, packed, shares
from rayorch.sim.readers.gavel import read_throughputs
from rayorch.sim.trace.model import Ask, Trace, TraceJob

LIGHT_HEAVY = Colocation(
    {("light", "light"): 0.9, ("light", "heavy"): 0.8, ("heavy", "light"): 0.7, ("heavy", "heavy"): 0.4}
)


def test_pairs_are_as_measured_and_more_than_two_slow_each_other_as_they_would_alone() -> None:
    assert LIGHT_HEAVY.rate("light", ()) == 1.0
    assert LIGHT_HEAVY.rate("light", ("heavy",)) == 0.8
    assert LIGHT_HEAVY.rate("light", ("heavy", "light")) == pytest.approx(0.72)
    assert LIGHT_HEAVY.together("light", "heavy") == pytest.approx(1.5)


def test_what_was_not_measured_is_halved_and_what_could_not_be_is_as_good_as_stopped() -> None:
    model = Colocation({("a", "b"): 0.9, ("b", "a"): 0.9, ("a", "a"): 0.0, ("b", "c"): 1.4, ("c", "b"): 0.6})

    assert model.beside("a", "stranger") == model.beside("stranger", "a") == 0.5
    assert model.beside("a", "c") == CROWDED, "both were measured, but not together: they did not fit"
    assert model.beside("a", "a") == CROWDED
    assert model.beside("b", "c") == 1.0, "nobody is faster than alone"


def test_throughputs_of_two_on_one_gpu_become_paces() -> None:
    alone = {("a", 1): 10.0, ("b", 1): 4.0, ("a", 2): 18.0}
    model = Colocation.measured(alone, {(("a", 1), ("b", 1)): (5.0, 3.0), (("a", 2), ("b", 1)): (1.0, 1.0)})

    assert model.pairs == {("a", "b"): 0.5, ("b", "a"): 0.75}


def test_kinds_that_go_well_with_each_other_fit_on_one_gpu_and_others_do_not() -> None:
    parts = shares(LIGHT_HEAVY, gains=1.2)

    assert fit(parts["light"], parts["light"]) and fit(parts["light"], parts["heavy"])
    assert not fit(parts["heavy"], parts["heavy"])
    assert shares(LIGHT_HEAVY, gains=1.6) == {"heavy": WHOLE, "light": 0.5}
    assert shares(LIGHT_HEAVY, gains=1.2, slowest=0.85) == {"heavy": WHOLE, "light": 0.5}
    assert shares(LIGHT_HEAVY, gains=2.0) == {"heavy": WHOLE, "light": WHOLE}


def test_three_never_share_one_gpu() -> None:
    assert 3 * min(PARTS) > 1


@settings(max_examples=50, deadline=None)
@given(rates=st.lists(st.floats(0.0, 1.0), min_size=25, max_size=25), gains=st.floats(0.8, 1.8))
def test_nothing_fits_together_that_gains_too_little(rates: list[float], gains: float) -> None:
    model = Colocation(dict(zip(product("abcde", "abcde"), rates, strict=True)))

    parts = shares(model, gains)

    together = [(a, b) for a, b in product(parts, parts) if fit(parts[a], parts[b])]
    assert all(model.together(a, b) >= gains for a, b in together)
    assert shares(model, gains) == parts


def test_parts_of_the_measured_kinds_keep_the_limit(data_dir: Path) -> None:
    table = read_throughputs(data_dir / "gavel" / "simulation_throughputs.json.gz")
    model = Colocation.measured(table.alone["v100"], table.packed["v100"])

    parts = shares(model, 1.3, 0.5)

    assert len(parts) == 26 and sum(part < WHOLE for part in parts.values()) == 20
    paces = [model.beside(a, b) for a, b in product(parts, parts) if fit(parts[a], parts[b])]
    assert len(paces) > 100 and min(paces) >= 0.5


def test_only_jobs_of_one_whole_gpu_ask_for_less() -> None:
    one, two = Ask(1, Resources.of({"GPU": 1, "CPU": 4})), Ask(2, Resources.of({"GPU": 1}))
    jobs = tuple(
        TraceJob(id, 0.0, 10.0, ask, name=name)
        for id, ask, name in (("a", one, "light"), ("b", two, "light"), ("c", one, "heavy"), ("d", one, "light"))
    )

    made = packed(Trace("t", jobs), {"light": 0.34, "heavy": WHOLE}).jobs

    assert [job.ask.each.to_floats() for job in made] == [
        {"CPU": 4.0, "GPU": 0.34},
        {"GPU": 1.0},
        {"CPU": 4.0, "GPU": 1.0},
        {"CPU": 4.0, "GPU": 0.34},
    ]
    assert made[0].ask is made[3].ask
