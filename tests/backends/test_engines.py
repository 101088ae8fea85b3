"""The starter's drafters as llama-server and vLLM answered with them, read again: the table of `engines`."""

from __future__ import annotations

import json

import pytest

from benchmarks import engines
from playground.backends.connect import connect
from playground.experiments.events import Watch
from playground.experiments.race import decode
from playground.lane import Request
from tests.backends.fake_server import RECORDED, Answer, serve

REQUEST = Request("Write the numbers from one to ten in words, then the same again.", max_new_tokens=40)
RECORDINGS = json.loads((RECORDED / "engines.json").read_text(encoding="utf-8"))
PATHS = {
    "models": "/v1/models", "props": "/props", "template": "/apply-template", "tokenize": "/tokenize",
    "version": "/version", "metrics": "/metrics",
}  # fmt: skip
ANSWERS = {"llama_server": "/completion", "vllm": "/v1/completions"}
# drafts, drafted and accepted tokens, 1 + accepted ÷ drafts, as the servers' own counters had them
COUNTED = {
    ("eagle3", "llama_server"): ("33", "96", "5", "1.15"),
    ("eagle3", "vllm"): ("34", "102", "5", "1.15"),
}


def answered(kind: str, server: str):
    recorded = RECORDINGS[kind][server]
    routes = {PATHS[name]: Answer(body) for name, body in recorded.items() if name in PATHS}
    routes |= {"/health": Answer(""), ANSWERS[server]: Answer(recorded["answer"])}
    with serve(routes) as fake:
        backend = connect(fake.url)
        backend.details = False  # what it would ask for more was not recorded
        return decode(backend, backend.lane(), REQUEST, Watch())


@pytest.mark.parametrize("kind", RECORDINGS)
def test_a_recorded_answer_gives_the_table_again(kind):
    traces = [answered(kind, server) for server in ANSWERS]
    rows = engines.table([[trace] for trace in traces]).rows
    assert [row[2:6] for row in rows] == [COUNTED[kind, server] for server in ANSWERS]
    assert traces[0].token_ids == traces[1].token_ids and rows[1][-1] == "1 of 1"
