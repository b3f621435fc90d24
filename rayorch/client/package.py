"""A working directory as an archive that is named by its content, in the form that Ray unpacks."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from rayorch.core.errors import SpecError

MAX_PACKAGE_BYTES = 500 * 1024 * 1024
MAX_FILES = 50_000
SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache"})
GIT_TIMEOUT_S = 30.0
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can name: equal content, equal archive


def package(folder: Path | None, extra: Mapping[str, bytes] | None = None) -> tuple[str, bytes]:
    """(package name, archive) of a folder and some further files; SpecError when it is missing or too large.

    Files that git ignores are left out, as are version control's and Python's own.
    """
    buffer = io.BytesIO()
    total = 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, mode in _contents(folder, extra or {}):
            total += len(data)
            if total > MAX_PACKAGE_BYTES:
                raise SpecError("working_dir", f"is larger than {MAX_PACKAGE_BYTES} bytes; put data elsewhere")
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = mode << 16
            archive.writestr(entry, data)
    data = buffer.getvalue()
    return f"_ray_pkg_{hashlib.sha256(data).hexdigest()[:32]}.zip", data


def _contents(folder: Path | None, extra: Mapping[str, bytes]) -> Iterator[tuple[str, bytes, int]]:
    if folder is not None:
        if not folder.is_dir():
            raise SpecError("working_dir", f"is no folder: {folder}")
        for count, path in enumerate(sorted(_files(folder))):
            if count >= MAX_FILES:
                raise SpecError("working_dir", f"has more than {MAX_FILES} files")
            name = path.relative_to(folder).as_posix()
            if name not in extra:
                yield name, path.read_bytes(), 0o100755 if os.access(path, os.X_OK) else 0o100644
    for name in sorted(extra):
        yield name, extra[name], 0o100644


def _files(folder: Path) -> Iterator[Path]:
    tracked = _known_to_git(folder)
    if tracked is not None:
        yield from tracked
        return
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not (here / f / "pyvenv.cfg").exists()]
        yield from (here / name for name in files if (here / name).is_file())


def _known_to_git(folder: Path) -> list[Path] | None:
    """The files that git would keep, None when it is no git checkout (or there is no git)."""
    if not any((parent / ".git").exists() for parent in (folder.absolute(), *folder.absolute().parents)):
        return None
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    paths = [folder / os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    found = [path for path in paths if path.is_file()]
    # A folder that git ignores as a whole (a build folder, a temporary one) was still named on purpose.
    return found or None
