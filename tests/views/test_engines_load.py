"""Draft lengths by load: the fastest lookahead of each level that was seen to pay, in each engine's form."""

from __future__ import annotations

import json
from dataclasses import replace

import yaml

from playground.metrics.load import Level
from playground.views import engines, report
from tests.test_metrics_load import answered, result_of


def measured():
    """Two drafting lanes: the longer draft is faster for one user, the shorter for four, none for sixteen."""
    tpot = {1: (0.04, 0.02), 4: (0.03, 0.06), 16: (0.09, 0.2)}
    rows = []
    for users, (short, long) in tpot.items():
        for n in range(9):
            jitter = 0.0001 * n
            rows += [answered(users, "base", n, tpot=0.05 + jitter), answered(users, "k2", n, tpot=short + jitter)]
            rows.append(answered(users, "k5", n, tpot=long + jitter))
    result = result_of(rows, "base", "k2", "k5")
    lanes = [replace(lane, lookahead=k) for lane, k in zip(result.lanes, (5, 2, 5), strict=True)]
    return replace(result, lanes=tuple(lanes))


def test_each_level_has_the_lookahead_that_was_fastest_there():
    found = engines.schedule(measured())
    assert found == [(1, 5), (4, 2), (16, 0)]
    vllm, sglang, tensorrt = engines.load_settings(found)
    assert json.loads(vllm.text) == {
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 1, 5], [2, 4, 2], [5, 16, 0]],
    }
    tiers = json.loads(sglang.text)  # each from its batch on, where the others end at theirs
    assert {batch: tier["candidate_steps"] for batch, tier in tiers.items()} == {"1": [0, 5], "2": [0, 2], "5": [0]}
    config = yaml.safe_load(tensorrt.text)["speculative_config"]
    assert config == {"max_draft_len": 5, "draft_len_schedule": {1: 5, 4: 2, 16: 0}}
    assert report.of(measured()).deploy == [vllm, sglang, tensorrt]


def test_nothing_is_advised_where_nothing_pays_or_the_batch_is_unknown():
    assert engines.load_settings([(1, 0), (8, 0)]) == []
    result = measured()
    assert engines.schedule(replace(result, levels=(Level(rate=2.0),))) == []
