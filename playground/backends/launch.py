"""Starts a model server of any kind on this machine's loopback. It ends with the program that started it."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from playground.errors import PlaygroundError, check
from playground.progress import Progress

HOST = "127.0.0.1"
PATIENCE_S = 600.0  # loading a large model takes minutes
STANDARD = "none"  # the value of a speculation option
TAIL = 12  # lines of the log that explain a failure


class Option(NamedTuple):
    """An option of `serve`. `name`: the keyword of `Launch.start`, from which the flag is derived."""

    name: str
    help: str
    metavar: str | None = None
    default: int | None = None


@dataclass(frozen=True)
class Launch:
    """Describes how servers of a kind are started. The commands `serve` and `compare --serve` are made from it.

    Attributes:
        name: the name in `serve NAME`.
        help: one line for the terminal.
        start: `start(model, progress, *, extra, port, ...) -> Running`, with the options below as further keywords. A
            model of None is the starter; `extra` goes to the server unchanged; a port of None is a free one.
        served_name: the server's name for the model that `start` is given.
        model: the option that names the model.
        speculation: the option that says how it speculates; STANDARD turns speculation off.
        methods: the values that `speculation` takes, by the names that the server reports; () if it takes any text, and
            the server does not report how it speculates.
        example: the speculation of `compare --serve` unless an option changes it.
        numbers: options that take a whole number of at least 1.
        lookahead: whether `start` takes that setting, too.
    """

    name: str
    help: str
    start: Callable[..., Running]
    served_name: Callable[[str | None], str]
    model: Option
    speculation: Option
    example: str
    methods: tuple[str, ...] = ()
    numbers: tuple[Option, ...] = ()
    lookahead: bool = False


class Running:
    """A server that was started here.

    Attributes:
        url: its address.
        process: leads a process group of its own.
    """

    def __init__(self, command: Sequence[str], port: int, environment: dict[str, str]) -> None:
        self.url = f"http://{HOST}:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the server
        self.process = subprocess.Popen(
            [sys.executable, "-m", "playground.backends.child_process", *command],
            stdin=subprocess.PIPE,  # its end tells the child process that this process has ended
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            start_new_session=True,
        )
        atexit.register(self.stop)

    def wait_until_ready(self, progress: Callable[[Progress], None]) -> None:
        """Returns once the server is healthy.

        Raises:
            PlaygroundError: it ended or took too long; with the end of its log. It is stopped then.
        """
        since = time.monotonic()
        try:
            while not self.healthy():
                seconds = time.monotonic() - since
                progress(Progress(f"Starting the server at {self.url}: {seconds:.0f} s"))
                if self.process.poll() is not None:
                    raise PlaygroundError(f"The server ended while it started. The end of its log:\n{self.log()}")
                if seconds > PATIENCE_S:
                    raise PlaygroundError(
                        f"The server was not ready after {PATIENCE_S:.0f} seconds. The end of its log:\n{self.log()}"
                    )
                time.sleep(0.2)
        except BaseException:
            self.stop()
            raise

    def log(self) -> str:
        """Returns the end of what the server printed."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 16_000))
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-TAIL:])

    def stop(self) -> None:
        """Ends the server and the processes that it started."""
        atexit.unregister(self.stop)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
                break

    def healthy(self) -> bool:
        """Returns whether the server answers and is ready for requests."""
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=2, trust_env=False).status_code == 200
        return False


def free_port() -> int:
    """Returns a port that no program uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def started(
    command: Sequence[str], port: int, environment: dict[str, str], progress: Callable[[Progress], None]
) -> Running:
    """Runs a command that serves at a port, and waits until it is ready.

    Raises:
        PlaygroundError: another program listens there; and see `Running.wait_until_ready`.
    """
    with socket.socket() as probe:
        taken = probe.connect_ex((HOST, port)) == 0
    check(not taken, f"Something listens on port {port} already. Choose another --port, or end it.")
    server = Running(command, port, environment)
    server.wait_until_ready(progress)
    return server
