"""Ray's own names that several adapters need. The only adapter module that the others may import."""

from __future__ import annotations

HEAD_RESOURCE = "node:__internal_head__"
"""Every head node has one of it, whatever its id is: also the one that replaces a head that died."""

ON_HEAD = {HEAD_RESOURCE: 0.001}
"""What an actor asks for to be on the head."""
