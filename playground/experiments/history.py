"""What was run on this machine: experiments that run, were stopped, failed or finished, in SQLite. Nothing leaves the
machine. PLAYGROUND_HISTORY names another folder, or switches the history off."""

from __future__ import annotations

import itertools
import json
import math
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import platformdirs

from playground import validation
from playground.errors import PlaygroundError, check
from playground.experiments.alive import Alive

COMPARE = "compare"  # the kind of a comparison; the others are kinds of jobs
Status = Literal["running", "finished", "stopped", "failed"]
TABLE = """
CREATE TABLE IF NOT EXISTS experiments (
    id TEXT PRIMARY KEY, owner TEXT, kind TEXT, title TEXT, status TEXT, created REAL, updated REAL, fraction REAL,
    note TEXT, process TEXT, work TEXT, result TEXT
)
"""
COLUMNS = "id, owner, kind, title, status, created, updated, fraction, note, process, work, result"
DELETED = f"CREATE TABLE IF NOT EXISTS deleted AS SELECT {COLUMNS}, 0.0 AS gone FROM experiments WHERE 0"
UNDO_S = 600  # seconds in which what was deleted can be brought back
CROWDED = """
DELETE FROM experiments WHERE id IN (
    SELECT id FROM (
        SELECT id, updated, row_number() OVER (PARTITION BY owner ORDER BY created DESC) AS place,
            sum(length(coalesce(result, ''))) OVER (ORDER BY created DESC) AS bytes
        FROM experiments
    ) WHERE updated < ? OR place > ? OR bytes > ?
) RETURNING id
"""
LISTED = "id, owner, kind, title, status, created, updated, fraction, note, process"


@dataclass(frozen=True)
class Entry:
    """An experiment in a list. `created` and `updated` are seconds since 1970. `fraction` of it is done. `note`: what
    it does now, or why it failed."""

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
    """Where the history is kept; None where it is switched off."""
    named = os.environ.get("PLAYGROUND_HISTORY", "")
    if named.lower() == "off":
        return None
    default = platformdirs.user_data_dir("speculative-decoding-playground", appauthor=False)
    return Path(named or default).expanduser()


