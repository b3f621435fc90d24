"""The plan's starts come in the order of the naive reference, whatever waits in whatever tree of queues."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.decisions import Start
from rayorch.core.planner import plan
from rayorch.core.types import QueueId, QueueSpec, State, Workload
from rayorch.policies.default import DEFAULT
from tests.core.reference_order import Waiting, starts
from tests.scenes import gpus, node, queue, running, snapshot, spec

PATHS = ("a", "b", "c", "c/x", "c/y")
LEAVES = ("a", "b", "c/x", "c/y")


@st.composite
def trees(draw: st.DrawFn) -> list[QueueSpec]:
    """Shares, some of nothing, with and without limits; a parent deserves what its children do together."""
    shares = {path: draw(st.integers(0, 4)) for path in LEAVES}
    shares["c"] = shares["c/x"] + shares["c/y"]
    return [
        queue(path, shares[path], draw(st.sampled_from((None, 2, 6))), weight=draw(st.sampled_from((1, 2, 3))))
        for path in PATHS
    ]


gangs = st.tuples(
    st.sampled_from(LEAVES),
    st.integers(1, 3),  # members, of a GPU each
    st.sampled_from((0, 0, 0, 5)),
    st.integers(0, 3),  # submitted at
)


@settings(max_examples=100, deadline=None)
@given(trees(), st.lists(gangs, min_size=1, max_size=9), st.lists(st.sampled_from(LEAVES), max_size=4))
def test_starts_come_in_the_order_of_the_reference(
    queues: list[QueueSpec], drawn: list[tuple[str, int, int, int]], held: list[str]
) -> None:
    runs = [
        running(f"r{n}", ["n"], queue=path, preemptible=False) for n, path in enumerate(held)
    ]  # perhaps beyond what its queue may have now: a quota that was lowered
    drawn = sorted(drawn, key=lambda gang: gang[3])
    waiting = [
        Waiting(spec(f"w{n}", members, queue=path, priority=priority), float(at), n + 1)
        for n, (path, members, priority, at) in enumerate(drawn)
    ]
    asked = [Workload(w.spec, State.PENDING, w.submitted_s, sequence=w.number) for w in waiting]
    facts = snapshot([node("n", gpu=60)], [*runs, *asked], queues)
    decisions = plan(facts, DEFAULT).decisions
    found = [decision.workload for decision in decisions if isinstance(decision, Start)]
    assert found == starts(queues, [(QueueId(path), gpus(1)) for path in held], waiting)
