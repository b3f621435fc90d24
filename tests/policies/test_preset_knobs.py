"""Every knob that docs/presets.md names, through a Cluster document: the plan before and after."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest

from rayorch.config import ClusterDocument, load_documents
from rayorch.core.endings import back_off_s
from rayorch.core.history import Account, History
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import NodeSpec, QueueId, QueueSpec, Resources
from tests.scenes import NOW, gpus, node, pending, queue, running, snapshot, started, stopped
from tests.source_tree import ROOT

HOUR = 3600.0


def _profile(preset: str, **settings: object) -> Profile:
    """What a Cluster document with these settings (by path, dots as __) makes of a preset."""
    spec: dict[str, object] = {"policies": {"preset": preset}}
    for path, value in settings.items():
        *sections, name = path.split("__")
        here = spec
        for section in sections:
            here = here.setdefault(section, {})  # type: ignore[assignment]
        here[name] = value
    text = json.dumps({"apiVersion": "rayorch/v1", "kind": "Cluster", "metadata": {"name": "main"}, "spec": spec})
    (document,) = load_documents(text)
    assert isinstance(document, ClusterDocument)
    return document.to_core().load_profile()


def _scene(
    work: Iterable[object],
    gpu: int = 1,
    queues: Iterable[QueueSpec] = (),
    history: History | None = None,
    nodes: Iterable[NodeSpec] = (),
) -> Snapshot:
    seen = snapshot(nodes or [node("n1", gpu)], work, queues)
    return replace(seen, history=history or History())


def _starts(seen: Snapshot, profile: Profile) -> list[str]:
    return list(started(plan(seen, profile)))


@dataclass(frozen=True)
class Knob:
    """One row of the page. `before`, `after`: what starts (first) without and with the settings, or another scene."""

    name: str
    seen: Snapshot
    before: list[str]
    after: list[str]
    settings: dict[str, object] = field(default_factory=dict)
    with_it: Snapshot | None = None
    always: dict[str, object] = field(default_factory=dict)
    outcome: Callable[[Snapshot, Profile], list[str]] = _starts


def _by_model(path: str, model: str) -> QueueSpec:
    """A queue that deserves one GPU of a model and may borrow one of either."""
    both = Resources.of({"GPU:H100": 1, "GPU:A100": 1})
    return QueueSpec(QueueId(path), Resources.of({f"GPU:{model}": 1}), borrow_limit=both)


def _changed(seen: Snapshot, id: str, **changes: object) -> Snapshot:
    """The scene with one queue changed."""
    queues = tuple(replace(spec, **changes) if spec.id == id else spec for spec in seen.queues)  # type: ignore[arg-type]
    return replace(seen, queues=queues)


# ---------------------------------------------------------------- scenes that several presets share

OLD_AND_VIP = _scene([pending("old", submitted_s=1.0), pending("vip", submitted_s=2.0, priority=5)])
HEAD_TOO_LARGE = _scene(
    [pending("head", gpu=4, submitted_s=1.0), pending("small", submitted_s=2.0)],
    nodes=[node("n1", 2)],
)
LOW_RUNS = _scene([running("low", ["n1"]), pending("high", priority=5)])
OWNERS = _scene(
    [pending("a", owner="ann", submitted_s=1.0), pending("b", owner="bob", submitted_s=2.0)],
    history=History(accounts={(QueueId("q"), "ann"): Account(QueueId("q"), "ann", NOW, gpu_s=9.0)}),
)
BORROWERS = _scene(
    [
        running("ra", ["n1"], queue="A"),
        running("rb", ["n1"], queue="B"),
        pending("a", queue="A", submitted_s=1.0),
        pending("b", queue="B", submitted_s=2.0),
    ],
    gpu=3,
    queues=[queue("lender", 3), queue("A", 0, borrow=3), queue("B", 0, borrow=3)],
)
UNEVEN = _scene(
    [
        running("ra", ["n1", "n1"], queue="A"),
        running("rb", ["n1"], queue="B"),
        pending("a", queue="A", submitted_s=1.0),
        pending("b", queue="B", submitted_s=2.0),
    ],
    gpu=4,
    queues=[queue("lender", 4), queue("A", 0, borrow=4), queue("B", 0, borrow=4)],
)
MODELS = (node("a", 1, model="A100"), node("h", 1, model="H100"))
CHOOSY = pending("w", accelerators=("H100", "A100"), priority=5)
TWO_MODELS = _scene([CHOOSY], queues=[_by_model("q", "A100"), _by_model("lender", "H100")], nodes=MODELS)
BETTER_MODEL_IN_USE = _scene([running("low", ["h"]), CHOOSY], nodes=MODELS)
BETTER_MODEL_LENT = _scene(
    [running("lent", ["h"], queue="other"), CHOOSY],
    queues=[_by_model("q", "H100"), _by_model("other", "A100")],
    nodes=MODELS,
)
BORROWER_AND_OWNER = _scene(
    [pending("a", queue="A", submitted_s=1.0), pending("b", queue="B", submitted_s=2.0)],
    queues=[queue("A", 0, borrow=1), queue("B", 1)],
)
TWO_QUEUES = _scene(
    [pending(f"{q.lower()}{n}", queue=q, submitted_s=n) for q in "AB" for n in range(3)],
    gpu=3,
    queues=[queue("A"), queue("B")],
)
HALF_USED_AND_EMPTY = _scene([running("r", ["n1"]), pending("w")], nodes=[node("n1", 2), node("n2", 2)])


def _nodes(seen: Snapshot, profile: Profile) -> list[str]:
    return started(plan(seen, profile))["w"]


def _stops(seen: Snapshot, profile: Profile) -> list[str]:
    return list(stopped(plan(seen, profile)))


def _first(seen: Snapshot, profile: Profile) -> list[str]:
    return _starts(seen, profile)[:1]


def _waits(seen: Snapshot, profile: Profile) -> list[str]:
    """Not of a plan: the seconds before the first retry."""
    return [f"{back_off_s(1, profile):g}"]


def _preemption(on: bool) -> Knob:
    return Knob("preemption", LOW_RUNS, ["low"] * (not on), ["low"] * on, {"preemption": on}, outcome=_stops)


def _score(name: str, before: str, after: str) -> Knob:
    settings = {"policies__score": f"rayorch.policies.place.{name}:score"}
    return Knob("policies.score", HALF_USED_AND_EMPTY, [before], [after], settings, outcome=_nodes)


def _order(name: str, seen: Snapshot, before: str, after: str) -> Knob:
    return Knob(
        "policies.order", seen, [before], [after], {"policies__order": f"rayorch.policies.order.{name}"}, outcome=_first
    )


def _queue_order(name: str, seen: Snapshot, before: list[str], after: list[str]) -> Knob:
    settings = {"policies__queueOrder": f"rayorch.policies.queue_order.{name}"}
    return Knob("policies.queueOrder", seen, before, after, settings)


STRICT = Knob("queue.strict", HEAD_TOO_LARGE, ["small"], [], with_it=_changed(HEAD_TOO_LARGE, "q", strict=True))
STRICT_FIFO = Knob("ordering.strictFifo", HEAD_TOO_LARGE, ["small"], [], {"ordering__strictFifo": True})
FAIR = {"policies__queueOrder": "rayorch.policies.queue_order.share:key"}
AFS = {"policies__order": "rayorch.policies.order.usage:key"}
AGEING = {"policies__order": "rayorch.policies.order.ageing:key"}

# ---------------------------------------------------------------- default

DEFAULT_KNOBS = [
    _order("fifo:key", OLD_AND_VIP, "vip", "old"),
    _queue_order("plain:key", BORROWER_AND_OWNER, ["b"], ["a"]),
    _score("spread", "n1", "n2"),
    STRICT_FIFO,
    _preemption(False),
    STRICT,
    Knob("queue.weight", BORROWERS, ["a"], ["b"], with_it=_changed(BORROWERS, "B", weight=2)),
]

# ---------------------------------------------------------------- Kueue

USED_LONG_AGO = replace(
    OWNERS,
    history=History(
        accounts={
            (QueueId("q"), "ann"): Account(QueueId("q"), "ann", NOW, gpu_s=9.0),
            (QueueId("q"), "bob"): Account(QueueId("q"), "bob", NOW - 100, gpu_s=10.0),
        }
    ),
)
HOLDS = _scene(
    [
        running("r", ["n1", "n1"], owner="bob"),
        pending("a", owner="ann", submitted_s=1.0),
        pending("b", owner="bob", submitted_s=2.0),
    ],
    gpu=3,
    history=History(accounts={(QueueId("q"), "ann"): Account(QueueId("q"), "ann", NOW, gpu_s=900.0)}),
)
FULL_A = _scene(
    [running("r", ["n1"], queue="A"), pending("a", queue="A")], gpu=2, queues=[queue("A", 1), queue("lender", 1)]
)


def _decayed(seen: Snapshot, profile: Profile) -> list[str]:
    """As the owner keeps it: with the profile's half-life."""
    return _first(replace(seen, history=replace(seen.history, half_life_s=profile.ordering.usage_half_life_s)), profile)


