"""Starts a model server on this machine's loopback. It ends with the program that started it."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import httpx

from playground.errors import PlaygroundError, check
from playground.progress import Progress

HOST = "127.0.0.1"
PATIENCE_S = 600.0  # a large model loads for minutes
TAIL = 12  # lines of the log that explain a failure
LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
MATCH = 3  # tokens that a lookup finds again, as the playground's own does


class Running:
    """A server that was started here.

    Attributes:
        url: its address.
        process: it leads a process group of its own.
    """

    def __init__(self, command: Sequence[str], port: int, environment: dict[str, str]) -> None:
        self.url = f"http://{HOST}:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the server
        self.process = subprocess.Popen(
            [sys.executable, "-m", "playground.backends.leash", *command],
            stdin=subprocess.PIPE,  # its end tells the leash that we are gone
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
        """The end of what the server printed."""
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
        """Whether it answers, and is ready for requests."""
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=2, trust_env=False).status_code == 200
        return False


def start_llama(
    gguf: Path,
    progress: Callable[[Progress], None],
    *,
    lookup: str = "none",
    lookahead: int = 5,
    slots: int = 4,
    context: int = 2048,
    threads: int | None = None,
    extra: Sequence[str] = (),
    port: int | None = None,
) -> Running:
    """Starts the llama-server on the PATH or else the one in the wheel xllamacpp, and waits until it is ready.

    Args:
        lookup: one of LOOKUPS, or "none" for standard decoding.
        slots: requests that it decodes at the same time, each with room for `context` tokens.
        threads: None takes half of the cores, as busy cores make llama.cpp spin.
        extra: more of llama-server's options, such as --rpc; the wheel's server has none of them.
        port: None takes a free one.

    Raises:
        PlaygroundError: there is neither, or it does not start.
    """
    port = port or free_port()
    options = ["--model", str(gguf), "--host", HOST, "--port", str(port), "--ctx-size", str(slots * context)]
    options += ["--parallel", str(slots), "--threads", str(threads or max(1, (os.cpu_count() or 1) // 2)), "--metrics"]
    if lookup != "none":
        options += ["--spec-type", lookup, f"--spec-{lookup}-size-n", str(MATCH), f"--spec-{lookup}-size-m"]
        options.append(str(lookahead))
    options += extra
    if binary := shutil.which("llama-server"):
        command = [binary, *options]
    elif find_spec("xllamacpp"):
        command = [sys.executable, "-m", "playground.backends.xllama", *options]
    else:
        raise PlaygroundError(
            "There is no llama-server on the PATH, and no wheel of it. Install one with `pip install xllamacpp`."
        )
    return _started(command, port, {}, progress)


def start_vllm(
    model: str,
    progress: Callable[[Progress], None],
    *,
    speculative_config: str = "",
    served_name: str = "",
    options: Sequence[str] = (),
    port: int | None = None,
) -> Running:
    """Starts vLLM, with the metrics that show rounds, and waits until it is ready.

    Args:
        model: an id on the hub or a folder.
        speculative_config: vLLM's JSON, such as '{"method": "ngram", "num_speculative_tokens": 5}'; "" for standard
            decoding.
        options: more of vLLM's.

    Raises:
        PlaygroundError: there is no vLLM, or it does not start.
    """
    vllm = shutil.which("vllm")
    if not vllm:
        raise PlaygroundError("There is no vllm on the PATH. Activate the environment that it is installed in.")
    port = port or free_port()
    # Not by `vllm serve`, which the CPU wheel breaks: it looks for a distribution of another name.
    command = [str(Path(vllm).with_name("python")), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--host", HOST, "--port", str(port), "--enable-per-request-metrics"]
    if served_name:
        command += ["--served-model-name", served_name]
    if speculative_config:
        command += ["--speculative-config", speculative_config, "--per-request-spec-decode-metrics", "detailed"]
    return _started([*command, *options], port, {"VLLM_NO_USAGE_STATS": "1"}, progress)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _started(
    command: Sequence[str], port: int, environment: dict[str, str], progress: Callable[[Progress], None]
) -> Running:
    with socket.socket() as probe:
        taken = probe.connect_ex((HOST, port)) == 0
    check(not taken, f"Something listens on port {port} already. Choose another --port, or end it.")
    server = Running(command, port, environment)
    server.wait_until_ready(progress)
    return server
