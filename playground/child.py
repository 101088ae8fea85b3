"""Processes for our scripts that run untrusted programs, such as chat templates and grammars. They are killed when they
take too long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from playground.errors import check

ENVIRONMENT = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "TZ")  # variables that the process inherits
STARTS_WITHIN_S = 180.0


def child_of(script: Path) -> Child:
    """Return the process of a script; several threads can use it, one at a time."""
    return _child_of(script, os.getpid())


@cache
def _child_of(script: Path, pid: int) -> Child:
    """Return one child for each of our processes: a fork must not write into its parent's pipes."""
    return Child(script)


class Child:
    """A process of a script that writes "ready", then a line for each line that it reads. It starts with the first
    question; if an answer is late or too long, it is killed and starts again with the next question."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, question: str, *, seconds: float, characters: int) -> str:
        """Send a question and return the line that answers it. The line is incomplete, without its line end, where it
        took longer than `seconds`, has more than `characters`, or the process ended.

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
    """Start the script and wait until it is ready."""
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
