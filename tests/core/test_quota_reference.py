"""The quota tree answers what the naive reference answers, whatever the tree, and whatever was charged and refunded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.quota import Quota, QuotaTree
from rayorch.core.types import QueueId, QueueMode, QueueSpec, Resources, UserLimits
from tests.core.reference_quota import ReferenceQuota

PATHS = ("a", "a/b", "a/b/c", "a/d", "e")
NAMES = ("GPU", "GPU:H100", "licence")

amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), max_size=3).map(Resources.of_units)
some = st.none() | amounts
charges = st.tuples(st.sampled_from(PATHS), amounts, st.sampled_from(("ann", "bob")), st.integers(0, 1))


@st.composite
def trees(draw: st.DrawFn) -> list[QueueSpec]:
    """All paths, with limits that the door would take or that a lowered quota leaves behind."""
    users = st.builds(UserLimits, amounts, st.none() | st.integers(0, 3))
    return [
        QueueSpec(
            QueueId(path),
            draw(amounts),
            draw(some),
            draw(some),
            guaranteed=draw(amounts) if draw(st.booleans()) else Resources(),
            hard_cap=draw(some) if draw(st.booleans()) else None,
            per_user=draw(users) if draw(st.booleans()) else UserLimits(),
            mode=draw(st.sampled_from((QueueMode.OPEN, QueueMode.OPEN, QueueMode.OPEN, QueueMode.DELETING))),
        )
        for path in PATHS
    ]


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(0, 4), st.lists(charges, max_size=5), charges, st.sampled_from(NAMES))
def test_room_and_shortages_are_those_of_the_reference(
    specs: list[QueueSpec],
    licences: int,
    charged: list[tuple[str, Resources, str, int]],
    asked: tuple[str, Resources, str, int],
    name: str,
) -> None:
    countables = Resources.of_units({"licence": licences})
    quota, naive = Quota(QuotaTree(specs), countables), ReferenceQuota(specs, countables)
    for number, (path, amount, owner, attempts) in enumerate(charged):
        queue = QueueId(path)
        if number % 3 == 2 and naive.held:
            quota.refund(*naive.held.pop(0))
        elif number % 2 == 0 or naive.fits(queue, amount, owner, attempts):  # beyond all limits too: they were lowered
            quota.charge(queue, amount, owner, attempts)
            naive.held.append((queue, amount, owner, attempts))
        quota = quota.copy() if number % 2 else quota
    for spec in specs:
        assert quota.used_of(spec.id, name) == naive.used(spec.id, name)
        assert quota.headroom(spec.id, name) == naive.headroom(spec.id, name), spec.id
    path, amount, owner, attempts = asked
    fits = naive.fits(QueueId(path), amount, owner, attempts)
    assert quota.fits(QueueId(path), amount, owner, attempts) == fits
    assert (not quota.shortages(QueueId(path), amount, owner, attempts)) == fits


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(st.tuples(charges, st.booleans()), max_size=12))
def test_what_is_refunded_leaves_no_trace(
    specs: list[QueueSpec], steps: list[tuple[tuple[str, Resources, str, int], bool]]
) -> None:
    quota, kept = Quota(QuotaTree(specs)), Quota(QuotaTree(specs))
    for (path, amount, owner, attempts), goes in steps:
        quota.charge(QueueId(path), amount, owner, attempts)
        if not goes:
            kept.charge(QueueId(path), amount, owner, attempts)
    for (path, amount, owner, attempts), goes in steps:
        if goes:
            quota.refund(QueueId(path), amount, owner, attempts)
    for spec in specs:
        assert quota.used(spec.id) == kept.used(spec.id)
        assert quota.share(spec.id) == kept.share(spec.id)
        assert [quota.headroom(spec.id, name) for name in NAMES] == [kept.headroom(spec.id, name) for name in NAMES]
        assert quota.used_by(spec.id, "ann") == kept.used_by(spec.id, "ann")


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(charges, max_size=25))
def test_what_fits_one_after_the_other_never_exceeds_a_limit(
    specs: list[QueueSpec], asked: list[tuple[str, Resources, str, int]]
) -> None:
    """Hard caps, limits per user, and what the top-level queues deserve together."""
    quota = Quota(QuotaTree(specs))
    for path, amount, owner, attempts in asked:
        if quota.fits(QueueId(path), amount, owner, attempts):
            quota.charge(QueueId(path), amount, owner, attempts)
    for spec in specs:
        for name, most in spec.hard_cap or ():
            assert quota.used_of(spec.id, name) <= most
        for owner in ("ann", "bob"):
            count, held = quota.used_by(spec.id, owner)
            assert spec.per_user.max_running is None or count <= spec.per_user.max_running
            assert all(held.units(name) <= most for name, most in spec.per_user.resources)
    top = [spec for spec in specs if spec.parent is None]
    for name in NAMES:
        if all(spec.deserved.units(name) for spec in top):
            total = sum(spec.deserved.units(name) for spec in top if spec.mode is QueueMode.OPEN)
            assert sum(quota.used_of(spec.id, name) for spec in top) <= total


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(charges, max_size=20))
def test_a_guarantee_is_always_there_to_be_taken(
    specs: list[QueueSpec], asked: list[tuple[str, Resources, str, int]]
) -> None:
    """Where guarantees fit into what their parents deserve, and nothing caps those: whatever others have taken."""
    plain = [
        QueueSpec(s.id, s.deserved, s.borrow_limit, guaranteed=Resources.of_units({"GPU": 1}))
        for s in specs
        if "/" not in s.id or s.id in ("a/b", "a/d")
    ]
    plain = [
        QueueSpec(s.id, s.deserved + Resources.of_units({"GPU": 2}), s.borrow_limit, guaranteed=s.guaranteed)
        for s in plain
    ]
    quota, names = Quota(QuotaTree(plain)), [s.id for s in plain]
    for path, amount, _, _ in asked:
        queue = QueueId(path)
        if queue in names and queue != "a/d" and quota.fits(queue, amount):
            quota.charge(queue, amount)
    if quota.used_of(QueueId("a/d"), "GPU") == 0:
        assert quota.fits(QueueId("a/d"), Resources.of_units({"GPU": 1}))
