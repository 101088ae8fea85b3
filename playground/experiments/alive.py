"""Whether the process that runs an experiment still does. The operating system frees a lock when its process ends,
however that happened; process numbers are used again, and when a process began moves with the clock."""

from __future__ import annotations

import secrets
from functools import cached_property
from pathlib import Path

from filelock import FileLock, Timeout


class Alive:
    """Locks in a folder: one for each object of this kind, in any process, that said its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def name(self) -> str:
        """Of the lock that this object holds for as long as it lives."""
        name = secrets.token_hex(8)
        self._held = FileLock(self._path(name), thread_local=False)
        self._held.acquire()
        return name

    def runs(self, name: str) -> bool:
        """Whether another object, or this one, holds the lock of that name. Of one that nobody holds, the file goes."""
        path = self._path(name)
        if not path.exists():
            return False
        try:
            with FileLock(path, timeout=0):
                path.unlink(missing_ok=True)
        except Timeout:
            return True
        return False

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.lock"
