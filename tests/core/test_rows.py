"""Tables lend what they hold at one moment, and know what is new since another."""

from __future__ import annotations

import pickle
from typing import cast

import pytest

from rayorch.core.room import Room
from rayorch.core.rows import Rows, Table
from rayorch.core.types import NodeId, Resources
from tests.build import node


def test_rows_are_sorted_and_say_what_is_new() -> None:
    table: Table[str, str] = Table()
    table.put("b", "two")
    table.put("a", "one")
    before = table.version
    table.put("c", "three")
    table.put("a", "one")  # the same object: nothing new
    table.drop("b")
    rows = cast("Rows[str, str]", table.rows())

    assert tuple(rows) == ("one", "three")
    assert rows == ("one", "three")
    assert (len(rows), rows[0], rows[1:]) == (2, "one", ("three",))
    assert set(rows.changed_since(before) or ()) == {"b", "c"}
    assert pickle.loads(pickle.dumps(rows)) == ("one", "three")


def test_rows_that_were_lent_and_never_read_say_so_when_their_table_has_changed() -> None:
    table: Table[str, str] = Table()
    table.put("a", "one")
    read, unread = table.rows(), table.rows()
    assert read == ("one",)
    table.put("b", "two")

    assert tuple(read) == ("one",)
    with pytest.raises(RuntimeError, match="changed since"):
        tuple(unread)


def test_a_room_that_was_lent_comes_back_as_it_was() -> None:
    room = Room.of((node("n1"), node("n2")), (), 0.0)
    two = Resources.of({"GPU": 2})

    lent = room.lend()
    lent.take(NodeId("n1"), two)
    copy = lent.copy()
    lent.take(NodeId("n1"), two)
    copy.take(NodeId("n2"), two)
    first = room.before_loan()
    assert (lent.free_gpu_units, copy.free_gpu_units, first.free_gpu_units) == (40_000, 40_000, 80_000)
    room.reclaim()

    assert room.free_gpu_units == 80_000
    assert room.gpu_units(NodeId("n1")) == room.gpu_units(NodeId("n2")) == 40_000
