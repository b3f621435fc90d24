"""F_n against worked examples, and what holds of it for all nodes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.fragmentation import Fragmentation, typical
from rayorch.core.placement import TaskClass, class_of
from rayorch.core.types import UNIT, Resources
from tests.core.reference_fragmentation import Case, case_of, unusable

ANY: frozenset[str] = frozenset()


def task(cpu: int, each: float, count: int, weight: int = 1, *models: str) -> TaskClass:
    """A class in CPUs and GPUs."""
    return TaskClass(cpu * UNIT, round(each * UNIT), count, frozenset(models), weight)


def mean(whole: Fragmentation, cpu: int, devices: tuple[int, ...]) -> Fraction:
    """F_n in GPU units."""
    return Fraction(whole.of("", cpu, devices), whole.total)


CLASSES = (task(4, 0.5, 1, 5), task(8, 1, 1, 3), task(8, 1, 2, 2))


def test_a_worked_example() -> None:
    devices = (5000, 10_000)
    assert [unusable(c, "", 8 * UNIT, devices) for c in CLASSES] == [0, 5000, 15_000]
    fragmentation = Fragmentation(CLASSES)
    assert mean(fragmentation, 8 * UNIT, devices) == 4500
    # A share of half a GPU, on either of them.
    assert mean(fragmentation, 4 * UNIT, (0, 10_000)) == mean(fragmentation, 4 * UNIT, (5000, 5000)) == 5000


def test_a_share_belongs_on_the_gpu_that_is_in_use() -> None:
    fragmentation = Fragmentation((task(1, 0.5, 1), task(1, 1, 1)))
    assert mean(fragmentation, 96 * UNIT, (5000, 10_000)) == 2500
    assert mean(fragmentation, 95 * UNIT, (0, 10_000)) == 0
    assert mean(fragmentation, 95 * UNIT, (5000, 5000)) == 5000


@pytest.mark.parametrize(
    ("asked", "model", "cpu", "devices", "expected"),
    [
        (task(4, 0.5, 1), "T4", 4, (5000, 0), Case.Q3),
        (task(4, 0.5, 1), "T4", 3, (5000, 0), Case.Q4),
        (task(4, 0.5, 2), "T4", 4, (5000, 0), Case.Q2),
        (task(4, 0.5, 2), "T4", 3, (5000, 0), Case.Q1),
        (task(4, 0.5, 1, 1, "A10"), "T4", 4, (5000, 0), Case.NA),
        (task(4, 0, 0), "T4", 4, (5000, 0), Case.XL),
        (task(4, 0, 0), "T4", 3, (5000, 0), Case.XR),
    ],
)
def test_cases(asked: TaskClass, model: str, cpu: int, devices: tuple[int, ...], expected: Case) -> None:
    assert case_of(asked, model, cpu * UNIT, devices) is expected
    assert unusable(asked, model, cpu * UNIT, devices) == (0 if expected is Case.Q3 else 5000)


def test_typical_classes_are_the_most_frequent_up_to_a_part_of_all() -> None:
    classes = [task(n, 1, 1, weight) for n, weight in enumerate((50, 30, 15, 3, 2), start=1)]
    assert [c.weight for c in typical(reversed(classes))] == [50, 30, 15]
    assert typical([]) == ()
    tied = [task(1, 1, 1), task(2, 1, 1)]
    assert typical(tied, covered=0.5) == (task(2, 1, 1),)


def test_the_class_of_a_bundle() -> None:
    assert class_of(Resources.of({"CPU": 4, "GPU": 0.5}), ("T4",)) == task(4, 0.5, 1, 1, "T4")
    assert class_of(Resources.of({"CPU": 4, "GPU": 2}), ()) == task(4, 1, 2)
    assert class_of(Resources.of({"CPU": 4}), ("T4",)) == task(4, 0, 0)


tasks = st.builds(
    TaskClass,
    st.integers(0, 8).map(lambda n: n * UNIT),
    st.sampled_from([0, 1000, 5000, 8100, 10_000]),
    st.integers(1, 4),
    st.sampled_from([ANY, frozenset({"T4"}), frozenset({"T4", "A10"})]),
    st.integers(1, 9),
)
nodes = st.lists(st.sampled_from([0, 1900, 5000, 8100, 10_000]), min_size=1, max_size=8)


@given(st.lists(tasks, min_size=1, max_size=8), nodes, st.integers(0, 9))
def test_it_is_the_mean_over_the_classes_in_any_order(classes: list[TaskClass], devices: list[int], cpus: int) -> None:
    whole = Fragmentation(classes)
    found = whole.of("T4", cpus * UNIT, tuple(devices))
    assert found == sum(c.weight * unusable(c, "T4", cpus * UNIT, devices) for c in classes)
    assert 0 <= found <= sum(devices) * whole.total
    assert found == Fragmentation(classes[::-1]).of("T4", cpus * UNIT, tuple(sorted(devices)))
    assert whole.of("T4", cpus * UNIT, (0,) * len(devices)) == 0


@given(nodes, st.integers(0, 9))
def test_larger_tasks_can_use_no_more(devices: list[int], cpus: int) -> None:
    unused = [unusable(task(4, each / 10, 1), "", cpus * UNIT, devices) for each in range(1, 11)]
    assert unused == sorted(unused)
