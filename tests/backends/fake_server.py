"""A small HTTP server with fixed answers, for what real servers do seldom: refuse, redirect, hang, break off."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded"  # answers of real servers, without what nobody reads
BREAK = object()  # in a stream: the connection ends here
HANG = object()  # in a stream: nothing more comes


class Answer:
    """`body`: JSON or text; or a list of events, as a stream. `delay`: seconds between events."""

    def __init__(self, body: Any, status: int = 200, headers: dict[str, str] | None = None, delay: float = 0) -> None:
        self.body, self.status, self.headers, self.delay = body, status, headers or {}, delay


Route = Answer | Callable[[Any, Any], Answer]  # given the request's JSON and headers


@contextmanager
def serve(routes: dict[str, Route]) -> Iterator[FakeServer]:
    """The server while the block runs. Routes may change meanwhile."""
    server = FakeServer(routes)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, routes: dict[str, Route]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.routes = routes
        self.over = threading.Event()
        self.asked: list[tuple[str, Any]] = []  # paths with the JSON that was sent

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.server.asked.append((self.path, body))
        route = self.server.routes.get(self.path, Answer({"error": {"message": "File Not Found"}}, 404))
        answer = route if isinstance(route, Answer) else route(body, self.headers)
        if isinstance(answer.body, list):
            self._stream(answer)
            return
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        self._head(answer, {"Content-Length": str(len(text.encode()))})
        self.wfile.write(text.encode())

    def _stream(self, answer: Answer) -> None:
        self._head(answer, {"Content-Type": "text/event-stream", "Connection": "close", "Transfer-Encoding": "chunked"})
        for event in answer.body:
            time.sleep(answer.delay)
            if event is HANG:
                self.server.over.wait(60)
            if event in (BREAK, HANG):
                self.close_connection = True
                return
            line = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _head(self, answer: Answer, headers: dict[str, str]) -> None:
        self.send_response(answer.status)
        for name, value in (headers | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()


def llama_server() -> dict[str, Route]:
    """The routes of a llama-server with prompt lookup, as one answered."""
    recorded = json.loads((RECORDED / "llama_server.json").read_text(encoding="utf-8"))
    return {
        "/health": Answer({"status": "ok"}),
        "/v1/models": Answer(recorded["models"]),
        "/props": Answer(recorded["props"]),
        "/apply-template": Answer(recorded["template"]),
        "/tokenize": Answer(recorded["tokenize"]),
        "/completion": Answer(recorded["answer"]),
    }


def vllm() -> dict[str, Route]:
    """The routes of a vLLM with prompt lookup and per-request metrics, as one answered."""
    recorded = json.loads((RECORDED / "vllm.json").read_text(encoding="utf-8"))
    return {
        "/health": Answer(""),
        "/v1/models": Answer(recorded["models"]),
        "/version": Answer(recorded["version"]),
        "/metrics": Answer(recorded["before"]),
        "/tokenize": Answer(recorded["tokenize"]),
        "/v1/completions": lambda body, _: Answer(recorded["answer" if body.get("stream") else "scored"]),
    }
