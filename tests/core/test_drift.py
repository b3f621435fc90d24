"""Nodes that should be alike and are not."""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.devices import DeviceReport
from rayorch.core.drift import drift
from rayorch.core.inventory import Inventory
from rayorch.core.sharing import MIB, MPS
from rayorch.core.types import Device, NodeSpec
from tests.build import node


def of(name: str, gpus: int = 8, gib: float = 80, links: int = 7, model: str = "H100", group: str = "") -> NodeSpec:
    devices = tuple(
        Device(i, model, f"GPU-{name}-{i}", memory_bytes=int(gib * 1024) * MIB, pci=f"0{i}", nvlink=tuple(range(links)))
        for i in range(gpus)
    )
    return replace(node(name, gpus, model=model), devices=devices, group=group)


def test_nodes_of_one_kind_say_nothing() -> None:
    assert drift([of("a"), of("b"), of("c", gib=80.2), of("d", model="A100", gpus=4)]) == {}


def test_the_few_are_told_what_the_many_have() -> None:
    found = drift([of("a"), of("b"), of("c", gib=94), of("d", gpus=7), of("e", links=0)])
    assert found == {
        "c": "GPU memory: 8 x 94 GiB, other nodes with H100 have 8 x 80 GiB",
        "d": "GPUs: 7, other nodes with H100 have 8; GPU memory: 7 x 80 GiB, other nodes with H100 have 8 x 80 GiB",
        "e": "NVLink neighbours of a GPU: 0, other nodes with H100 have 7",
    }


def test_groups_are_compared_within_themselves() -> None:
    nodes = [of("a", group="big"), of("b", group="big"), of("c", gpus=4, group="small"), of("d", gpus=4, group="small")]
    assert drift(nodes) == {}
    assert "group small" in drift([*nodes, of("e", gpus=2, group="small")])["e"]


def test_a_node_that_was_not_read_yet_differs_in_nothing_but_its_count() -> None:
    unread = replace(of("c"), devices=tuple(Device(i, "H100") for i in range(8)))
    assert drift([of("a"), of("b"), unread]) == {}


def test_sharing_that_only_some_do_is_said() -> None:
    shared = replace(of("c"), sharing=MPS)
    assert drift([of("a"), of("b"), shared]) == {"c": "sharing of GPUs: gpu-mps, other nodes with H100 have none"}


def test_the_inventory_notes_it_at_the_node_and_forgets_it_when_it_is_mended() -> None:
    plain = tuple(replace(of(name), devices=tuple(Device(i, "H100") for i in range(8))) for name in "abc")
    inventory = Inventory()
    inventory.observe(plain, 0.0)
    for name, gib in (("a", 80), ("b", 80), ("c", 94)):
        inventory.take_devices(of(name).id, DeviceReport(of(name, gib=gib).devices, sequence=1), 0.0)
    inventory.observe(plain, 1.0)
    notes = {n.id: n.device_note for n in inventory.nodes.values()}
    assert notes == {"a": "", "b": "", "c": "GPU memory: 8 x 94 GiB, other nodes with H100 have 8 x 80 GiB"}
    inventory.take_devices(of("c").id, DeviceReport(of("c").devices, sequence=2), 2.0)
    inventory.observe(plain, 3.0)
    assert [n.device_note for n in inventory.nodes.values()] == ["", "", ""]