KUEUE_KNOBS = [
    STRICT,
    _queue_order("share:key", UNEVEN, ["a"], ["b"]),
    _order("usage:key", OWNERS, "a", "b"),
    Knob("ordering.usageHalfLife", USED_LONG_AGO, ["a"], ["b"], {"ordering__usageHalfLife": "1m"}, None, AFS, _decayed),
    Knob("ordering.usagePenalty", HOLDS, ["b"], ["a"], {"ordering__usagePenalty": "10m"}, None, AFS, _first),
    Knob("queue.weight", BORROWERS, ["a"], ["b"], {}, _changed(BORROWERS, "B", weight=2), FAIR),
    Knob("queue.borrowLimit", FULL_A, ["a"], [], with_it=_changed(FULL_A, "A", borrow_limit=gpus(0))),
    Knob("queue.lendLimit", FULL_A, ["a"], [], with_it=_changed(FULL_A, "lender", lend_limit=gpus(0))),
    _preemption(True),
    Knob("timing.retryBackoff", OLD_AND_VIP, ["60"], ["5"], {"timing__retryBackoff": "5s"}, outcome=_waits),
    Knob(
        "models.nextBeforeBorrowing",
        TWO_MODELS,
        ["h"],
        ["a"],
        {"models__nextBeforeBorrowing": True},
        outcome=_nodes,
    ),
    Knob(
        "models.evictBeforeNext",
        BETTER_MODEL_IN_USE,
        [],
        ["low"],
        {"models__evictBeforeNext": True},
        always={"preemption": True},
        outcome=_stops,
    ),
    Knob(
        "models.evictBeforeBorrowing",
        BETTER_MODEL_LENT,
        [],
        ["lent"],
        {"models__evictBeforeBorrowing": True},
        always={"preemption": True},
        outcome=_stops,
    ),
]

