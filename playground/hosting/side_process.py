"""A separate process for work on strangers' files that would hold the server's interpreter lock for seconds.

Run as a script, this module is that process: it reads pickled calls and writes their results.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from playground import PACKAGE
from playground.errors import PlaygroundError

T = TypeVar("T")
LIMIT_S = 120.0  # on a busy machine, start included
ENDED = "This took more than {:.0f} s, or too much memory, and was ended. Choose a shorter trace."
NICE = 5  # lower priority, because runs are decoded on the same cores


class SideProcess:
    """A process that is started with the first call. It is killed, and restarted for the next call, if an answer is
    late."""

    def __init__(self) -> None:
        self._one = CapacityLimiter(1)  # further callers wait without a thread
        self._process: subprocess.Popen[bytes] | None = None

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a module's function in the process and returns its result.

        Raises:
            PlaygroundError: the answer took longer than LIMIT_S, or never came.
            Exception: whatever the function raised.
        """
        return await to_thread.run_sync(self._ask, function, arguments, limiter=self._one)

    def _ask(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        process = self._process = self._process or _started()
        assert process.stdin and process.stdout
        late = threading.Timer(LIMIT_S, process.kill)
        late.start()
        try:
            pickle.dump((function, arguments), process.stdin)
            process.stdin.flush()
            returned, value = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            process.kill()
            process.communicate()
            self._process = None
            raise PlaygroundError(ENDED.format(LIMIT_S)) from None
        finally:
            late.cancel()
        if returned:
            return value
        raise value


def _started() -> subprocess.Popen[bytes]:
    few = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # nothing is computed on a device
    return subprocess.Popen(
        [sys.executable, "-m", "playground.hosting.side_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=PACKAGE.parent,
        env=os.environ | few,
    )


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not mix with the answers
    if hasattr(os, "nice"):
        os.nice(NICE)
    with contextlib.suppress(EOFError):  # the server has ended
        while True:
            function, arguments = pickle.load(sys.stdin.buffer)
            try:
                answer = True, function(*arguments)
            except Exception as problem:
                answer = False, problem
            answers.write(pickle.dumps(answer))
            answers.flush()


if __name__ == "__main__":
    main()
