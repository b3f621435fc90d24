"""Who imports this writes our values to other actors in the quick way (`core.pickling`)."""

from __future__ import annotations

from rayorch.core.allocations import AllocationChanges
from rayorch.core.codec import known_types
from rayorch.core.inventory import InventoryChanges
from rayorch.core.pickling import register
from rayorch.core.requests import AttemptRef, ReportRequest, StartRequest

register((*known_types(), AllocationChanges, InventoryChanges, AttemptRef, ReportRequest, StartRequest))
