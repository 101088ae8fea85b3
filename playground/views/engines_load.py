"""Draft lengths by load: what a load test measured, as engines take it that change the lookahead with the batch."""

from __future__ import annotations

import json
from collections.abc import Sequence

from playground.metrics.load import pays
from playground.results import LoadResult
from playground.views.engines import Settings

Schedule = Sequence[tuple[int, int]]  # users at the same time, and the tokens to draft for each; 0 for none


def schedule(result: LoadResult) -> list[tuple[int, int]]:
    """For each level of users, the lookahead of the lane that was seen to be fastest; 0 where none was seen to pay. Of
    a test in open loop nothing: it says nothing of the batch."""
    if not all(level.concurrency for level in result.levels):
        return []
    lookahead = {lane.name: lane.lookahead for lane in result.lanes}
    found = []
    for level in sorted({gain.level for gain in result.gains}, key=lambda level: level.size):
        paying = [gain for gain in result.gains if gain.level == level and pays(gain)]
        best = max(paying, key=lambda gain: gain.speedup, default=None)
        found.append((int(level.size), lookahead[best.lane] if best else 0))
    return found


def settings(found: Schedule) -> list[Settings]:
    """One entry for each level that was measured; nothing where no level pays."""
    if not any(k for _, k in found):
        return []
    most = max(k for _, k in found)
    starts = [1, *(users + 1 for users, _ in found[:-1])]
    ranges = [[start, users, k] for start, (users, k) in zip(starts, found, strict=True)]
    vllm = {"num_speculative_tokens": most, "num_speculative_tokens_per_batch_size": ranges}
    sglang = {str(start): {"candidate_steps": sorted({0, k})} for start, _, k in ranges}  # from this batch on
    lines = ["speculative_config:", f"  max_draft_len: {most}", "  draft_len_schedule:"]
    lines += [f"    {users}: {k}" for users, k in found]
    beyond = f"Measured up to {found[-1][0]} users; a batch is taken to be as large as the number of users."
    return [
        Settings("vLLM", "vLLM 0.32", "json", json.dumps(vllm), f"Into --speculative-config. {beyond}"),
        Settings(
            "SGLang",
            "SGLang 0.5.23",
            "json",
            json.dumps(sglang),
            "As a file for --speculative-adaptive-config, with --speculative-adaptive and --speculative-eagle-topk 1. "
            f"EAGLE and EAGLE-3 only. It chooses between drafting and not by its own measure. {beyond}",
        ),
        Settings("TensorRT-LLM", "TensorRT-LLM's documentation of autumn 2026", "yaml", "\n".join(lines), beyond),
    ]
