"""What the demo measured, as a table for the terminal and as one HTML file with a picture of the GPU timeline."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from examples.demo.story import Told
from examples.demo.watch import Watch

COLOURS = ("#3b6fb6", "#d9822b", "#4c9a5b", "#a14f9b", "#b0413e")
ROW_PX, LEFT_PX, WIDTH_PX = 18, 90, 1000


@dataclass(frozen=True, slots=True)
class Line:
    """One measured thing, what was wanted of it (empty: nothing), and whether that is met."""

    name: str
    value: str
    wanted: str = ""
    met: bool = True


def lines(told: Told) -> tuple[Line, ...]:
    """The table."""
    grants = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in told.grant_s)
    frees = ", ".join(f"{seconds:.2f} s" for seconds in told.free_s)
    return (
        Line("accuracy on unseen digits", f"{told.accuracy:.3f}", "at least 0.95", told.accuracy >= 0.95),
        Line("steps lost to preemption", str(told.steps_lost_preemption), "0", told.steps_lost_preemption == 0),
        Line(
            "steps lost to the node",
            str(told.steps_lost_node),
            f"at most one checkpoint interval ({told.checkpoint_every})",
            0 <= told.steps_lost_node <= told.checkpoint_every,
        ),
        Line("requests", f"{told.requests}, {told.served_right:.1%} named rightly, median {told.request_p50_s:.2f} s"),
        Line("failed requests", str(len(told.failed_requests)), "0", not told.failed_requests),
        Line("exit code of `ray job submit`", str(told.sweep_exit), "0", told.sweep_exit == 0),
        Line("from request to grant", grants),
        Line("from preemption to GPUs free", frees, "measured", bool(told.free_s)),
        Line("from the node's death to training again", f"{told.recovery_s:.1f} s"),
        Line("training ran with", " → ".join(str(size) for size in told.sizes) + " workers"),
    )


def text_table(table: Sequence[Line]) -> str:
    """Plain columns."""
    width = max(len(line.name) for line in table)
    rows = []
    for line in table:
        verdict = "" if not line.wanted else f"   ({'ok' if line.met else 'MISSED'}: {line.wanted})"
        rows.append(f"  {line.name:<{width}}  {line.value}{verdict}")
    return "\n".join(rows)


def html_page(table: Sequence[Line], watch: Watch) -> str:
    """One file that needs nothing else."""
    rows = "".join(
        f"<tr class='{'' if line.met else 'missed'}'><td>{html.escape(line.name)}</td>"
        f"<td>{html.escape(line.value)}</td><td>{html.escape(line.wanted)}</td></tr>"
        for line in table
    )
    story = "".join(f"<li><b>{c.at_s:.1f} s</b> {html.escape(c.text)}</li>" for c in watch.changes)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rayorch demo</title><style>
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1120px; color: #222; }}
table {{ border-collapse: collapse; }} td {{ border-top: 1px solid #ddd; padding: 4px 14px 4px 0; }}
.missed td {{ color: #b0413e; font-weight: bold; }} svg text {{ font: 11px system-ui, sans-serif; }}
</style></head><body><h1>rayorch: the main job on one Ray cluster</h1>
<h2>Who held which GPU</h2>{_picture(watch)}
<h2>Measured</h2><table>{rows}</table><h2>Timeline</h2><ul>{story}</ul></body></html>
"""


def _picture(watch: Watch) -> str:
    """A row per device, a bar per holder."""
    spans, devices = watch.spans, sorted(watch.devices)
    holders = sorted({span.holder for span in spans})
    colour = {holder: COLOURS[n % len(COLOURS)] for n, holder in enumerate(holders)}
    end_s = max([span.ended_s for span in spans] + [change.at_s for change in watch.changes] + [1.0])
    scale = WIDTH_PX / end_s
    bars = []
    for row, (node, device) in enumerate(devices):
        top = 24 + row * ROW_PX
        bars.append(f"<text x='0' y='{top + 12}'>{html.escape(node)} GPU {device}</text>")
        bars.append(f"<rect x='{LEFT_PX}' y='{top}' width='{WIDTH_PX}' height='{ROW_PX - 3}' fill='#f0f0f0'/>")
        bars += [
            f"<rect x='{LEFT_PX + span.began_s * scale:.1f}' y='{top}' height='{ROW_PX - 3}' "
            f"width='{max(1.0, (span.ended_s - span.began_s) * scale):.1f}' fill='{colour[span.holder]}'>"
            f"<title>{html.escape(span.holder)}: {span.began_s:.1f} to {span.ended_s:.1f} s</title></rect>"
            for span in spans
            if (span.node, span.device) == (node, device)
        ]
    bottom = 24 + len(devices) * ROW_PX
    ticks = "".join(
        f"<text x='{LEFT_PX + at_s * scale:.0f}' y='{bottom + 14}'>{at_s} s</text>"
        for at_s in range(0, int(end_s) + 1, 20)
    )
    legend = "".join(
        f"<rect x='{LEFT_PX + n * 130}' y='4' width='12' height='12' fill='{colour[holder]}'/>"
        f"<text x='{LEFT_PX + n * 130 + 17}' y='14'>{html.escape(holder)}</text>"
        for n, holder in enumerate(holders)
    )
    size = f"viewBox='0 0 {LEFT_PX + WIDTH_PX + 10} {bottom + 22}' width='100%'"
    return f"<svg {size} role='img' aria-label='GPU timeline'>{legend}{''.join(bars)}{ticks}</svg>"
