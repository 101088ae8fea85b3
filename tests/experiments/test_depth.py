"""One conversation that grows, and its rounds by depth."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from playground import results
from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments.events import ResultReady, Watch
from playground.experiments.kinds import sweep
from playground.experiments.kinds.options import Decoders
from playground.experiments.kinds.sweep import DEPTH, DepthOptions
from playground.lane import LOCAL
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.results import STANDARD, SweepResult
from playground.views import report
from tests.tiny import small_llama


@pytest.fixture
def pair(tmp_path, tiny_tokenizer):
    small_llama(tiny_tokenizer, room=1200).save_pretrained(tmp_path / "deep")
    tiny_tokenizer.save_pretrained(tmp_path / "deep")
    return custom_pair(str(tmp_path / "deep"), None)


def run(pair, **options) -> SweepResult:
    asked = {"drafter": "ngram", "until": 800, "steps": 4, "max_new_tokens": 8, "chat_template": True}
    work, title = DEPTH.work(DepthOptions(**{**asked, **options}), Decoders.of(pair))
    assert title == "Prompt lookup to 800 tokens of context on deep"
    events = []
    work({LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}, Watch(events.append))
    return next(event.result for event in events if isinstance(event, ResultReady))


def test_it_costs_one_conversation_whose_rounds_fall_into_spans(pair, monkeypatch):
    monkeypatch.setattr(sweep, "documents", lambda: "The waves count the winters. " * 400)
    found = run(pair)
    assert [row.turn for row in found.suite.rows if row.lane == STANDARD] == [1, 2, 3, 4]
    for trace in found.suite.traces[2:]:
        new = len(trace.prompt_ids) - trace.reused.tokens
        assert trace.reused.tokens > 100 and new < 260, "only the turn's own text is computed"
    depths = [at.low for at in found.depths[0].figures]
    assert depths == sorted(depths) and len(depths) >= 3
    assert 600 < len(found.suite.traces[-1].prompt_ids) <= 900, "random answers take more tokens when read again"
    assert all(row.identical for row in found.suite.rows)
    text = report.text(report.of(found))
    assert "By depth" in text and "4 turns" in text
    data = results.to_json(found)
    assert results.from_json(json.loads(json.dumps(data))) == replace(found, suite=replace(found.suite, traces=()))
    older = {key: data[key] for key in ("schema_version", "suite", "depths")} | {"until": 800, "stops": None}
    assert results.from_json({"kind": "depth", **older}) == results.from_json(data)


def test_what_cannot_be_asked_is_refused(pair):
    with pytest.raises(PlaygroundError, match="no room"):
        run(pair, steps=64)
    with pytest.raises(PlaygroundError, match="enough text"):
        work, _ = DEPTH.work(DepthOptions(drafter="ngram", until=2**20, steps=2), Decoders.of(pair))
        work({LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}, Watch(lambda event: None))
