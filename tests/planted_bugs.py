"""Bugs of other schedulers, planted one at a time into a copy of the code, and the tests that must then fail.

Each is a small change of one place, or of some that say the same. A change whose place is gone must be planted anew:
then its test says so.
"""

from __future__ import annotations

from dataclasses import dataclass

SCENARIO = "tests/sim/test_engine_scenarios.py::test_what_happens_ends_well"


@dataclass(frozen=True)
class Planted:
    """In `file`, `old` becomes `new`, and what is in `also` likewise. `seen`: where such a bug was; `caught_by`: each
    of these tests must fail."""

    name: str
    seen: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]
    also: tuple[tuple[str, str], ...] = ()


def _scenario(name: str) -> str:
    return f"{SCENARIO}[{name}]"


BUGS = (
    Planted(
        "a fraction of a GPU fits the sum of what is free",
        "ray#20933, ray#48471",
        "rayorch/core/slot.py",
        "        return max(devices, default=0) >= fraction\n",
        "        return sum(devices) >= fraction\n",
        (_scenario("a_fraction_fits_a_device_not_a_sum"),),
    ),
    Planted(
        "nearly enough counts as enough",
        "volcano PR #1489, volcano#2527",
        "rayorch/core/slot.py",
        "            elif amounts.get(name, 0) < n:\n                return False\n        return not units",
        "            elif amounts.get(name, 0) + 100 < n:\n                return False\n        return not units",
        ("tests/core/test_allocator_reference.py",),
    ),
    Planted(
        "a gang is reserved in part",
        "volcano#2462, kube-batch#446",
        "rayorch/core/allocations.py",
        "            if not room.fits(id, bundle):\n                raise StalePlanError(",
        "            if not room.fits(id, bundle):\n                continue\n                raise StalePlanError(",
        ("tests/core/test_allocator_reference.py",),
    ),
    Planted(
        "equals evict each other",
        "kube-batch#376, kueue#14543",
        "rayorch/core/planning/victims.py",
        "    if _lowest_priority(draft) >= claim.priority:",
        "    if _lowest_priority(draft) > claim.priority:",
        (_scenario("a_gang_of_equal_priority_touches_nobody"),),
        (
            ("return _lowest_priority(draft) >= priority and", "return _lowest_priority(draft) > priority and"),
            ("        if spec.priority >= priority or", "        if spec.priority > priority or"),
        ),
    ),
    Planted(
        "a preemption counts as a failure",
        "spur PR #450, ray PR #41285, jobset#1117",
        "rayorch/core/attempts.py",
        "    own_failure = event.cause is None and event.move in",
        "    own_failure = event.cause is not StopCause.NODE_LOST and event.move in",
        (_scenario("being_preempted_is_no_failure"),),
    ),
    Planted(
        "a victim goes to the end of its queue",
        "determined-ai/determined#3340",
        "rayorch/core/attempts.py",
        "        requeued_s=event.at_s,\n",
        "        requeued_s=event.at_s,\n        submitted_s=event.at_s,\n",
        (_scenario("the_newest_is_evicted_and_the_oldest_resumes_first"),),
    ),
    Planted(
        "only the low byte of a priority counts",
        "KAI change log",
        "rayorch/policies/order/priority.py",
        "    return (-workload.spec.priority, workload.submitted_s)\n",
        "    return (-(workload.spec.priority & 255), workload.submitted_s)\n",
        (_scenario("priorities_count_in_full"),),
    ),
    Planted(
        "nodes of an unknown domain are one domain",
        "NVIDIA-NeMo/RL PR #2924",
        "rayorch/core/topology.py",
        "            for level, value in node.topology:\n",
        '            for level, value in node.topology or (("rack", "unknown"),):\n',
        (_scenario("nodes_of_an_unknown_domain_are_in_none"),),
    ),
    Planted(
        "a cordoned node counts as free",
        "kueue PR #4181",
        "rayorch/core/room.py",
        "    return node.health is NodeHealth.OK and node.blocked_until_s",
        "    return node.health is not NodeHealth.LOST and node.blocked_until_s",
        (_scenario("only_the_present_state_of_a_node_counts"),),
    ),
    Planted(
        "a start is committed onto a node that was cordoned since",
        "kueue PR #14118",
        "rayorch/core/queues.py",
        "        check_open(placement, self._cordons)\n",
        "",
        ("tests/core/test_queues.py::test_no_seat_is_committed_on_a_node_that_was_cordoned_since_the_decision",),
    ),
    Planted(
        "a decision on old facts is committed",
        "kueue PR #6221, Slurm 25.11.3 release notes",
        "rayorch/core/commits.py",
        "    if start.attempt != workload.attempt + 1:\n",
        "    if start.attempt <= 0:\n",
        ("tests/core/test_queues.py::test_a_stale_start_is_refused",),
    ),
    Planted(
        "an end of the journal that is missing goes unnoticed",
        "volcano#5174",
        "rayorch/actors/journal.py",
        "        if mark is not None and mark.sequence > self._sequence:\n",
        "        if mark is not None and mark.sequence > self._sequence + 1:\n",
        ("tests/sim/test_crash_points.py::test_an_end_that_was_acknowledged_and_is_missing_is_refused",),
    ),
    Planted(
        "what was cancelled while it started goes on",
        "spur PR #115, skypilot#4410, ray#27743",
        "rayorch/core/planning/heal.py",
        "    if not workload.cancel_requested:\n        return None\n    reason",
        "    if not workload.cancel_requested or workload.ready_s is None:\n        return None\n    reason",
        (_scenario("a_job_that_is_cancelled_while_it_is_placed_holds_nothing"),),
    ),
    Planted(
        "what is given back is given back twice",
        "Slurm 25.11.3 release notes, volcano#921",
        "rayorch/core/quota.py",
        "        self.charge(queue, amount.times(-1), owner, -attempts)\n",
        "        self.charge(queue, amount.times(-2), owner, -attempts)\n",
        ("tests/core/test_quota_reference.py::test_room_and_shortages_are_those_of_the_reference",),
    ),
    Planted(
        "nothing is kept for a gang in a stream of small jobs",
        "spur PR #732",
        "rayorch/core/planning/place.py",
        "    if claim.grows or is_small(claim) or claim.queue in draft.heads",
        "    if claim.grows or not is_small(claim) or claim.queue in draft.heads",
        (_scenario("a_gang_gets_its_turn_in_a_stream_of_small_jobs"),),
    ),
    Planted(
        "what waits is counted one short",
        "kueue#1937",
        "rayorch/core/queue_books.py",
        "self.pending(above.id) + more > above.max_pending:\n",
        "self.pending(above.id) + more > above.max_pending + 1:\n",
        (_scenario("what_waits_is_counted_once"),),
    ),
    Planted(
        "a hopeless job at the head keeps its queue from reclaiming",
        "volcano#3003",
        "rayorch/core/planner.py",
        "    if not hopeless(draft, claim.shape) and not barred",
        "    if not barred",
        (_scenario("a_hopeless_job_at_the_head_keeps_nobody_from_reclaiming"),),
    ),
    Planted(
        "a new attempt starts while the old one may still run",
        "kueue PR #9364",
        "rayorch/core/endings.py",
        "        earliest_s = max(earliest_s, lease_end_s(workload, profile))\n",
        "        earliest_s = max(earliest_s, now_s)\n",
        ("tests/core/test_reconcile.py",),
    ),
)
