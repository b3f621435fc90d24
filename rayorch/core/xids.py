"""What NVIDIA's XID codes ask for: whom the error concerns, and what is to be done.

An XID is the number that the driver gives an error of a GPU. Source: NVIDIA's catalogue of XIDs ("immediate action"),
docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of 2025-10-29. Where the catalogue names a workflow
(45, 48, 74, 144 to 150, 154) the class here is what that workflow begins with. Codes that it calls unused are left
out, and count as unknown.
"""

from __future__ import annotations

from enum import StrEnum


class XidAction(StrEnum):
    """What has to happen before the device is as good as new."""

    RECORD = "record"  # nothing: it is only kept
    RESTART_APP = "restart_app"  # the application failed; the device goes on
    WATCH = "watch"  # a ticket: the device works, but somebody should look
    RESET_GPU = "reset_gpu"  # nothing new until the device has been reset
    REBOOT = "reboot"  # nothing new until the machine has been started anew
    UNKNOWN = "unknown"  # not in the table

    @property
    def fatal(self) -> bool:
        """Nothing new may use the device before somebody has acted."""
        return self in (XidAction.RESET_GPU, XidAction.REBOOT)


_CODES: dict[XidAction, str] = {
    XidAction.RECORD: "37 38 43-45 63 66 67 93 106 107 121 137 141 152-154 157 160 161",
    XidAction.RESTART_APP: "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
    XidAction.WATCH: "78 92 142 159 162-170",
    XidAction.RESET_GPU: "46 48 54 62 64 74 95 109 110 119 120 136 140 143-150 155 156 158 171 172",
    XidAction.REBOOT: "79 151",
}
"""92 is the catalogue's "ignore": a high rate of single-bit errors is worth a look. 54 (no auxiliary power) and the
links (74, 144 to 150) are no reset in the catalogue: until somebody has looked, the device is as little use. 154 only
announces that the recovery action has changed, and that is read by itself."""

_NAMES = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "pre-emptive clean-up",
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    63: "row remapping event",
    64: "row remapping failure",
    74: "NVLink error",
    78: "vGPU start error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch time-out",
    110: "security fault",
    119: "GSP RPC time-out",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    151: "key rotation error",
    154: "GPU recovery action changed",
    155: "NVLink error named by software",
    156: "resource retirement",
    158: "GPU fatal time-out",
    171: "uncorrectable DRAM error",
    172: "uncorrectable SRAM error",
}


def _expanded() -> dict[int, XidAction]:
    table: dict[int, XidAction] = {}
    for action, text in _CODES.items():
        for part in text.split():
            first, _, last = part.partition("-")
            for code in range(int(first), int(last or first) + 1):
                assert code not in table, f"XID {code} is in the table twice"
                table[code] = action
    return table


XID_ACTIONS = _expanded()


def xid_action(code: int) -> XidAction:
    """What an XID asks for; UNKNOWN for one that the table does not hold."""
    return XID_ACTIONS.get(code, XidAction.UNKNOWN)


def xid_text(code: int) -> str:
    """ "XID 79 (GPU has fallen off the bus)"."""
    name = _NAMES.get(code) or ("NVLink 5 error" if 144 <= code <= 150 else "")
    return f"XID {code} ({name})" if name else f"XID {code}"
