"""How many threads a CPU computes with.

All of them are fastest on an idle machine. Where other programs use the cores, a pass waits for its slowest thread many
times a layer, and fewer threads are faster: a single one was three times as fast as two on two busy cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from statistics import median

import torch

BLOCKS, PASSES = 5, 2  # measured blocks of each number of threads, in turn, and passes in each block
MARGIN = 1.1  # how much faster than all threads another number must be


def choose_threads(run_pass: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> bool:
    """Times passes with all threads, half of them and one, and sets the fastest number for this thread and for those
    that are started after it; all of them unless fewer are clearly faster. Called before the lanes of a comparison, so
    that all lanes use the same number.

    Args:
        run_pass: one pass of the target over one token.
        clock: in seconds.

    Returns:
        Whether the number changed.
    """
    used, most = torch.get_num_threads(), most_threads()
    passes: dict[int, list[float]] = {threads: [] for threads in sorted({most, max(1, most // 2), 1}, reverse=True)}
    if len(passes) == 1:
        return False
    for _ in range(BLOCKS):
        for threads, times in passes.items():
            torch.set_num_threads(threads)
            run_pass()  # starts or stops threads
            for _ in range(PASSES):
                start = clock()
                run_pass()
                times.append(clock() - start)
    # The median of single passes: a browser that draws the press of Run slows several, a busy neighbour nearly all.
    seconds = {threads: median(times) for threads, times in passes.items()}
    fastest = min(seconds, key=seconds.__getitem__)
    chosen = fastest if seconds[fastest] * MARGIN < seconds[most] else most
    torch.set_num_threads(chosen)
    return chosen != used


@cache
def most_threads() -> int:
    """As many as torch starts with: the cores, or what OMP_NUM_THREADS says. To be called before any choice."""
    return torch.get_num_threads()