# ---------------------------------------------------------------- KAI

SURPLUS = _scene(
    [*(pending(f"a{n}", queue="A", submitted_s=n) for n in range(4)), *(pending(f"b{n}", queue="B") for n in range(4))],
    gpu=4,
    queues=[queue("A"), queue("B")],
)
USED_BY_A = replace(
    SURPLUS, history=History(accounts={(QueueId("A"), "x"): Account(QueueId("A"), "x", NOW - 6e5, gpu_s=4e6)})
)


def _counts(seen: Snapshot, profile: Profile) -> list[str]:
    """How many of each queue start."""
    began = _starts(
        replace(seen, history=replace(seen.history, half_life_s=profile.ordering.usage_half_life_s)), profile
    )
    return [f"{queue}{sum(id.startswith(queue) for id in began)}" for queue in ("a", "b")]


GPU_3 = (("GPU", 3),)
SCATTERED = _scene(
    [running("x", ["n1"]), running("y", ["n2"]), pending("large", gpu=2)], nodes=[node("n1", 2), node("n2", 2)]
)

KAI_KNOBS = [
    Knob(
        "queue.surplusPriority",
        SURPLUS,
        ["a2", "b2"],
        ["a0", "b4"],
        with_it=_changed(SURPLUS, "B", surplus_priority=1),
        outcome=_counts,
    ),
    Knob(
        "queue.weight", SURPLUS, ["a2", "b2"], ["a1", "b3"], with_it=_changed(SURPLUS, "B", weight=3), outcome=_counts
    ),
    Knob(
        "queue.weights",
        SURPLUS,
        ["a2", "b2"],
        ["a1", "b3"],
        with_it=_changed(SURPLUS, "B", weights=GPU_3),
        outcome=_counts,
    ),
    Knob("eviction.consolidationVictims", SCATTERED, ["y"], [], {"eviction__consolidationVictims": 0}, outcome=_stops),
    _order("usage:key", OWNERS, "a", "b"),
    _score("spread", "n1", "n2"),
    Knob(
        "ordering.shareByUsage",
        USED_BY_A,
        ["a2", "b2"],
        ["a1", "b3"],
        {"ordering__shareByUsage": 2},
        outcome=_counts,
    ),
    Knob(
        "ordering.usageHalfLife",
        USED_BY_A,
        ["a1", "b3"],
        ["a2", "b2"],
        {"ordering__usageHalfLife": "1h"},
        None,
        {"ordering__shareByUsage": 2},
        _counts,
    ),
]

