"""Runs of different workloads must not meet in one folder: each would resume from the other's checkpoints."""

from __future__ import annotations

from rayorch.adapters.ray_train.controller import storage_name


def test_no_two_workloads_have_one_name_in_storage() -> None:
    ids = ["a b", "a_b", "a:b", "a-b", "\N{LATIN SMALL LETTER A WITH DIAERESIS}b"]
    assert len({storage_name(id) for id in ids}) == len(ids)
    assert storage_name("train-7.x") == "train-7.x"
    assert storage_name("a b").startswith("a_b-") and storage_name("a b") == storage_name("a b")
