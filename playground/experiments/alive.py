"""Whether the process that runs an experiment, or that made a temporary folder, still runs. The operating system frees
a lock when its process ends, however that happened; process numbers are used again, and when a process began moves with
the clock."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import weakref
from functools import cached_property
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX = "speculative-decoding-playground-"


class Alive:
    """Locks in a folder: one for each object of this kind, in any process, that said its name.

    Args:
        prefix: how the names of the files of these locks begin, in a folder that holds other files too.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self._folder, self._prefix = folder, prefix

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

    def end(self) -> None:
        """Gives the lock of `name` back, and deletes its file."""
        self._held.release()
        self._path(self.name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._prefix}{name}.lock"


class TemporaryFolder:
    """A folder for as long as this object and its process live. A killed process leaves its folder behind: making the
    next one deletes it.

    Args:
        parent: where to make it, by default where temporary files go.

    Attributes:
        path: readable for this user alone.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: str | None = None) -> None:
        folder = Path(parent or tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        alive = Alive(folder, PREFIX)
        self.path = folder / f"{PREFIX}{alive.name}"  # its lock is held by now, so that nobody takes it for left behind
        self.path.mkdir(mode=0o700)
        weakref.finalize(self, _delete, self.path, alive)
        for name in {path.name.removeprefix(PREFIX).removesuffix(".lock") for path in folder.glob(f"{PREFIX}*")}:
            _sweep(folder / f"{PREFIX}{name}", alive, name)


def _delete(folder: Path, alive: Alive) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    alive.end()


def _sweep(folder: Path, alive: Alive, name: str) -> None:
    """Deletes a folder whose process has ended. Those of other users cannot be opened, and stay."""
    try:
        if not alive.runs(name):
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return
