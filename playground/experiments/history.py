"""The history of experiments on this machine, in SQLite, and the locks that show whether their processes still run.

It lists running, stopped, failed and finished experiments. Nothing leaves the machine. PLAYGROUND_HISTORY names another
folder, or switches the history off.

A lock shows whether a process runs, because the operating system frees it however the process ends. Process numbers
are used again, and start times move with the clock.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import platformdirs
from filelock import FileLock, Timeout

from playground import validation
from playground.errors import PlaygroundError, check

PREFIX = "speculative-decoding-playground-"


class ProcessLocks:
    """Locks in a folder, one for each object of this class, in any process, whose `name` was read.

    Args:
        prefix: how the names of the lock files begin, in a folder that holds other files too.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self._folder, self._prefix = folder, prefix

    @cached_property
    def name(self) -> str:
        """The name of the lock that this object holds as long as it lives."""
        name = secrets.token_hex(8)
        self._held = FileLock(self._path(name), thread_local=False)
        self._held.acquire()
        return name

    def runs(self, name: str) -> bool:
        """Returns whether any object holds the lock of that name. Deletes the file of a lock that nobody holds."""
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
        """Releases the lock of `name` and deletes its file."""
        self._held.release()
        self._path(self.name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._prefix}{name}.lock"


class TemporaryFolder:
    """A folder that lasts as long as this object and its process. A killed process leaves its folder; making the next
    one deletes it.

    Args:
        parent: where to make it, by default where temporary files go.

    Attributes:
        path: the folder, readable for this user alone.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, parent: str | None = None) -> None:
        folder = Path(parent or tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        locks = ProcessLocks(folder, PREFIX)
        self.path = folder / f"{PREFIX}{locks.name}"  # its lock is held by now, so no other process deletes it
        self.path.mkdir(mode=0o700)
        weakref.finalize(self, _delete, self.path, locks)
        for name in {path.name.removeprefix(PREFIX).removesuffix(".lock") for path in folder.glob(f"{PREFIX}*")}:
            _sweep(folder / f"{PREFIX}{name}", locks, name)


def _delete(folder: Path, locks: ProcessLocks) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    locks.end()


def _sweep(folder: Path, locks: ProcessLocks, name: str) -> None:
    """Deletes a folder whose process has ended. Folders of other users cannot be opened, and remain."""
    try:
        if not locks.runs(name):
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return


COMPARE = "compare"  # the kind of a comparison; the others are those of KINDS
Status = Literal["running", "finished", "stopped", "failed"]
LISTED = "id, owner, kind, title, status, created, updated, fraction, note, process"
# `gone`: time of the deletion. `shared`: the name in links to it. `bytes`: size of the result. SQLite reads a row up to
# the last column that is requested, so the long ones are at the end.
TABLE = """
CREATE TABLE IF NOT EXISTS experiments (
    id TEXT PRIMARY KEY, owner TEXT, kind TEXT, title TEXT, status TEXT, created REAL, updated REAL, fraction REAL,
    note TEXT, process TEXT, gone REAL, shared TEXT UNIQUE, bytes INTEGER NOT NULL DEFAULT 0, work TEXT, result TEXT
)
"""
VERSION = 1  # the table's; 0 had no `gone`, `shared` and `bytes`, and a second table of deleted experiments
UPGRADE = f"""
INSERT OR IGNORE INTO experiments ({LISTED}, gone, bytes, work, result)
SELECT {LISTED}, {{gone}}, length(coalesce(result, '')), work, result FROM {{old}}
"""
UNDO_S = 600  # seconds in which a deleted experiment can be restored
EXPIRED = "DELETE FROM experiments WHERE updated < ? OR gone < ? RETURNING id"
# Shared runs are counted separately: the owner's next runs do not end a link.
CROWDED = """
DELETE FROM experiments WHERE id IN (
    SELECT id FROM (
        SELECT id,
            row_number() OVER (PARTITION BY owner, shared IS NULL ORDER BY created DESC) AS place,
            sum(bytes) OVER (PARTITION BY owner ORDER BY created DESC) AS own,
            sum(bytes) OVER (ORDER BY created DESC) AS total
        FROM experiments
    ) WHERE place > ? OR own > ? OR total > ?
) RETURNING id
"""
DAMAGED = ("malformed", "not a database", "corrupt", "decode")  # in SQLite's messages


@dataclass(frozen=True)
class Entry:
    """An experiment in a list. `created` and `updated` are seconds since 1970. `fraction`: how much of it is done.
    `note`: what it does now, or why it failed."""

    id: str
    owner: str
    kind: str
    title: str
    status: Status
    created: float
    updated: float
    fraction: float
    note: str


def folder() -> Path | None:
    """Returns the folder of the history; None where it is switched off."""
    named = os.environ.get("PLAYGROUND_HISTORY", "")
    if named.lower() == "off":
        return None
    default = platformdirs.user_data_dir("speculative-decoding-playground", appauthor=False)
    return Path(named or default).expanduser()


class History:
    """Experiments by their id. Every method takes the owner: "" is the user of this machine; on a public link each
    visitor is an owner, and none sees another's experiments.

    Args:
        folder: None stores everything in a temporary folder, which is deleted with this object.
        max_age_s: how long an experiment is stored after its last change.
        each: how many experiments of an owner are stored, and how many shared ones; the oldest are deleted first.
        each_bytes: how many bytes the results of an owner may take; the oldest are deleted first.
        room: how many bytes the results of all owners may take; the oldest are deleted first.

    Raises:
        PlaygroundError: by each method, too: the folder cannot be read or written, or the database is damaged.
    """

    def __init__(
        self,
        folder: Path | None,
        max_age_s: float = math.inf,
        each: float = math.inf,
        each_bytes: float = math.inf,
        room: float = math.inf,
    ) -> None:
        self.permanent = folder is not None
        self._max_age_s, self._most = max_age_s, (each, each_bytes, room)
        try:
            if folder is None:
                self._temporary = TemporaryFolder()
                folder = self._temporary.path
            self._folder = folder
            self._locks = ProcessLocks(folder / "running")
            for part in ("records", "running"):
                (folder / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlaygroundError(
                f"The history cannot be kept in {folder or 'a temporary folder'} ({error}). Set PLAYGROUND_HISTORY to "
                "a folder that can be written, or to off."
            ) from error
        with self._database() as database:
            _upgrade(database)

    def add(self, kind: str, title: str, work: Any, owner: str = "", values: Mapping[str, Any] | None = None) -> str:
        """Adds an experiment that runs in this process, and returns its id. `work` and `values`, those of its
        controls, are plain data; the methods of these names return them."""
        name, now = new_id(), time.time()
        title = self._distinct(title, owner)
        with self._database() as database:
            self._values(name).write_text(json.dumps(values or {}), encoding="utf-8")
            database.execute(
                f"INSERT INTO experiments ({LISTED}, work) VALUES (?, ?, ?, ?, 'running', ?, ?, 0, '', ?, ?)",
                (name, owner, kind, title, now, now, self._locks.name, json.dumps(work)),
            )
            self._make_room(database)
        return name

    def keep(self, kind: str, title: str, result: dict[str, Any], owner: str = "", name: str = "") -> str:
        """Adds a finished result, as plain data, and returns its id. `name`: the id of the owner's result that it
        replaces, if there is one."""
        name, now, data = name or new_id(), time.time(), json.dumps(result)
        title = self._distinct(title, owner, name)
        with self._database() as database:
            database.execute(
                f"INSERT INTO experiments ({LISTED}, bytes, work, result) "
                "VALUES (?, ?, ?, ?, 'finished', ?, ?, 1, '', ?, ?, 'null', ?) ON CONFLICT (id) DO UPDATE SET "
                "title = excluded.title, updated = excluded.updated, gone = NULL, bytes = excluded.bytes, "
                "result = excluded.result WHERE owner = excluded.owner",
                (name, owner, kind, title, now, now, self._locks.name, len(data), data),
            )
            self._make_room(database)
        return name

    def update(
        self,
        name: str,
        status: Status,
        *,
        fraction: float | None = None,
        note: str = "",
        result: dict[str, Any] | None = None,
    ) -> None:
        """Updates an experiment. Values of None do not change."""
        data = None if result is None else json.dumps(result)
        size = None if data is None else len(data)
        with self._database() as database:
            database.execute(
                "UPDATE experiments SET status = ?, updated = ?, fraction = coalesce(?, fraction), note = ?, "
                "process = ?, bytes = coalesce(?, bytes), result = coalesce(?, result) WHERE id = ?",
                (status, time.time(), fraction, note, self._locks.name, size, data, name),
            )

    def entries(self, owner: str = "", search: str = "") -> list[Entry]:
        """Returns the owner's experiments that contain all words of `search`, the newest first."""
        words = search.lower().split()
        found = self._select("owner = ?", owner)
        return [e for e in found if all(w in f"{e.id} {e.kind} {e.title} {e.status}".lower() for w in words)]

    def unfinished(self, work: Any, owner: str = "") -> str | None:
        """Returns the id of the newest experiment with this work that was stopped or failed; None if there is none."""
        found = self._select("owner = ? AND work = ?", owner, json.dumps(work))
        return next((e.id for e in found if e.status in ("stopped", "failed")), None)

    def entry(self, name: str, owner: str = "") -> Entry:
        """Returns an experiment as listed.

        Raises:
            PlaygroundError: the owner has no such experiment.
        """
        return next(iter(self._select("owner = ? AND id = ?", owner, name)), None) or self._missing(name)

    def work(self, name: str, owner: str = "") -> Any:
        """Returns the work that was given to `add`. Raises the errors of `entry`."""
        return self._json("work", name, owner)

    def result(self, name: str, owner: str = "") -> dict[str, Any] | None:
        """Returns the result as plain data; None if there is none (yet). Raises the errors of `entry`."""
        return self._json("result", name, owner)

    def started_with(self, name: str, owner: str = "") -> dict[str, Any]:
        """Returns the controls' values that it was started with; none if it was not started on the page. Raises the
        errors of `entry`."""
        self.entry(name, owner)
        path = self._values(name)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def record(self, name: str) -> Path:
        """Returns the path of the record that takes the experiment's rows as they come."""
        return self._folder / "records" / f"{name}.jsonl"

    def share(self, name: str, owner: str = "") -> str:
        """Returns the name, of 128 random bits, by which anybody finds this experiment. It does not change.

        Raises:
            PlaygroundError: the owner has no such experiment.
        """
        with self._database() as database:
            found = database.execute(
                "UPDATE experiments SET shared = coalesce(shared, ?) WHERE id = ? AND owner = ? AND gone IS NULL "
                "RETURNING shared",
                (secrets.token_hex(16), name, owner),
            ).fetchone()
        return found[0] if found else self._missing(name)

    def shared(self, name: str) -> Entry:
        """Returns the experiment that `share` gave this name.

        Raises:
            PlaygroundError: no experiment has it, or it was deleted.
        """
        return next(iter(self._select("shared = ?", name)), None) or self._missing(name)

    def delete(self, name: str, owner: str = "") -> None:
        """Deletes an experiment. It can be restored for UNDO_S, after which nothing of it is left.

        Raises:
            PlaygroundError: it runs, or the owner has no such experiment.
        """
        check(self.entry(name, owner).status != "running", f"{name} runs. Stop it before you delete it.")
        with self._database() as database:
            database.execute("UPDATE experiments SET gone = ? WHERE id = ?", (time.time(), name))

    def restore(self, name: str, owner: str = "") -> None:
        """Restores a deleted experiment.

        Raises:
            PlaygroundError: the owner deleted no such experiment in the last UNDO_S.
        """
        with self._database() as database:
            self._expire(database)
            found = database.execute(
                "UPDATE experiments SET gone = NULL WHERE id = ? AND owner = ? AND gone IS NOT NULL RETURNING id",
                (name, owner),
            ).fetchone()
        check(
            found is not None,
            f"{name} cannot be brought back: it was deleted more than {UNDO_S // 60} minutes ago, or never.",
        )

    def clear(self, owner: str = "") -> list[str]:
        """Deletes all of the owner's experiments but those that run, and returns their ids."""
        ended = [entry.id for entry in self.entries(owner) if entry.status != "running"]
        for name in ended:
            self.delete(name, owner)
        return ended

    def _select(self, where: str, *values: str) -> list[Entry]:
        """Returns the entries that match, the newest first."""
        query = f"SELECT {LISTED} FROM experiments WHERE gone IS NULL AND {where} ORDER BY created DESC"
        with self._database() as database:
            self._expire(database)
            return list(map(self._entry, database.execute(query, values).fetchall()))

    def _json(self, column: str, name: str, owner: str) -> Any:
        query = f"SELECT {column} FROM experiments WHERE gone IS NULL AND id = ? AND owner = ?"
        with self._database() as database:
            row = database.execute(query, (name, owner)).fetchone()
        if not row:
            return self._missing(name)
        try:
            return validation.mended(json.loads(row[0] or "null"))
        except ValueError:
            raise PlaygroundError(f"What the history has of {name} is damaged. Delete it, and run it again.") from None

    def _missing(self, name: str) -> Any:
        raise PlaygroundError(f"The history has no experiment {name}. It may have been deleted: look at its list.")

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        *values, process = row
        entry = Entry(*values)
        if entry.status == "running" and not self._locks.runs(process):
            return replace(entry, status="stopped", note="the process exited before the run finished")
        return entry

    def _expire(self, database: sqlite3.Connection) -> None:
        """Deletes expired experiments."""
        now = time.time()
        self._unlink(database.execute(EXPIRED, (now - self._max_age_s, now - UNDO_S)).fetchall())

    def _make_room(self, database: sqlite3.Connection) -> None:
        """Deletes expired experiments, and the oldest of those that exceed a limit."""
        self._expire(database)
        self._unlink(database.execute(CROWDED, self._most).fetchall())

    def _distinct(self, title: str, owner: str, but: str = "") -> str:
        """Returns the title, with a number if another experiment of the owner has it. `but`: the id of one that may
        have it."""
        taken = {entry.title for entry in self._select("owner = ? AND id != ?", owner, but)}
        numbered = (f"{title} ({n})" for n in itertools.count(2))
        return title if title not in taken else next(each for each in numbered if each not in taken)

    def _values(self, name: str) -> Path:
        return self._folder / "records" / f"{name}.asked.json"

    def _unlink(self, gone: list[tuple[str]]) -> None:
        """Deletes the files outside the database: the records, one or one for each stage, and the values of the
        controls."""
        with suppress(OSError):
            for (name,) in gone:
                for path in self.record(name).parent.glob(f"{name}.*"):
                    path.unlink(missing_ok=True)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Opens a connection for each use, because threads and processes share the file.

        Raises:
            PlaygroundError: the database cannot be read or written.
        """
        try:
            with closing(sqlite3.connect(self._folder / "history.sqlite", timeout=30)) as database, database:
                yield database
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error | OSError) -> PlaygroundError:
        reason = getattr(error, "strerror", None) or error
        if not self.permanent:
            return PlaygroundError(f"The history of this server cannot be used ({reason}). Save runs as files instead.")
        damaged = any(word in str(error) for word in DAMAGED)
        remedy = "Its file history.sqlite is damaged: move it away" if damaged else "Make room on its disk"
        return PlaygroundError(
            f"The history in {self._folder} cannot be used ({reason}). {remedy}, or set PLAYGROUND_HISTORY to another "
            "folder, or to off."
        )


def _upgrade(database: sqlite3.Connection) -> None:
    """Creates the table, or upgrades that of an earlier release."""
    database.execute("BEGIN IMMEDIATE")  # so that no other process does the same
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version >= VERSION:
        return
    earlier = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone()
    if earlier:
        database.execute("ALTER TABLE experiments RENAME TO earlier")
    database.execute(TABLE)
    if earlier:
        for old, gone in (("earlier", "NULL"), ("deleted", "gone")):
            database.execute(UPGRADE.format(old=old, gone=gone))
            database.execute(f"DROP TABLE {old}")
    database.execute(f"PRAGMA user_version = {VERSION}")


def new_id() -> str:
    """Returns a new id for an experiment."""
    return secrets.token_hex(4)


def open_history() -> History:
    """Returns the history of this machine, or a temporary one where it is switched off."""
    return History(folder())
