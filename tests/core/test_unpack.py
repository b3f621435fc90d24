"""Two that share a GPU: when they are taken apart, which of them goes, and who is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.config import ClusterDocument, load_profile, parse_document
from rayorch.core.attempts import advance
from rayorch.core.decisions import Plan, Reserve, Stop, Watch
from rayorch.core.errors import SpecError
from rayorch.core.events import AttemptEnded, Submitted
from rayorch.core.eviction import PackingKnobs
from rayorch.core.explain import explain
from rayorch.core.history import History
from rayorch.core.lifecycle import Move
from rayorch.core.pace import Beside, Pace
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.core.queues import QueueTree
from rayorch.core.types import Allocation, Checkpoint, Kind, NodeSpec, QueueMode, Resources, StopCause, Workload
from rayorch.policies.default import DEFAULT
from rayorch.policies.place import apart
from tests.scenes import NOW, gpus, node, pending, queue, running, snapshot, stopped

KNOBS = PackingKnobs(unpack=True)
PROFILE: Profile = replace(DEFAULT, packing=KNOBS, score=apart.score, device=apart.device)
ONE = [node("n1", 1, exact=True)]
TWO = [node("n1", 2, exact=True)]
Held = tuple[Workload, Allocation]


def _beside(*ids: str) -> Beside:
    return tuple((pending(id).id, 1) for id in ids)


def _shares(id: str, rate: float, *others: str, device: int = 0, took_s: float = 200.0, **asked: object) -> Held:
    """It runs for 700 s with half of a GPU of n1, has just saved its work, and goes at that rate beside these."""
    workload, held = running(id, ["n1"], **{"gpu": 0.5, "started_s": NOW - 700, **asked})  # type: ignore[arg-type]
    members = tuple(replace(member, devices=(device,), exact=True) for member in held.members)
    pace = Pace(_beside(*others), True, 100, NOW - 210, 100 + round(1000 * rate * took_s), NOW - 210 + took_s, 1000.0)
    saved = Checkpoint(1, "file:///c", NOW - 5.0, 1)
    return replace(workload, pace=pace, checkpoint=saved), replace(held, members=members)


def _made(nodes: list[NodeSpec], *work: object, profile: Profile = PROFILE, **knobs: object) -> Plan:
    return plan(snapshot(nodes, work, **knobs), profile)  # type: ignore[arg-type]


A, B = _shares("a", 0.3, "b"), _shares("b", 0.4, "a")


def test_two_that_do_less_together_than_one_alone_are_taken_apart_and_the_reason_says_so() -> None:
    made = _made(ONE, A, B)
    assert stopped(made) == {"a": StopCause.UNPACKED}
    (stop,) = [d for d in made.decisions if isinstance(d, Stop)]
    assert stop.order.reason == (
        "unpacked: beside b it goes at 0.30 of its own pace and b at 0.40, by their reports, "
        "together 0.70 of what one does alone; it asks for a whole GPU from now on"
    )
    assert stop.order.beneficiary is None
    assert stopped(_made(ONE, A, B, profile=DEFAULT)) == {}, "nobody is watched unless the profile says so"


@pytest.mark.parametrize("rates", [(0.5, 0.5), (0.99, 0.1), (0.9, 0.8)])
def test_two_that_do_as_much_as_one_alone_stay_together(rates: tuple[float, float]) -> None:
    assert stopped(_made(ONE, _shares("a", rates[0], "b"), _shares("b", rates[1], "a"))) == {}


def test_the_one_that_loses_less_goes() -> None:
    late = (replace(A[0], checkpoint=Checkpoint(1, "file:///c", NOW - 50.0, 1)), A[1])
    assert list(stopped(_made(ONE, late, B))) == ["b"]
    younger = (replace(B[0], started_s=NOW - 600), B[1])
    assert list(stopped(_made(ONE, A, younger))) == ["b"], "of equal loss the one that came later"


def test_it_must_be_worth_what_the_stop_loses() -> None:
    short = (replace(A[0], ready_s=NOW - 100), A[1])  # 100 s more, as long as it worked, at 0.3 a second: 30 s
    assert stopped(_made(ONE, short, B)) == {}, "35 s would be lost"
    dear = replace(PROFILE, packing=replace(KNOBS, worth=7.0))
    assert stopped(_made(ONE, A, B, profile=dear)) == {} != stopped(_made(ONE, A, B))
    soon = (replace(B[0], spec=replace(B[0].spec, expected_s=760.0)), B[1])
    assert stopped(_made(ONE, A, soon)) == {}, "it has a minute left"
    strict = replace(PROFILE, packing=replace(KNOBS, least_together=0.5))
    assert stopped(_made(ONE, A, B, profile=strict)) == {}


def test_nobody_is_judged_who_was_not_seen_beside_the_other_for_long_enough() -> None:
    brief = _shares("b", 0.4, "a", took_s=119.0)
    assert stopped(_made(ONE, A, brief)) == {}
    assert stopped(_made(ONE, A, _shares("b", 0.4, "x"))) == {}, "that was beside another"
    unknown = (replace(B[0], pace=replace(B[0].pace or Pace(), alone=0.0)), B[1])
    assert stopped(_made(ONE, A, unknown)) == {}, "how fast it is alone nobody knows"
    third = _shares("c", 0.3, "a", "b", gpu=0.1)
    assert stopped(_made(ONE, A, B, third)) == {}, "of three nobody knows whose fault it is"


def test_what_was_learned_of_their_kinds_counts_where_nothing_was_measured() -> None:
    new = (replace(B[0], pace=Pace(_beside("a"), True)), B[1])
    seen = snapshot(ONE, [A, new])
    assert stopped(plan(seen, PROFILE)) == {}
    learned = replace(seen, history=History(paces={("/b", "/a", ""): 0.4}))
    made = plan(learned, PROFILE)
    (stop,) = [d for d in made.decisions if isinstance(d, Stop)]
    assert "as others of their kinds did, together 0.70" in stop.order.reason
    good = replace(seen, history=History(paces={("/b", "/a", ""): 0.8}))
    assert stopped(plan(good, PROFILE)) == {}


def test_while_a_gpu_is_idle_one_moves_there_and_keeps_its_part() -> None:
    fair = (_shares("a", 0.8, "b"), _shares("b", 0.8, "a"))
    made = _made(TWO, *fair)
    assert stopped(made) == {"a": StopCause.MOVED}
    (reserve,) = [d for d in made.decisions if isinstance(d, Reserve)]
    assert [(m.node, m.devices, m.bundle) for m in reserve.members] == [("n1", (1,), gpus(0.5))]
    (stop,) = [d for d in made.decisions if isinstance(d, Stop)]
    assert stop.order.beneficiary == "a" and stop.order.seats == (("worker", 0, "n1"),)
    assert stop.order.reason.startswith("moved to a GPU of its own: beside b it goes at 0.80 of its own pace")
    assert stopped(_made(ONE, *fair)) == {}
    tight = replace(PROFILE, score=DEFAULT.score, device=DEFAULT.device)
    assert stopped(_made(TWO, *fair, profile=tight)) == {}, "it would be put beside the other again"
    rested = replace(PROFILE, packing=replace(KNOBS, cooldown_s=701.0))
    assert stopped(_made(TWO, *fair, profile=rested)) == {}


def test_an_idle_gpu_that_somebody_who_waits_could_use_is_left_to_him() -> None:
    fair = (_shares("a", 0.8, "b"), _shares("b", 0.8, "a"))
    waits = pending("w", gpu=2)
    assert stopped(_made(TWO, *fair, waits, profile=replace(PROFILE, preemption=False))) == {}


def test_a_move_goes_to_gpus_of_the_same_model_and_to_no_other() -> None:
    fair = (_shares("a", 0.8, "b"), _shares("b", 0.8, "a"))
    here = node("n1", 1, exact=True, model="H100")
    for model, found in (("A100", {}), ("H100", {"a": StopCause.MOVED})):
        assert stopped(_made([here, node("n2", 1, exact=True, model=model)], *fair)) == found
    closed = replace(node("n2", 1, exact=True, model="H100"), foreign=gpus(1))
    assert stopped(_made([here, closed], *fair)) == {}


@pytest.mark.parametrize(
    ("why", "asked"),
    [
        ("it may not be preempted", {"preemptible": False}),
        ("it must run on for now", {"min_runtime_s": NOW}),
        ("it may not be requeued", {"max_requeues": 0}),
        ("it is a lease", {"kind": Kind.GANG}),
    ],
)
def test_who_is_left_alone(why: str, asked: dict[str, object]) -> None:
    both = (_shares("a", 0.3, "b", **asked), _shares("b", 0.3, "a", preemptible=False))  # type: ignore[arg-type]
    assert stopped(_made(ONE, *both)) == {}, why
    assert stopped(_made(TWO, *both)) == {}, why


def test_nobody_is_unpacked_who_could_have_no_whole_gpu() -> None:
    assert stopped(_made(ONE, A, B, queues=[queue("q", 1.5, borrow=0)])) == {"a": StopCause.UNPACKED}
    assert stopped(_made(ONE, A, B, queues=[queue("q", 1.4, borrow=0)])) == {}, "with the other it would be too much"
    shut = replace(queue("q"), mode=QueueMode.HOLD)
    assert stopped(_made(ONE, A, B, queues=[shut])) == {}, "its queue would not let it in again"


def test_at_most_so_many_are_taken_apart_at_once_and_the_worst_first() -> None:
    worse = (_shares("c", 0.1, "d", device=1), _shares("d", 0.2, "c", device=1))
    one = replace(PROFILE, packing=replace(KNOBS, per_turn=1))
    assert list(stopped(_made(TWO, A, B, *worse, profile=one))) == ["c"]
    assert sorted(stopped(_made(TWO, A, B, *worse))) == ["a", "c"]


# ---------------------------------------------------------------- who is watched


def _watched(made: Plan) -> dict[str, Watch]:
    return {d.workload: d for d in made.decisions if isinstance(d, Watch)}


def test_news_of_who_is_beside_whom_is_noted_once() -> None:
    fresh = [(replace(w, pace=None), held) for w, held in (A, B)]
    made = _watched(_made(ONE, *fresh))
    assert made["a"] == Watch(A[0].id, 1, _beside("b"), True, "") and made["b"].beside == _beside("a")
    assert _watched(_made(ONE, A, B)) == {}
    assert _watched(_made(ONE, *fresh, profile=DEFAULT)) == {}
    alone = _watched(_made(ONE, A))
    assert alone == {"a": Watch(A[0].id, 1, (), True, "")}
    coming = (replace(B[0], ready_s=None), B[1])
    assert {id: watch.ready for id, watch in _watched(_made(ONE, A, coming)).items()} == {"a": False, "b": False}
    again = (replace(B[0], attempt=2), replace(B[1], attempt=2))
    assert _watched(_made(ONE, A, again))["a"].beside == ((B[0].id, 2),)


def test_explain_says_who_shares_its_gpu() -> None:
    seen = snapshot(ONE, [A, B])
    (line,) = explain(A[0].id, plan(seen, DEFAULT), seen).lines
    assert line == "a is RUNNING in attempt 1 with 1 worker. It shares a GPU with b."


def test_documents_say_it_and_what_cannot_be_is_refused() -> None:
    head: dict[str, object] = {"apiVersion": "rayorch/v1", "kind": "Cluster", "metadata": {"name": "main"}}

    def knobs(**packing: object) -> PackingKnobs:
        made = parse_document({**head, "spec": {"packing": packing}})
        assert isinstance(made, ClusterDocument)
        return load_profile(made.to_core().profile).packing

    assert knobs() == PackingKnobs() and not PackingKnobs().unpack
    said = knobs(unpack=True, leastTogether=1.1, measure="5m", perTurn=2, cooldown="1h", worth=2)
    assert said == PackingKnobs(True, 1.1, 300.0, 2, 3600.0, 2.0)
    wrong = {"measure": "59s", "leastTogether": 2.1, "perTurn": 0, "cooldown": "soon", "worth": -1, "unpack": "maybe"}
    for key, value in wrong.items():
        with pytest.raises(SpecError, match=f"spec.packing.{key}"):
            knobs(**{key: value})


def test_whole_gpus_are_watched_for_what_their_kind_does_alone_and_gangs_are_not() -> None:
    whole = _shares("a", 1.0, gpu=1)
    assert list(_watched(_made(ONE, (replace(whole[0], pace=None), whole[1])))) == ["a"]
    gang, held = running("g", ["n1", "n1"], gpu=0.5)
    members = tuple(replace(member, devices=(0,), exact=True) for member in held.members)
    made = _watched(_made(ONE, (gang, replace(held, members=members))))
    assert made == {}
    beside = (replace(A[0], pace=None), replace(A[1], members=(replace(A[1].members[0], devices=(1,)),)))
    serve = running("s", ["n1"], gpu=0.5, kind=Kind.SERVE)
    there = (serve[0], replace(serve[1], members=(replace(serve[1].members[0], devices=(1,), exact=True),)))
    assert _watched(_made(TWO, beside, there)) == {"a": Watch(A[0].id, 1, _beside("s"), True, "")}, "it slows it"


# ---------------------------------------------------------------- afterwards


def test_who_was_unpacked_asks_for_a_whole_gpu_and_is_still_what_was_submitted() -> None:
    tree = QueueTree()
    asked = replace(A[0].spec, roles=(replace(A[0].spec.roles[0], bundle=Resources.of({"GPU": 0.5, "CPU": 2})),))
    tree.apply(Submitted(asked, 0.0))
    over = AttemptEnded(asked.id, 1, Move.REQUEUED, StopCause.UNPACKED, 143, "unpacked", NOW, NOW)
    back = advance(replace(A[0], spec=asked), over)
    assert back.spec.roles[0].bundle.to_floats() == {"GPU": 1.0, "CPU": 2.0} and back.asked == asked
    assert back.pace == Pace(alone=1000.0), "and its pace alone is kept"
    tree._put(back, NOW)  # what a replay comes to
    assert tree.submit(asked, NOW) == ()
    made = plan(snapshot(ONE, [B, back]), PROFILE)
    assert explain(back.id, made, snapshot(ONE, [B, back])).lines[1] == (
        "It asks for whole GPUs, and was submitted with parts: unpacked."
    )
    moved = advance(replace(A[0], spec=asked), replace(over, cause=StopCause.MOVED))
    assert moved.spec == asked and moved.asked is None
