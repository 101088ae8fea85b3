"""Runs a program that ends when its standard input does, which is when the parent process exits.

`python -m playground.backends.child_process COMMAND …`, as the leader of a process group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

PATIENCE_S = 10.0


def main() -> None:
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # after the start, or the program would inherit it; its end is ours
    threading.Thread(target=_end_with_input, args=(program,), daemon=True).start()
    sys.exit(program.wait() != 0)


def _end_with_input(program: subprocess.Popen) -> None:
    while os.read(sys.stdin.fileno(), 1):  # not through its buffer, whose lock would outlive `main`
        pass
    os.killpg(0, signal.SIGTERM)
    try:
        program.wait(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
