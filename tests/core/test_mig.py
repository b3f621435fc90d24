"""How GPUs can be cut, and which idle ones to cut anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.mig import (
    MODELS,
    Instance,
    MigModel,
    arrange,
    mig_model,
    open_starts,
    taken_slices,
)
from rayorch.core.repartition import RepartitionPlan, repartition_plan
from rayorch.core.types import (
    MODEL_LABEL,
    Allocation,
    Device,
    Member,
    NodeId,
    NodeSpec,
    Resources,
    Role,
    State,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from tests.build import workload

A100 = MODELS[0]


def model(name: str) -> MigModel:
    return next(m for m in MODELS if m.name == name)


# ---------------------------------------------------------------- the tables


@pytest.mark.parametrize("gpu", MODELS, ids=lambda m: m.name)
def test_every_profile_lies_inside_the_gpu_and_seven_or_four_small_ones_fill_it(gpu: MigModel) -> None:
    for profile in gpu.profiles:
        assert all(s >= 0 and s + profile.size <= gpu.slices for s in profile.starts)
    most = 4 if gpu.slices == 4 else 7
    small = gpu.profiles[0].name
    assert arrange(gpu, (small,) * most) is not None
    assert arrange(gpu, (small,) * (most + 1)) is None
    assert arrange(gpu, (gpu.profiles[-1].name, small)) is None


@pytest.mark.parametrize(
    ("profiles", "fits"),
    [
        (("3g.20gb", "3g.20gb"), True),
        (("4g.20gb", "3g.20gb"), True),
        (("4g.20gb", "4g.20gb"), False),
        (("2g.10gb",) * 3 + ("1g.5gb",), True),
        (("2g.10gb",) * 4, False),
        (("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"), True),
        (("3g.20gb", "2g.10gb", "2g.10gb", "1g.5gb"), False),
        (("1g.10gb",) * 4, True),
        (("1g.5gb+me", "1g.5gb+me"), False),
        (("3g.40gb",), False),
    ],
)
def test_which_cuts_nvidia_allows_on_an_a100(profiles: tuple[str, ...], fits: bool) -> None:
    assert (arrange(A100, tuple(sorted(profiles))) is not None) == fits


def geometries(model: MigModel) -> tuple[tuple[str, ...], ...]:
    """All multisets of profiles that fit one GPU with nothing left to add, without media extensions, sorted."""
    plain = [p for p in model.profiles if not p.name.endswith("+me")]
    found: set[tuple[str, ...]] = set()

    def extend(names: tuple[str, ...], first: int) -> None:
        grew = False
        for number, profile in enumerate(plain):
            more = tuple(sorted((*names, profile.name)))
            if arrange(model, more) is not None:
                grew = True
                if number >= first:
                    extend(more, number)
        if not grew:
            found.add(names)

    extend((), 0)
    return tuple(sorted(found))


def test_no_geometry_takes_more_compute_slices_than_there_are() -> None:
    for gpu in (A100, model("A30")):
        most = 4 if gpu.slices == 4 else 7
        for profiles in geometries(gpu):
            assert sum(int(name[0]) for name in profiles) <= most
    assert ("2g.12gb", "2g.12gb") in geometries(model("A30"))
    assert len(geometries(model("A30"))) == 4


def test_the_model_is_told_by_its_name_its_memory_or_what_it_is_cut_into() -> None:
    assert mig_model("A100") is None
    for memory, name in ((40_960, "A100-40G"), (81_920, "A100-80G")):
        found = mig_model("A100", memory)
        assert found is not None
        assert found.name == name
    assert mig_model("A100", 0, ("1g.5gb",)) is A100
    assert mig_model("H100", 81_559) is model("H100")
    assert mig_model("H100", 95_830) is model("H100-94G")
    assert mig_model("H200", 143_771, ("1g.18gb",)) is model("H200")
    assert mig_model("L4", 24_000) is None


def test_instances_that_overlap_or_begin_anywhere_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no 3g\.20gb at slice 1"):
        taken_slices(A100, [Instance("3g.20gb", 1)])
    with pytest.raises(ValueError, match="collides"):
        taken_slices(A100, [Instance("3g.20gb", 0), Instance("2g.10gb", 2)])


names = st.sampled_from([p.name for p in A100.profiles])


@given(wanted=st.lists(names, max_size=8))
def test_one_by_one_nothing_fits_that_a_search_does_not_find(wanted: list[str]) -> None:
    placed: list[Instance] = []
    for name in wanted:
        profile = A100.profile(name)
        assert profile is not None
        starts = open_starts(A100, profile, taken_slices(A100, placed))
        if starts and sum(i.profile == name for i in placed) < profile.most:
            placed.append(Instance(name, starts[-1]))
            taken_slices(A100, placed)  # raises when it may not be there
    assert arrange(A100, tuple(sorted(i.profile for i in placed))) is not None
    found = arrange(A100, tuple(sorted(wanted)))
    if found is not None:
        assert sorted(i.profile for i in found) == sorted(wanted)
        taken = taken_slices(A100, found)
        assert all(not set(range(s, s + p.size)) & taken for p in A100.profiles for s in open_starts(A100, p, taken))


# ---------------------------------------------------------------- cutting idle GPUs anew


def cut(name: str, *gpus: tuple[str, ...], kind: str = "A100", sick: int | None = None) -> NodeSpec:
    """A node of GPUs p0, p1, … each cut into these profiles."""
    flat = [(f"p{n}", profile) for n, profiles in enumerate(gpus) for profile in profiles]
    devices = tuple(
        Device(i, uuid=f"MIG-{name}-{i}", mig_profile=p, pci=pci, sick="xid" if i == sick else "")
        for i, (pci, p) in enumerate(flat)
    )
    counts = {f"mig-{p}": sum(q == p for _, q in flat) for _, p in flat}
    labels = ((MODEL_LABEL, kind),)
    total = Resources.of({"CPU": 32, **counts})
    return NodeSpec(NodeId(name), name, total, devices, labels, exact=True, mig_mixed=True)


def asks(id: str, profile: str, members: int = 1, each: int = 1, **settings: object) -> WorkloadSpec:
    bundle = Resources.of({f"mig-{profile}": each})
    return replace(workload(id, **settings), roles=(Role("worker", bundle, members, members),))  # type: ignore[arg-type]


def planned(nodes: list[NodeSpec], *specs: WorkloadSpec, held: tuple[Allocation, ...] = ()) -> RepartitionPlan:
    waiting = [Workload(s, State.PENDING, float(n)) for n, s in enumerate(specs)]
    return repartition_plan(nodes, held, waiting, 100.0)


def holds(node: str, index: int, profile: str) -> Allocation:
    seat = Member("worker", 0, NodeId(node), Resources.of({f"mig-{profile}": 1}), devices=(index,))
    return Allocation(WorkloadId("r"), 1, (seat,), 0.0, 0.0)


SMALL = ("1g.5gb",) * 7


def test_an_idle_gpu_is_cut_for_what_waits_and_keeps_what_still_fits() -> None:
    made = planned([cut("n1", SMALL)], asks("w", "3g.20gb"))
    (one,) = made.cuts
    assert (one.gpu, one.model, one.before, one.serves) == ("p0", "A100-40G", SMALL, ("w",))
    kept = sorted(i.profile for i in one.after)
    assert kept == ["1g.5gb"] * 4 + ["3g.20gb"]
    taken_slices(A100, one.after)
    assert made.unserved == ()


def test_nothing_is_cut_that_anybody_uses() -> None:
    node = cut("n1", SMALL, SMALL)
    made = planned([node], asks("w", "3g.20gb"), held=(holds("n1", 0, "1g.5gb"),))
    assert [(c.gpu, c.others) for c in made.cuts] == [("p1", 1)]
    assert any("wait until the 1 seats" in step for step in made.cuts[0].steps)
    both = (holds("n1", 0, "1g.5gb"), replace(holds("n1", 7, "1g.5gb"), workload=WorkloadId("s")))
    assert planned([node], asks("w", "3g.20gb"), held=both).cuts == ()


def test_a_sick_instance_keeps_its_gpu_as_it_is() -> None:
    made = planned([cut("n1", SMALL, sick=3)], asks("w", "3g.20gb"))
    assert made.cuts == ()
    assert "no idle GPU can be cut into 1 x 3g.20gb" in made.unserved[0][1]


def test_what_is_there_already_is_used_and_nothing_is_cut_for_it() -> None:
    made = planned([cut("n1", ("3g.20gb",), SMALL)], asks("w", "3g.20gb"), asks("x", "1g.5gb"))
    assert made == RepartitionPlan()


def test_a_gang_is_served_whole_or_nothing_is_cut_for_it() -> None:
    nodes = [cut("n1", SMALL), cut("n2", SMALL)]
    assert len(planned(nodes, asks("w", "3g.20gb", members=4)).cuts) == 2
    made = planned(nodes, asks("w", "3g.20gb", members=5), asks("x", "4g.20gb"))
    assert [c.serves for c in made.cuts] == [("x",)]
    assert [id for id, _ in made.unserved] == ["w"]


def test_a_member_of_two_instances_gets_both_on_one_node() -> None:
    nodes = [cut("n1", SMALL), cut("n2", SMALL)]
    assert len(planned(nodes, asks("w", "4g.20gb", each=2)).cuts) == 0
    assert len(planned([cut("n1", SMALL, SMALL)], asks("w", "4g.20gb", each=2)).cuts) == 2


def test_the_instances_of_a_gpu_that_is_cut_are_nobodys() -> None:
    made = planned([cut("n1", SMALL)], asks("big", "7g.40gb", priority=5), asks("small", "1g.5gb"))
    assert [(c.serves, [i.profile for i in c.after]) for c in made.cuts] == [(("big",), ["7g.40gb"])]
    assert [id for id, _ in made.unserved] == ["small"]


def test_only_gpus_of_a_model_that_will_do_are_cut() -> None:
    h100 = cut("n2", ("1g.10gb",) * 7, kind="H100")
    assert planned([cut("n1", SMALL), h100], asks("w", "3g.40gb")).cuts[0].node == "n2"
    made = planned([cut("n1", SMALL), h100], asks("w", "3g.40gb", accelerators=("A100",)))
    assert made.cuts == ()
    assert "of A100" in made.unserved[0][1]
