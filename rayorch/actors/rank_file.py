"""The rank map of an attempt as a file on the node of its runner: too large for a variable, and it changes."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from pathlib import Path

from rayorch.core.grants import Grant
from rayorch.core.rank_map import rank_map

log = logging.getLogger(__name__)


class RankFile:
    """A file in a folder of its own, which the command finds by RAYORCH_RANK_MAP; always whole when it is read.

    The work does not wait for a full disk: without the file it runs without the map.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "ranks.json"

    @staticmethod
    def make(grant: Grant) -> RankFile | None:
        """A new one that says what the grant says; None when it can't be written."""
        try:
            made = RankFile(Path(tempfile.mkdtemp(prefix="rayorch-ranks-")))
        except OSError as error:
            log.warning("there is no place for the rank map of %s: %r", grant.workload, error)
            return None
        if made.follow(grant):
            return made
        made.remove()
        return None

    def follow(self, grant: Grant) -> bool:
        """Say what the newest grant says; False when it can't be written, so that the file says what was."""
        fresh = self.path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(rank_map(grant)), encoding="utf-8")
            os.replace(fresh, self.path)
        except OSError as error:
            log.warning("the rank map of %s could not be written: %r", grant.workload, error)
            return False
        return True

    def remove(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._folder, ignore_errors=True)
