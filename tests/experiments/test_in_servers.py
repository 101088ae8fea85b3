"""Suites and sweeps through servers with recorded answers: kept in the history like those of this process."""

from __future__ import annotations

import json

import pytest

from playground.commands import main
from playground.experiments.history import open_history
from tests.backends.fake_server import llama_server, serve

ONE = ["--per-category", "1", "--runs", "1", "--max-new-tokens", "8", "--json", "-"]


@pytest.fixture
def servers():
    """The options that name them, and the one to compare."""
    with serve(llama_server()) as standard, serve(llama_server()) as assisted:
        yield ["--baseline-server", standard.url, "--server", assisted.url], assisted


def obeying(server) -> None:
    """Makes the server draft no more than one token a step where a request asks for that."""
    recorded, probed = server.routes["/completion"], llama_server()["/completion"]
    for event in probed.body:
        count = event["timings"]["predicted_n"] // 2
        event["timings"] |= {"draft_n": count, "draft_n_accepted": count}
    server.routes["/completion"] = lambda body, _: probed if body.get("speculative.n_max") == 1 else recorded


def test_a_suite_through_servers_is_in_the_history(servers, capsys):
    options, server = servers
    main(["suite", *options, *ONE])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["lane"] for row in rows} == {"standard", f"llama-server: ngram-map-k, {server.url}"}
    entry = open_history().entries()[0]
    assert (entry.kind, entry.status) == ("suite", "finished") and server.url in entry.title


def test_a_lookahead_is_swept_where_the_server_obeys_it(servers, capsys):
    options, server = servers
    with pytest.raises(SystemExit):
        main(["sweep", *options, *ONE])
    assert "does not draft" in capsys.readouterr().err
    obeying(server)
    server.asked.clear()
    main(["sweep", *options, "--values", "0", "2", "4", *ONE])
    points = json.loads(capsys.readouterr().out)["points"]
    assert [(point["value"], point["lane"].split()[-1]) for point in points] == [(0, "standard"), (2, "2"), (4, "4")]
    asked = {body["speculative.n_max"] for path, body in server.asked if path == "/completion"}
    assert asked == {1, 2, 4}


def test_a_server_s_lookahead_is_recommended(servers, capsys, tmp_path):
    options, server = servers
    obeying(server)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Say the line “waves and waves” twice.", encoding="utf-8")
    main(["recommend", *options, "--suite", str(prompts), "--max-new-tokens", "8"])
    printed = capsys.readouterr().out
    assert printed.count("refined") == 3 and "ngram-map-k" in printed and "vllm serve" not in printed
    assert open_history().entries()[0].kind == "recommend"


def test_what_no_server_can_be_asked_for_is_said(servers, capsys):
    with pytest.raises(SystemExit):
        main(["sweep", *servers[0], "--over", "nodes", *ONE])
    assert "another nodes" in capsys.readouterr().err
