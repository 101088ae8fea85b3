"""What goes wrong with a server is one clear sentence, and the lane before it stays."""

from __future__ import annotations

import json
import socket

import pytest

from playground.backends import http
from playground.backends.connect import connect
from playground.backends.http import KEY, Http, server_url
from playground.commands import main
from playground.errors import PlaygroundError
from playground.experiments.compare import run
from playground.experiments.events import Finished, Watch
from playground.lane import Request
from tests.backends.fake_server import BREAK, HANG, Answer, llama_server, serve

REQUEST = Request("Say the line “🦀 waves and waves and waves” four times.", max_new_tokens=40)


@pytest.fixture
def server():
    with serve(llama_server()) as server:
        yield server


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://host", "http://", "http://host:port", "/v1", "file:///etc/passwd"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(PlaygroundError, match=f"^{url!r} "):
        server_url(url)


@pytest.mark.parametrize("url", ["http://user:secret@host", "http://host/?key=secret"])
def test_an_address_holds_no_secret(url):
    with pytest.raises(PlaygroundError, match=KEY) as caught:
        server_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://host:8080", "http://host:8080/", "http://host:8080/v1", "http://host:8080/v1/"]
)
def test_an_address_is_taken_in_every_usual_form(url):
    assert server_url(url) == "http://host:8080"
    assert server_url("https://host/prefix/v1") == "https://host/prefix"


def test_no_server():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PlaygroundError, match=f"No server answers at {url} .*Start it"):
            connect(url)


def test_a_redirect_is_not_followed(server):
    server.routes["/v1/models"] = Answer("", 307, {"Location": "http://elsewhere.example/v1/models"})
    with pytest.raises(PlaygroundError, match=r"redirects .*elsewhere\.example"):
        connect(server.url)


@pytest.mark.parametrize("key", ["", "wrong-key"])
def test_a_wrong_key_is_named_by_its_variable_and_not_repeated(server, key, monkeypatch):
    monkeypatch.setenv(KEY, key)
    server.routes["/props"] = lambda _, headers: Answer(
        {"error": {"message": f"Invalid API Key {headers['Authorization']}", "code": 401}}, 401
    )
    with pytest.raises(PlaygroundError, match=KEY) as caught:
        connect(server.url)
    assert "wrong-key" not in str(caught.value)


def test_the_key_is_sent_and_is_in_no_trace_and_no_message(server, monkeypatch, capsys):
    monkeypatch.setenv(KEY, "a-secret-key")
    seen = []
    answer = server.routes["/completion"]
    server.routes["/completion"] = lambda _, headers: seen.append(headers["Authorization"]) or answer
    with serve(server.routes) as second:
        main(["compare", "--baseline-server", server.url, "--server", second.url, "--prompt", "x", "--json", "-"])
    assert set(seen) == {"Bearer a-secret-key"}
    printed = capsys.readouterr()
    assert "a-secret-key" not in printed.out + printed.err
    server.routes["/completion"] = Answer({"error": {"message": "no room for a-secret-key"}}, 500)
    with pytest.raises(PlaygroundError, match=r"500 to /completion: .*…"):
        connect(server.url)


