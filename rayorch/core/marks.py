"""Marks on policies: what a function says of itself, so that whoever asks it knows how long an answer holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

AnyPolicy = TypeVar("AnyPolicy", bound=Callable[..., object])


def marked(**says: object) -> Callable[[AnyPolicy], AnyPolicy]:
    """Mark a policy: each value becomes an attribute of the function."""

    def mark(policy: AnyPolicy) -> AnyPolicy:
        vars(policy).update(says)
        return policy

    return mark
