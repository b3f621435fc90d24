"""Where the published traces lie: `$RAYORCH_DATA`, else beside the project. None of it is in the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.source_tree import ROOT

DATA = Path(os.environ.get("RAYORCH_DATA") or ROOT.parent / "shared" / "data")


def needs(*names: str) -> pytest.MarkDecorator:
    """Skips a test, with the reason, where one of the files or folders is not there (docs/data.md says whence)."""
    missing = [name for name in names if not (DATA / name).exists()]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not in {DATA}; see docs/data.md")
