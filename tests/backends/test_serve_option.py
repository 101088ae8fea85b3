"""One server at a time: each lane's is started for it, and ended before the next."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from playground.backends.llama_server import LlamaServer
from playground.commands import main
from playground.errors import PlaygroundError
from tests.backends.fake_server import llama_server, serve


@pytest.fixture
def started(monkeypatch):
    """What was started and ended, in order. A start whose lookup is "ngram-map-k4v" fails."""
    told = []

    class Running:
        def __init__(self, url: str, lookup: str) -> None:
            self.url, self._lookup = url, lookup

        def stop(self) -> None:
            told.append(f"end {self._lookup}")

    with serve(llama_server()) as server:

        def start(gguf, progress, *, extra, port, lookup, lookahead):
            if lookup == "ngram-map-k4v":
                raise PlaygroundError("no such lookup")
            told.append(f"start {lookup}")
            return Running(server.url, lookup)

        monkeypatch.setattr(LlamaServer, "launch", replace(LlamaServer.launch, start=start))
        yield told


COMMAND = ["compare", "--serve", "llama", "--serve-model", "SmolLM2-135M-Instruct.Q4_1.gguf", "--prompt", "x"]


def test_the_standard_server_ends_before_the_assisted_one_starts(started, capsys):
    main([*COMMAND, "--lookup", "ngram-map-k", "--json", "-"])
    assert started == ["start none", "end none", "start ngram-map-k", "end ngram-map-k"]
    lanes = json.loads(capsys.readouterr().out)["lanes"]
    assert [it["lane"]["name"] for it in lanes] == ["llama-server: standard", "llama-server: ngram-map-k"]


def test_a_server_that_does_not_start_leaves_the_lane_before_it(started, capsys):
    with pytest.raises(SystemExit):
        main([*COMMAND, "--lookup", "ngram-map-k4v"])
    assert started == ["start none", "end none"]
    printed = capsys.readouterr()
    assert "no such lookup" in printed.err and "llama-server: standard" in printed.out


def test_a_started_server_and_an_address_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        main([*COMMAND, "--server", "http://127.0.0.1:1"])
    assert "--serve, or" in capsys.readouterr().err