# ---------------------------------------------------------------- Volcano

OLD_LOW = _scene([pending("old", submitted_s=NOW - 4 * HOUR), pending("vip", submitted_s=NOW, priority=5)])
VERY_OLD = _scene([pending("old", submitted_s=NOW - 6 * HOUR), pending("vip", submitted_s=NOW, priority=5)])
CPU_AND_GPU = _scene(
    [
        running("ra", ["n1"], queue="A", gpu=1, cpu=1),
        running("rb", ["n1"], queue="B", gpu=0, cpu=40),
        pending("a", queue="A", submitted_s=1.0),
        pending("b", queue="B", submitted_s=2.0),
    ],
    gpu=2,
    queues=[queue("A"), queue("B")],
)
VOLCANO_KNOBS = [
    Knob(
        "queue.weight",
        TWO_QUEUES,
        ["a0", "b0", "a1"],
        ["a0", "b0", "b1"],
        with_it=_changed(TWO_QUEUES, "B", weight=2),
    ),
    Knob(
        "queue.surplusPriority",
        TWO_QUEUES,
        ["a0", "b0", "a1"],
        ["b0", "b1", "b2"],
        with_it=_changed(TWO_QUEUES, "B", surplus_priority=1),
    ),
    _queue_order("deserved:key", BORROWER_AND_OWNER, ["a"], ["b"]),
    _order("ageing:key", VERY_OLD, "vip", "old"),
    Knob("ordering.pointsPerHour", OLD_LOW, ["vip"], ["old"], {"ordering__pointsPerHour": 2}, None, AGEING, _first),
    Knob("ordering.fairResources", CPU_AND_GPU, ["a"], ["b"], {"ordering__fairResources": ["GPU"]}),
    _score("spread", "n1", "n2"),
    _preemption(True),
]

# ---------------------------------------------------------------- YuniKorn

DESERVED = _changed(_changed(TWO_QUEUES, "A", deserved=gpus(3)), "B", deserved=gpus(3))
PRIORITIES = _scene([pending("a", queue="A"), pending("b", queue="B")], queues=[queue("A", 1), queue("B", 1)])
YUNIKORN_KNOBS = [
    _order("fifo:key", OLD_AND_VIP, "vip", "old"),
    _queue_order("plain:key", UNEVEN, ["b"], ["a"]),
    _score("best_fit", "n2", "n1"),
    Knob(
        "queue.deserved",
        DESERVED,
        ["a0", "b0", "a1"],
        ["a0", "b0", "b1"],
        with_it=_changed(DESERVED, "B", deserved=gpus(6)),
    ),
    Knob("ordering.fairResources", CPU_AND_GPU, ["a"], ["b"], {"ordering__fairResources": ["GPU"]}),
    _preemption(False),
    Knob(
        "workload.priority",
        PRIORITIES,
        ["a"],
        ["b"],
        with_it=_scene(
            [pending("a", queue="A"), pending("b", queue="B", priority=1)], queues=[queue("A", 1), queue("B", 1)]
        ),
    ),
]

# ---------------------------------------------------------------- Slurm

NOTHING = {f"ordering__{name}": 0 for name in ("weightAge", "weightFairShare", "weightQueue", "weightPriority")}
LARGE_AND_SMALL = _scene([pending("s", 1, submitted_s=1.0), pending("w", 2, submitted_s=2.0)], gpu=2)
BIG_CPU = _scene([pending("a", submitted_s=1.0), pending("b", cpu=32, submitted_s=2.0)])
PARTITIONS = _scene(
    [pending("a", queue="A", submitted_s=NOW), pending("b", queue="B", submitted_s=NOW)],
    queues=[queue("A"), queue("B")],
)
SHARES = replace(
    PARTITIONS,
    history=History(
        accounts={
            (QueueId("A"), ""): Account(QueueId("A"), "", NOW, gpu_s=10.0),
            (QueueId("B"), ""): Account(QueueId("B"), "", NOW, gpu_s=15.0),
        }
    ),
)
CPU_USED = replace(
    OWNERS, history=History(accounts={(QueueId("q"), "ann"): Account(QueueId("q"), "ann", NOW, cpu_s=9.0)})
)


