"""A script of ours in a process of its own, which is killed when it takes too long: for programs that others wrote,
such as chat templates and grammars."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from playground.errors import check

ENVIRONMENT = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "TZ")  # what the process is given of ours
STARTS_WITHIN_S = 180.0


def child_of(script: Path) -> Child:
    """The process of a script; safe to use from several threads, which take turns."""
    return _child_of(script, os.getpid())


@cache
def _child_of(script: Path, pid: int) -> Child:
    """One for each process of ours: a fork must not write into the pipes of its parent's."""
    return Child(script)


class Child:
    """Runs a script that writes "ready", then a line for each line that it reads. Started when it is first asked;
    killed, and started again for the next question, when an answer is late or too long."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, question: str, *, seconds: float, characters: int) -> str:
        """The line that answers a question, or what there is of it, without the end of the line, where it took longer
        than `seconds`, has more than `characters`, or the process ended.

        Raises:
            PlaygroundError: the process does not start.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = started(self._script)
            process = self._process
            assert process.stdin
            late = threading.Timer(seconds, process.kill)
            late.start()
            try:
                process.stdin.write(f"{question}\n")
                process.stdin.flush()
                line = _line(process, characters)
            except BrokenPipeError:
                line = ""
            finally:
                late.cancel()
            if not line.endswith("\n"):
                process.kill()
                process.communicate()
                self._process = None
        return line


def started(script: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-I", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    )
    late = threading.Timer(STARTS_WITHIN_S, process.kill)
    late.start()
    ready = _line(process, 100)
    late.cancel()
    check(ready == "ready\n", f"{script.name} does not start. Switch the chat template off, and leave the grammar out.")
    return process


def _line(process: subprocess.Popen[str], characters: int) -> str:
    assert process.stdout
    return process.stdout.readline(characters + 1)