class History:
    """Experiments by their id. Every method takes the owner: "" is whoever runs this machine, on a public link each
    visitor is one, and none sees what another's is.

    Args:
        folder: None keeps everything for as long as this object lives, and then deletes it.
        max_age_s: how long an experiment is kept after its last change.
        each: how many experiments of an owner are kept; the oldest go first.
        room: how many bytes the results of all owners may take; the oldest go first.

    Raises:
        PlaygroundError: the folder cannot be written.
    """

    def __init__(
        self, folder: Path | None, max_age_s: float = math.inf, each: float = math.inf, room: float = math.inf
    ) -> None:
        self.kept = folder is not None
        self._max_age_s, self._each, self._room = max_age_s, each, room
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="playground-", ignore_cleanup_errors=True)
            folder = Path(self._temporary.name)
        self._folder = folder
        self._alive = Alive(folder / "running")
        try:
            for part in ("records", "running"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            with self._database() as database:
                database.execute(TABLE)
                database.execute(DELETED)
        except (OSError, sqlite3.Error) as error:
            raise PlaygroundError(
                f"The history cannot be kept in {folder} ({error}). Set PLAYGROUND_HISTORY to a folder that can be "
                "written, or to off."
            ) from error

    def add(self, kind: str, title: str, work: Any, owner: str = "", asked: Mapping[str, Any] | None = None) -> str:
        """A new experiment that runs in this process, and its id. `work` is what `work` returns: plain data, as is
        `asked`: the values of its controls."""
        self._make_room()
        name, now = new_id(), time.time()
        title = self._distinct(title, owner)
        self._asked(name).write_text(json.dumps(asked or {}), encoding="utf-8")
        with self._database() as database:
            database.execute(
                "INSERT INTO experiments VALUES (?, ?, ?, ?, 'running', ?, ?, 0, '', ?, ?, NULL)",
                (name, owner, kind, title, now, now, self._alive.name, json.dumps(work)),
            )
        return name

    def keep(self, kind: str, title: str, result: dict[str, Any], owner: str = "", name: str = "") -> str:
        """A result that is finished, as plain data, and its id. `name`: the id of the owner's result that it replaces,
        if there is one."""
        name, now = name or new_id(), time.time()
        title = self._distinct(title, owner, name)
        with self._database() as database:
            database.execute(
                "INSERT INTO experiments VALUES (?, ?, ?, ?, 'finished', ?, ?, 1, '', ?, 'null', ?) ON CONFLICT (id) "
                "DO UPDATE SET title = excluded.title, updated = excluded.updated, result = excluded.result "
                "WHERE owner = excluded.owner",
                (name, owner, kind, title, now, now, self._alive.name, json.dumps(result)),
            )
        self._make_room()
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
        """What is None stays as it is."""
        data = None if result is None else json.dumps(result)
        with self._database() as database:
            database.execute(
                "UPDATE experiments SET status = ?, updated = ?, fraction = coalesce(?, fraction), note = ?, "
                "process = ?, result = coalesce(?, result) WHERE id = ?",
                (status, time.time(), fraction, note, self._alive.name, data, name),
            )

    def entries(self, owner: str = "", search: str = "") -> list[Entry]:
        """The owner's experiments, the newest first: those with all the words of `search`, if any."""
        self._make_room()
        words = search.lower().split()
        found = self._select("owner = ?", owner)
        return [e for e in found if all(w in f"{e.id} {e.kind} {e.title} {e.status}".lower() for w in words)]

    def unfinished(self, work: Any, owner: str = "") -> str | None:
        """The newest experiment with this work that was stopped or failed."""
        found = self._select("owner = ? AND work = ?", owner, json.dumps(work))
        return next((e.id for e in found if e.status in ("stopped", "failed")), None)

    def entry(self, name: str, owner: str = "") -> Entry:
        """Raises:
        PlaygroundError: the owner has no such experiment.
        """
        return next((e for e in self.entries(owner) if e.id == name), None) or self._missing(name)

    def work(self, name: str, owner: str = "") -> Any:
        """What runs, as it was given to `add`; as `entry`."""
        return self._json("work", name, owner)

    def result(self, name: str, owner: str = "") -> dict[str, Any] | None:
        """The result as plain data; None if there is none (yet). As `entry`."""
        return self._json("result", name, owner)

    def asked(self, name: str, owner: str = "") -> dict[str, Any]:
        """The values of the controls that it was started with; none if it was not started on the page. As `entry`."""
        self.entry(name, owner)
        path = self._asked(name)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def record(self, name: str) -> Path:
        """Where the experiment keeps its rows as they come."""
        return self._folder / "records" / f"{name}.jsonl"

    def delete(self, name: str, owner: str = "") -> None:
        """It can be brought back for UNDO_S, after which nothing of it is left.

        Raises:
            PlaygroundError: it runs, or the owner has no such experiment.
        """
        check(self.entry(name, owner).status != "running", f"{name} runs. Stop it before you delete it.")
        with self._database() as database:
            kept = f"INSERT INTO deleted SELECT {COLUMNS}, ? FROM experiments WHERE id = ?"
            database.execute(kept, (time.time(), name))
            database.execute("DELETE FROM experiments WHERE id = ?", (name,))

    def restore(self, name: str, owner: str = "") -> None:
        """Brings back what was deleted.

        Raises:
            PlaygroundError: the owner deleted no such experiment in the last UNDO_S.
        """
        self._make_room()
        where = "FROM deleted WHERE id = ? AND owner = ?"
        with self._database() as database:
            database.execute(f"INSERT OR IGNORE INTO experiments SELECT {COLUMNS} {where}", (name, owner))
            found = database.execute(f"DELETE {where} RETURNING id", (name, owner)).fetchall()
        check(
            bool(found),
            f"{name} cannot be brought back: it was deleted more than {UNDO_S // 60} minutes ago, or never.",
        )

    def clear(self, owner: str = "") -> list[str]:
        """Deletes all of the owner's experiments but those that run; their ids."""
        ended = [entry.id for entry in self.entries(owner) if entry.status != "running"]
        for name in ended:
            self.delete(name, owner)
        return ended

    def _select(self, where: str, *values: str) -> list[Entry]:
        """The newest first."""
        query = f"SELECT {LISTED} FROM experiments WHERE {where} ORDER BY created DESC"
        with self._database() as database:
            return list(map(self._entry, database.execute(query, values).fetchall()))

    def _json(self, column: str, name: str, owner: str) -> Any:
        with self._database() as database:
            row = database.execute(
                f"SELECT {column} FROM experiments WHERE id = ? AND owner = ?", (name, owner)
            ).fetchone()
        return validation.mended(json.loads(row[0] or "null")) if row else self._missing(name)

    def _missing(self, name: str) -> Any:
        raise PlaygroundError(f"The history has no experiment {name}. It may have been deleted: look at its list.")

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        *values, process = row
        entry = Entry(*values)
        if entry.status == "running" and not self._alive.runs(process):
            return replace(entry, status="stopped", note="the process exited before the run finished")
        return entry

    def _make_room(self) -> None:
        """Deletes what is too old or too much."""
        with self._database() as database:
            now = time.time()
            gone = database.execute(CROWDED, (now - self._max_age_s, self._each, self._room)).fetchall()
            gone += database.execute("DELETE FROM deleted WHERE gone < ? RETURNING id", (now - UNDO_S,)).fetchall()
        for (name,) in gone:
            self._unlink(name)

    def _distinct(self, title: str, owner: str, but: str = "") -> str:
        """The title, with a number if another experiment of the owner has it. `but`: the id of one that may."""
        taken = {entry.title for entry in self._select("owner = ? AND id != ?", owner, but)}
        numbered = (f"{title} ({n})" for n in itertools.count(2))
        return title if title not in taken else next(each for each in numbered if each not in taken)

    def _asked(self, name: str) -> Path:
        return self._folder / "records" / f"{name}.asked.json"

    def _unlink(self, name: str) -> None:
        """What is beside the database: its records, one or one for each stage, and the values of its controls."""
        with suppress(OSError):
            for path in self.record(name).parent.glob(f"{name}.*"):
                path.unlink(missing_ok=True)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own for each use: threads and processes share the file."""
        with closing(sqlite3.connect(self._folder / "history.sqlite", timeout=30)) as database, database:
            yield database


def new_id() -> str:
    """An id for an experiment."""
    return secrets.token_hex(4)


def open_history() -> History:
    """The history of this machine, or one that is not kept."""
    return History(folder())
