"""A server's counters, in the text that vLLM and llama-server show."""

from __future__ import annotations

import json

import pytest

from playground.backends.connect import counts_of
from playground.backends.server import samples
from playground.errors import PlaygroundError
from playground.metrics.load import Counts
from tests.backends.fake_server import RECORDED

LLAMA = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 60
llamacpp:spec_decode_num_draft_tokens_total 34
llamacpp:spec_decode_num_accepted_tokens_total 29
llamacpp:spec_decode_num_drafts_total 6
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
"""


def test_vllm():
    before = json.loads((RECORDED / "vllm.json").read_text(encoding="utf-8"))["before"]
    assert counts_of(before) == Counts(30, 150, 106, (26, 23, 23, 17, 17), 153, 0, 0)


def test_llama_server():
    assert counts_of(LLAMA) == Counts(6, 34, 29, (), 60, 2, 1)


def test_a_server_that_does_not_count_drafts():
    assert counts_of("vllm:generation_tokens_total 5\nsomething_else 1") == Counts(None, None, None, (), 5, 0, 0)


def test_the_metrics_of_another_program():
    with pytest.raises(PlaygroundError, match="llama-server, vLLM"):
        counts_of("# vllm:generation_tokens_total\ntgi_request_count 5")


def test_labels_may_hold_anything():
    text = 'a{x="with \\"quotes\\" and } brace",y=""} 1.5e3 1795462182000\nbroken{ 3\nb NaN\n\n# c 3\nd +Inf'
    found = {sample.name: sample for sample in samples(text)}
    assert found["a"].labels == {"x": 'with \\"quotes\\" and } brace', "y": ""} and found["a"].value == 1500
    assert "c" not in found and "d" not in found
    assert samples("a{" + "x" * 1_000_000 + "} 1")[0].labels == {}  # at once, not in minutes


def test_counters_that_count_nothing_are_told():
    per_position = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%s"} 1'
    with pytest.raises(PlaygroundError, match="'first'"):
        counts_of(per_position % "first")
