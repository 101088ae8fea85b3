"""huggingface_hub's own client against a small hub that runs inside the test."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from playground.errors import PlaygroundError
from playground.models.fetch import hub

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves the files of one folder as owner/tiny, refuses owner/gated, and knows nothing else."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.served: set[str] = set()
        self.tokens: set[str] = set()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.tokens.add(self.headers.get("Authorization", ""))
        path = self.path.split("?")[0]
        tiny = "/owner/tiny"
        if path == "/api/models/openai-community/gpt2":
            return self.reply(200, b"{}")
        if path.startswith("/api/models/owner/gated"):
            return self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if path.startswith(f"/api/models{tiny}/tree/"):
            return self.reply(200, json.dumps([self.entry(name) for name in self.server.files]).encode())
        if path.startswith(f"/api/models{tiny}"):
            return self.reply(200, json.dumps({"id": tiny[1:], "sha": SHA, "siblings": self.siblings()}).encode())
        if path.startswith(f"{tiny}/resolve/{SHA}/"):
            name = path.rsplit("/", 1)[1]
            content = self.server.files[name]
            self.server.served.add(name)
            etag = hashlib.sha1(content).hexdigest()
            return self.reply(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": SHA})
        return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def entry(self, name: str) -> dict:
        content = self.server.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def siblings(self) -> list[dict]:
        return [{"rfilename": name, "size": len(content)} for name, content in self.server.files.items()]

    def reply(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def server(tiny_folder, tmp_path, monkeypatch) -> Iterator[Hub]:
    """A hub that holds the tiny model, a pickle and a script; this machine's hub cache is empty."""
    (tiny_folder / "pytorch_model.bin").write_bytes(b"pickle")
    (tiny_folder / "modeling_own.py").write_text("raise SystemExit")
    server = Hub(tiny_folder)
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub._answers.cache_clear()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
    hub._answers.cache_clear()


def fetch(repo_id: str, steps: list | None = None):
    return hub.fetch(repo_id, (steps if steps is not None else []).append)


def test_safetensors_configuration_and_tokenizer_are_fetched_and_nothing_else(server):
    steps = []
    weights = fetch("owner/tiny", steps)
    assert weights.origin.startswith("owner/tiny ") and weights.origin.endswith(" 01234567")
    assert (weights.folder / "model.safetensors").read_bytes() == server.files["model.safetensors"]
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} <= server.served
    assert not server.served & {"pytorch_model.bin", "modeling_own.py"}
    assert all(step.label.startswith("Fetching owner/tiny: ") for step in steps)
    assert all(0 <= step.fraction <= 1 for step in steps)


def test_what_was_fetched_serves_without_the_hub(server, monkeypatch):
    assert not hub.cached("owner/tiny")
    first = fetch("owner/tiny")
    assert hub.cached("owner/tiny")
    monkeypatch.setattr(hub, "reachable", lambda: False)
    assert fetch("owner/tiny") == first


def test_pickled_weights_alone_are_refused(server):
    del server.files["model.safetensors"]
    with pytest.raises(PlaygroundError, match="no safetensors"):
        fetch("owner/tiny")


@pytest.mark.parametrize(
    ("repo_id", "message"),
    [
        ("owner/gated", "is gated.*HF_TOKEN"),
        ("owner/nothing", "no model owner/nothing"),
        ("not an id", "as owner/name"),
        ("a/b/c", "as owner/name"),
    ],
)
def test_ids_that_cannot_be_fetched(server, repo_id, message):
    with pytest.raises(PlaygroundError, match=message):
        fetch(repo_id)


def test_without_a_hub_the_error_says_so(server, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub.reachable()
    with pytest.raises(PlaygroundError, match="be reached"):
        fetch("owner/tiny")


def test_a_download_that_breaks_off_is_reported(server, monkeypatch):
    def break_off(*args, **kwargs):
        raise ConnectionResetError("peer went away")

    monkeypatch.setattr(hub, "snapshot_download", break_off)
    with pytest.raises(PlaygroundError, match=r"owner/tiny .* failed \(ConnectionResetError: peer"):
        fetch("owner/tiny")


@pytest.fixture
def strangers(monkeypatch) -> None:
    """Visitors choose what is fetched, and whoever runs the server is logged in."""
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_server")
    monkeypatch.setattr(hub, "TERMS", hub.Terms(anonymous=True, cache=1_000_000))


def test_the_server_s_token_is_for_nobody_else(server, strangers, monkeypatch):
    assert not hub.has_token()
    hub.fetch("hub:owner/tiny", lambda step: None)
    assert server.tokens == {""}
    monkeypatch.setattr(hub, "TERMS", hub.Terms())
    assert hub.has_token() and hub.size("owner/tiny")
    assert server.tokens == {"", "Bearer hf_of_the_server"}


def test_downloads_of_strangers_end_where_the_cache_is_full(server, strangers, monkeypatch):
    monkeypatch.setattr(hub, "TERMS", hub.Terms(anonymous=True, cache=1000))
    with pytest.raises(PlaygroundError, match=r"owner/tiny \(0\.0 GB\) is not"):
        hub.fetch("hub:owner/tiny", lambda step: None)
    assert "model.safetensors" not in server.served
    monkeypatch.setattr(hub, "size", lambda name: 0)
    with pytest.raises(PlaygroundError, match=r"owner/tiny \(of a size"):
        hub.fetch("owner/tiny", lambda step: None)
