"""The rank map as the work reads it: where each rank is, in order."""

from __future__ import annotations

from rayorch.core.grants import Grant

Entry = dict[str, str | int | None]


def rank_map(grant: Grant) -> list[Entry]:
    """One entry per seat that the attempt may use, by role and rank.

    `node`: Ray's id of its node; `path`: the domains of that node, outermost first ("z1/r3"); `group`, `bundle`: its
    placement group and its place in it; `channel`: the NVLink channel of its segment, null where it has none.
    """
    return [
        {
            "role": seat.role,
            "rank": seat.rank,
            "index": seat.index,
            "node": seat.node_id,
            "path": seat.path,
            "group": seat.group_id,
            "bundle": seat.bundle_index,
            "channel": seat.channel,
        }
        for seat in sorted(grant.seats, key=lambda seat: (seat.role, seat.rank))
    ]