def _only(**settings: object) -> dict[str, object]:
    """Slurm's own weights, all zero, but for these."""
    return {**NOTHING, **{f"ordering__{name}": value for name, value in settings.items()}}


AGED = _scene([pending("old", submitted_s=NOW - HOUR), pending("vip", submitted_s=NOW, priority=1)])
SLURM_KNOBS = [
    Knob("ordering.weightAge", AGED, ["vip"], ["old"], {"ordering__weightAge": 1e6}),
    Knob(
        "ordering.ageMax",
        AGED,
        ["vip"],
        ["old"],
        {"ordering__ageMax": "1h"},
        None,
        {"ordering__weightPriority": 90_000},
    ),
    Knob("ordering.weightFairShare", OWNERS, ["b"], ["a"], {"ordering__weightFairShare": 0}),
    Knob("ordering.usageHalfLife", USED_LONG_AGO, ["a"], ["b"], {"ordering__usageHalfLife": "1m"}, outcome=_decayed),
    Knob("ordering.usageCpuWeight", CPU_USED, ["a"], ["b"], {"ordering__usageCpuWeight": 1}),
    Knob("ordering.weightSize", LARGE_AND_SMALL, ["s"], ["w"], _only(weightSize=10), None, NOTHING, _first),
    Knob(
        "ordering.favorSmall",
        LARGE_AND_SMALL,
        ["w"],
        ["s"],
        {"ordering__favorSmall": True},
        None,
        _only(weightSize=10),
        _first,
    ),
    Knob(
        "ordering.weightQueue",
        _changed(PARTITIONS, "B", surplus_priority=1),
        ["b"],
        ["a"],
        {"ordering__weightQueue": 0},
    ),
    Knob("ordering.weightPriority", OLD_AND_VIP, ["vip"], ["old"], {"ordering__weightPriority": 0}),
    Knob(
        "ordering.priorityMax",
        _scene([pending("old", submitted_s=NOW - 100 * HOUR), pending("vip", submitted_s=NOW, priority=5)]),
        ["old"],
        ["vip"],
        {"ordering__priorityMax": 5},
    ),
    Knob("ordering.weightResources", BIG_CPU, ["a"], ["b"], _only(weightResources={"CPU": 5}), None, NOTHING),
    STRICT_FIFO,
    Knob("queue.weight", SHARES, ["a"], ["b"], with_it=_changed(SHARES, "B", weight=2)),
    Knob("queue.surplusPriority", PARTITIONS, ["a"], ["b"], with_it=_changed(PARTITIONS, "B", surplus_priority=1)),
    _preemption(True),
    Knob("timing.retryBackoff", OLD_AND_VIP, ["120"], ["5"], {"timing__retryBackoff": "5s"}, outcome=_waits),
]

KNOBS = {
    "default": DEFAULT_KNOBS,
    "kueue": KUEUE_KNOBS,
    "kai": KAI_KNOBS,
    "volcano": VOLCANO_KNOBS,
    "yunikorn": YUNIKORN_KNOBS,
    "slurm": SLURM_KNOBS,
}


@pytest.mark.parametrize(
    ("preset", "knob"), [pytest.param(p, k, id=f"{p}-{k.name}") for p, knobs in KNOBS.items() for k in knobs]
)
def test_a_documented_knob_changes_what_happens(preset: str, knob: Knob) -> None:
    before = knob.outcome(knob.seen, _profile(preset, **knob.always))
    after = knob.outcome(knob.with_it or knob.seen, _profile(preset, **{**knob.always, **knob.settings}))
    assert (before, after) == (knob.before, knob.after)
    assert before != after


def test_the_page_names_the_knobs_that_are_tested_and_no_others() -> None:
    text = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    for preset, knobs in KNOBS.items():
        section = text.partition(f"\n## {preset}\n")[2].partition("\n## ")[0]
        assert set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)) == {knob.name for knob in knobs}, preset