def test_a_model_that_it_does_not_serve(server):
    with pytest.raises(PlaygroundError, match=r"'gpt'.*SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        connect(server.url, "gpt")


@pytest.mark.parametrize(
    ("listing", "named"),
    [
        (Answer("<html>hello</html>"), "JSON"),
        (Answer({"data": []}), "/v1/models"),
        (Answer("[1, 2]"), "/v1/models"),
        (Answer("nothing here", 404), "/v1/models"),
    ],
)
def test_what_is_no_such_server(server, listing, named):
    server.routes["/v1/models"] = listing
    with pytest.raises(PlaygroundError, match=named):
        connect(server.url)


def test_a_server_that_hangs(server):
    server.routes["/completion"] = Answer([HANG])
    stream = Http(server.url, idle_s=0.2).stream("/completion", {})
    with pytest.raises(PlaygroundError, match=r"0\.2 seconds"):
        next(stream)


@pytest.mark.parametrize(
    ("limit", "value", "path", "more_than"),
    [
        ("MOST_BYTES", 100_000, "/metrics", "100,000 bytes"),
        ("MOST_BYTES", 100_000, "/completion", "event .* 100,000 bytes"),
        ("STREAM_BYTES", 400_000, "/completion", "400,000 bytes"),
        ("MOST_S", 0.1, "/slow", "0 seconds"),
        ("STREAM_S", 0.1, "/completion", "0 seconds"),
    ],
)
def test_an_answer_takes_bounded_bytes_and_seconds(server, limit, value, path, more_than, monkeypatch):
    monkeypatch.setattr(http, limit, value)
    event = {"content": "x" * 300_000}
    server.routes["/metrics"] = Answer("x" * 300_000)
    server.routes["/completion"], server.routes["/slow"] = Answer([event] * 3, delay=0.1), Answer([{}] * 3, delay=0.1)
    asking = Http(server.url)
    with pytest.raises(PlaygroundError, match=f"sent .*{more_than}"):
        _ = [*asking.stream(path, {})] if path == "/completion" else asking.post(path, {})


def test_events_are_read_however_the_connection_cuts_them(server):
    server.routes["/completion"] = Answer([{"content": "🦀" * 50_000}, {"content": "\u2028"}, "[DONE]"])
    assert [len(event.data["content"]) for event in Http(server.url).stream("/completion", {})] == [50_000, 1]


def test_an_error_in_the_middle_of_a_stream(server):
    events = server.routes["/completion"].body
    server.routes["/completion"].body = [*events[:5], {"error": {"code": 500, "message": "out of slots"}}]
    with pytest.raises(PlaygroundError, match="out of slots"):
        connect(server.url)


@pytest.mark.parametrize("end", [[BREAK], []])
def test_a_server_that_dies_in_the_middle_leaves_the_lane_before_it(server, end):
    with serve(llama_server()) as second:
        backends = [connect(server.url), connect(second.url)]
        lanes = [backends[0].lane()]
        lanes.append(backends[1].lane(taken=lanes))
        whole = second.routes["/completion"].body
        answers = iter([Answer(whole), Answer([*whole[:12], *end])])  # the warm-up, then the run
        second.routes["/completion"] = lambda *_: next(answers)
        events = []
        with pytest.raises(PlaygroundError, match="broke off"):
            named = {it.name: it for it in backends}
            run(lanes, REQUEST, named, Watch(events.append), baseline=lanes[0].name)
    assert isinstance(events[-1], Finished)
    first, died = events[-1].comparison.lanes
    assert (len(first.tokens), first.finish) == (40, "length")
    assert (died.text, died.finish) == ("🦀 waves and waves and waves.\n🦀 waves", "stopped")


def test_the_terminal_shows_the_lane_that_finished_and_the_error(server, tmp_path, capsys):
    with serve(llama_server()) as second:
        whole = second.routes["/completion"].body
        answers = iter([Answer(whole), Answer(whole), Answer([*whole[:12], BREAK])])
        second.routes["/completion"] = lambda *_: next(answers)
        out = tmp_path / "out.json"
        with pytest.raises(SystemExit) as exit_:
            main(["compare", "--baseline-server", server.url, "--server", second.url, "--prompt", "x",
                  "--json", str(out)])  # fmt: skip
    assert exit_.value.code == 2
    printed = capsys.readouterr()
    assert "broke off" in printed.err and "tok/s" in printed.out
    assert [len(lane["token_ids"]) for lane in json.loads(out.read_text())["lanes"]] == [40, 14]


def test_a_server_without_speculation_is_told_how_to_speculate(server, capsys):
    events = server.routes["/completion"].body
    counts = {"predicted_n": 1}
    server.routes["/completion"].body = [
        {"content": "a", "tokens": [5], "stop": False, "timings": counts},
        {**events[-1], "timings": counts, "generation_settings": {"speculative.types": "none"}, "stop_type": "eos"},
    ]
    with serve(server.routes) as second:
        main(["compare", "--baseline-server", server.url, "--server", second.url, "--prompt", "x"])
    printed = capsys.readouterr()
    assert "--spec-type" in printed.err
    assert "llama-server: standard" in printed.out


def test_one_server_is_no_comparison(server, capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--server", server.url, "--prompt", "x"])
    assert "Add --baseline-server URL, or --pair NAME" in capsys.readouterr().err
