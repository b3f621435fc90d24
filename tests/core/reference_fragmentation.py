"""A naive reference: how a task class stands to a node, and what of it it could not use, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from rayorch.core.placement import TaskClass


class Case(StrEnum):
    """How a task class stands to a node; see `rayorch.core.fragmentation`."""

    Q1 = "Q1"
    Q2 = "Q2"
    Q3 = "Q3"
    Q4 = "Q4"
    XL = "XL"
    XR = "XR"
    NA = "NA"


def case_of(task: TaskClass, model: str, cpu: int, devices: Sequence[int]) -> Case:
    """The case of a class on a node with `cpu` CPU units free and so much of each device."""
    enough = cpu >= task.cpu
    if not task.each:
        return Case.XL if enough else Case.XR
    if task.models and model not in task.models:
        return Case.NA
    if sum(free >= task.each for free in devices) >= task.count:
        return Case.Q3 if enough else Case.Q4
    return Case.Q2 if enough else Case.Q1


def unusable(task: TaskClass, model: str, cpu: int, devices: Sequence[int]) -> int:
    """F_n(m): the free GPU units of a node that a class could not use."""
    if case_of(task, model, cpu, devices) is Case.Q3:
        return sum(free for free in devices if free < task.each)
    return sum(devices)
