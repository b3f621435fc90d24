"""A copy's values in order, after any changes, as a sort would give them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.in_order import FEW, InOrder

KEYS = st.integers(0, 3 * FEW)
CHANGES = st.lists(st.tuples(st.booleans(), st.lists(KEYS, max_size=2 * FEW)), max_size=8)


@given(CHANGES)
def test_the_row_is_what_a_sort_would_give(changes: list[tuple[bool, list[int]]]) -> None:
    copy: dict[int, object] = {}
    order = InOrder(copy)
    for come, keys in changes:
        for key in keys:
            if come:
                copy[key] = object()
            else:
                copy.pop(key, None)
        order.touch([*keys, *keys[:1]])
        assert order.row == tuple(copy[key] for key in sorted(copy))


def test_what_did_not_change_is_the_same_object() -> None:
    copy = {2: "b", 1: "a"}
    order = InOrder(copy)
    row = order.row
    order.touch([1, 5])
    assert order.row is row == ("a", "b")
    copy[1] = "c"
    order.touch([1])
    assert order.row == ("c", "b")
