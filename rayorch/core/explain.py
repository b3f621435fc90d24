"""What each reason to wait means, what ends it, and the whole story of one workload from a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rayorch.core.decisions import Plan, Start, Wait, WaitReason
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import State, StopCause, Workload, WorkloadId

SENTENCES: Mapping[WaitReason, str] = {
    WaitReason.QUOTA: "The queue, or one above it, may hold no more.",
    WaitReason.USER_LIMIT: "Its owner holds, or runs, as much in that queue as each user may.",
    WaitReason.COUNTABLES: "The cluster has no more of what it counts as a whole.",
    WaitReason.QUEUE_CLOSED: "Its queue, or one above it, starts nothing.",
    WaitReason.BUDGET: "Its queue, or one above it, has used up its GPU-hours.",
    WaitReason.PRIORITY: "Others go first and take the room.",
    WaitReason.BEHIND_HEAD: "Its queue keeps a strict order, and one ahead of it can't start yet.",
    WaitReason.RESOURCES: "Not enough is free in all.",
    WaitReason.FRAGMENTED: "Enough is free, but not in pieces of the size that it needs.",
    WaitReason.ACCELERATOR: "Room is free, but not enough of it on GPUs of one model that it may have.",
    WaitReason.TOPOLOGY: "Enough is free, but not within one domain of the level that it requires.",
    WaitReason.NODES_UNAVAILABLE: "It would fit if nodes that are cordoned, draining or blocked took work again.",
    WaitReason.FOREIGN_USE: "It would fit if GPUs that are used outside our grants came back.",
    WaitReason.RELEASING: "Its room is being freed.",
    WaitReason.RESERVED_FOR_HEAD: "What is free is held for a workload ahead of it.",
    WaitReason.APPLICATIONS: "Applications hold what it needs, and they don't end by themselves.",
    WaitReason.PREEMPTION_DELAY: "It evicts nobody yet, so that nodes can be added first.",
    WaitReason.BACK_OFF: "It failed a moment ago and waits before the next attempt.",
    WaitReason.LEASE: "A former attempt that contact was lost with may still run until its lease ends.",
    WaitReason.BEGIN_TIME: "It was asked to begin later.",
    WaitReason.DEPENDENCY: "It waits for what must have happened to other workloads.",
    WaitReason.ARRAY: "It is an array: its entries start one by one, and have reasons of their own.",
    WaitReason.ARRAY_LIMIT: "As many entries of its array run as may at a time.",
    WaitReason.RESERVATION: "The reservation that it names has not begun, or has no room for it now.",
    WaitReason.SET_ASIDE: "What is free is set aside for reservations.",
    WaitReason.JOINT: "It starts together with other submissions, which are not there or can't start yet.",
    WaitReason.NEVER_FITS_NOW: "The nodes that exist could never take it.",
    WaitReason.PROVISIONING: "Nodes for it have been ordered and are on their way.",
    WaitReason.CELL_OWED: "It would fit, but would break a cell owed to another queue, for which it can't be stopped.",
    WaitReason.CAPACITY_REFUSED: "The node groups that could take it have nothing to give for now.",
    WaitReason.CAPACITY_LIMIT: "The node groups that could take it are at their maximum.",
    WaitReason.CAPACITY_BUSY: "Nodes for it are asked for later: one change at a time, and gangs in their order.",
    WaitReason.CAPACITY_UNKNOWN: "Who provides nodes can't be read, so none are asked for.",
    WaitReason.SYNCING: "After a restart the books are being compared with the world.",
    WaitReason.DEVICE_BINDING_UNAVAILABLE: "It asks for particular devices, which takes nodes that name their GPUs.",
    WaitReason.STALE: "It was decided on facts that changed before the commit, and is planned again at once.",
    WaitReason.PLANNING: "It was accepted a moment ago and has not been looked at yet.",
}
"""One sentence per reason; a test keeps it complete."""

UNBLOCKS: Mapping[WaitReason, str] = {
    WaitReason.QUOTA: "work in that queue ends, others lend more, or the queue's share is raised",
    WaitReason.USER_LIMIT: "work of the same owner ends, or the limit per user is raised",
    WaitReason.COUNTABLES: "work that holds some ends, or the cluster is given more",
    WaitReason.QUEUE_CLOSED: "the queue's mode is set to open, or the workload is submitted to another queue",
    WaitReason.BUDGET: "the next period begins, or the budget is raised",
    WaitReason.PRIORITY: "those ahead finish, or its own priority is raised",
    WaitReason.BEHIND_HEAD: "the one ahead starts or is cancelled, or the queue is no longer strict",
    WaitReason.RESOURCES: "running work ends or shrinks, or nodes are added",
    WaitReason.FRAGMENTED: "neighbouring seats on one node come free, or it asks for smaller pieces",
    WaitReason.ACCELERATOR: "seats on GPUs of such a model come free, or it names further models",
    WaitReason.TOPOLOGY: "seats within one domain come free, or it prefers the level instead of requiring it",
    WaitReason.NODES_UNAVAILABLE: "those nodes are uncordoned, replaced or no longer blocked",
    WaitReason.FOREIGN_USE: "whoever uses these GPUs outside our grants gives them back",
    WaitReason.RELEASING: "those that leave have saved their work, at the latest by their deadline",
    WaitReason.RESERVED_FOR_HEAD: "the workload ahead starts or is cancelled",
    WaitReason.APPLICATIONS: "such an application gives replicas back or is stopped, or nodes are added",
    WaitReason.PREEMPTION_DELAY: "its preemption delay ends by itself, or room comes free",
    WaitReason.BACK_OFF: "the wait ends by itself",
    WaitReason.LEASE: "the lease ends by itself",
    WaitReason.BEGIN_TIME: "that time comes",
    WaitReason.DEPENDENCY: "that has happened; if it can't any more, the workload is cancelled",
    WaitReason.ARRAY: "its last entry has ended",
    WaitReason.ARRAY_LIMIT: "an entry of the array ends",
    WaitReason.RESERVATION: "the reservation begins, work in it ends, or it asks to run without it",
    WaitReason.SET_ASIDE: "the reservation ends, or seats come free elsewhere",
    WaitReason.JOINT: "the others of its joint gang are submitted, or nothing keeps them back any more",
    WaitReason.NEVER_FITS_NOW: "larger or more nodes join; capacity has been asked for",
    WaitReason.PROVISIONING: "its nodes join, at the latest by the order's deadline",
    WaitReason.CELL_OWED: "other nodes come free or are added, or it may be stopped at any time",
    WaitReason.CAPACITY_REFUSED: "the back-off of a node group ends and it is asked again, or seats come free",
    WaitReason.CAPACITY_LIMIT: "running work ends, or a node group's maximum is raised",
    WaitReason.CAPACITY_BUSY: "what is under way in those node groups is over",
    WaitReason.CAPACITY_UNKNOWN: "the provider of nodes answers again",
    WaitReason.SYNCING: "the comparison ends by itself",
    WaitReason.DEVICE_BINDING_UNAVAILABLE: "nodes that name their GPUs (gpu0, gpu1, …), or one device alone",
    WaitReason.STALE: "the next turn of the loop",
    WaitReason.PLANNING: "the next turn of the loop",
}
"""What ends each reason, where nothing more exact is known."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a workload is and why. `lines` say it in words, the summary first.

    `position` counts from 1 among `of` waiting workloads. `starts_in_s`: estimated wait, None where nothing is known.
    """

    workload: WorkloadId
    state: State | None
    position: int | None
    of: int
    waits: tuple[Wait, ...]
    starts_in_s: float | None
    lines: tuple[str, ...]


def explain(workload: WorkloadId, plan: Plan, snapshot: Snapshot) -> Explanation:
    """All that the plan knows about one workload: its state, or all reasons why it waits."""
    found = next((w for w in snapshot.workloads if w.id == workload), None)
    waits = plan.waits.get(workload, ())
    position = plan.positions.get(workload)
    expected_s = plan.estimates.get(workload)
    starts_in_s = max(0.0, expected_s - plan.now_s) if expected_s is not None else None
    if found is None:
        lines = [f"{workload} has ended, or does not exist."]
    elif found.state is not State.PENDING:
        lines = [_live_line(found)]
    else:
        lines = _pending_lines(found, plan, waits, position, starts_in_s)
    state = found.state if found is not None else None
    return Explanation(workload, state, position, len(plan.positions), waits, starts_in_s, tuple(lines))


def sentence(wait: Wait) -> str:
    """One reason in words: what it means, the numbers, who is in the way, and what ends it."""
    parts = [f"{wait.reason.value}: {SENTENCES[wait.reason]} {wait.detail}."]
    if wait.blockers:
        parts.append(f"In the way: {', '.join(wait.blockers)}.")
    parts.append(f"Ends when: {wait.unblocks or UNBLOCKS[wait.reason]}.")
    return " ".join(parts)


def _live_line(workload: Workload) -> str:
    size = ", ".join(f"{count} {role}" for role, count in workload.size) or "no members"
    if workload.state is State.STOPPING and workload.stop is not None:
        return f"{workload.id} is being stopped ({workload.stop.cause.value}): {workload.stop.reason}."
    said = f"{workload.id} is {workload.state.value} in attempt {workload.attempt} with {size}."
    beside = workload.pace.beside if workload.pace is not None else ()
    return f"{said} It shares a GPU with {', '.join(id for id, _ in beside)}." if beside else said


def _pending_lines(
    workload: Workload, plan: Plan, waits: tuple[Wait, ...], position: int | None, starts_in_s: float | None
) -> list[str]:
    if any(isinstance(d, Start) and d.workload == workload.id for d in plan.decisions):
        return [f"{workload.id} starts in this turn."]
    if not waits:
        waits = (Wait(WaitReason.PLANNING, "it is not part of the last plan"),)
    where = f"number {position} of {len(plan.positions)} that wait" if position is not None else "waiting"
    when = f", expected to start in {starts_in_s:.0f} s" if starts_in_s is not None else ""
    return [f"{workload.id} is {where}{when}.", *_unpacked(workload), *(sentence(wait) for wait in waits)]


def _unpacked(workload: Workload) -> tuple[str, ...]:
    """That it asks for more than was submitted, and since what."""
    if workload.asked is None:
        return ()
    since = f": {workload.reason}" if workload.last_cause is StopCause.UNPACKED else ""
    return (f"It asks for whole GPUs, and was submitted with parts{since}.",)
