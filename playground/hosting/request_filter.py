"""Middleware that decides which requests reach Gradio, and how much visitors may send and store on the disk.

A request reaches Gradio if a page or a program may send it, from a session that Gradio's clients could have made. All
others are answered here, before Gradio stores anything of them or writes a traceback. Every answer gets the headers
that limit what browsers load; files of Gradio's page may be kept by them, since their names change with their content.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import orjson
from gradio.utils import get_upload_folder
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from playground.hosting.access import Access, Limits, host_name


class SizeLimits:
    """Middleware that refuses requests larger than an upload may be, and frees disk space before an upload."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._limits.upload:
            sentence = f"This server takes requests of up to {self._limits.upload:,} bytes."
            await PlainTextResponse(sentence, status_code=413)(scope, receive, send)
            return
        if scope["path"].startswith("/gradio_api/upload"):
            make_room(self._limits.files)
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        """Limits a body of undeclared length. One that is too long ends as if the client had disconnected."""
        got = 0

        async def counted() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            return message if got <= self._limits.upload else {"type": "http.disconnect"}

        return counted


def make_room(limit: int) -> None:
    """Deletes the oldest files of the page until they take no more than `limit` bytes."""
    files = []
    for folder, _, names in os.walk(get_upload_folder()):
        for name in names:
            with suppress(FileNotFoundError):  # uploads come and go
                file = os.stat(path := os.path.join(folder, name))
                files.append((file.st_mtime, file.st_size, path))
    excess = sum(size for _, size, _ in files) - limit
    for _, size, path in sorted(files):
        if excess <= 0:
            break
        with suppress(FileNotFoundError):
            os.unlink(path)
        excess -= size


logger = logging.getLogger(__name__)

API = "/gradio_api/"
# The routes that Gradio's clients use. Left out are those that take recordings, write code, run components' own
# functions, store deep links or forward requests.
ROUTES = frozenset(
    {
        *("api", "app_id", "call", "cancel", "config", "file", "heartbeat", "info", "mcp", "openapi.json", "queue"),
        *("reset", "run", "run-history", "runs", "startup-events", "theme.css", "upload", "upload_progress"),
    }
)
CLOSED = frozenset({"login", "logout", "monitoring"})
ID = re.compile(r"[\w-]{1,64}", re.ASCII)  # the id of a session or of an event
NOT_AN_ID = "The id of a session or an event has 1 to 64 letters, digits, - or _. Reload the page."
NOT_JSON = "This server takes JSON objects of finite numbers and valid Unicode, without unpaired surrogates."
CLOSED_HERE = "The playground has no such address."
NOT_OURS = (
    "This server does not know that it is {name}. Open it as localhost or by its IP address; or start it with "
    "--allow-hosts {name}, if that is its name."
)
ELSEWHERE = (b"x-forwarded-host", b"x-gradio-server")  # the latter is for Gradio's own proxy, which is off
NOT_TAKEN = "This server cannot take this request. Reload the page and try again."


# Gradio's page consists of scripts in the page, some made from strings, and blobs, all from this server. Any site may
# show the page in a frame, as shared runs are.
CONTENT = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval' blob:",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self' data: blob:",
    "worker-src": "'self' blob:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
}
POLICIES = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}
CONTENT_POLICY = {"Content-Security-Policy": "; ".join(map(" ".join, CONTENT.items()))}
# Gradio's scripts and styles have a hash of what they hold in their names. Of a new installation a browser would else
# ask for each of a hundred again whenever the page is opened.
ASSETS, KEPT = "/assets/", {"Cache-Control": "public, max-age=31536000, immutable"}


class RequestFilter:
    """Middleware that passes permitted requests on to Gradio. `access`: the server's names, and the size limit of
    requests other than uploads."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access, self._limits = app, access, access.limits
        # A platform's proxy adds scripts of its own to the page.
        self._policies = POLICIES if access.hosts is None else POLICIES | CONTENT_POLICY

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noticed(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                kept = KEPT if scope["path"].startswith(ASSETS) and message["status"] == 200 else {}
                MutableHeaders(scope=message).update(self._policies | kept)
            await send(message)

        request = Request(scope := self._named(scope), receive)
        try:
            answer = self._wrong_host(request) or _refusal(request)
            if answer is None and request.method == "POST" and _route(request) not in ("", "upload"):
                answer, receive = await self._body(request, receive)
            await (answer or self._app)(scope, receive, noticed)
        except Exception as problem:  # raised by Gradio; it answers the errors of our handlers itself
            logger.warning("%s %.80r: %.200r", request.method, scope["path"], problem)
            if not begun:
                await _refused(NOT_TAKEN)(scope, receive, noticed)

    def _wrong_host(self, request: Request) -> Response | None:
        """Returns the answer to a request for a host name that may be another site's; None if the name is ours."""
        host = request.headers.get("host", "")
        shared = urlsplit(request.app.get_blocks().share_url or "").hostname
        if self._access.takes_host(host) or (shared and host_name(host) == shared):
            return None
        name = host_name(host) or "the empty name"
        return PlainTextResponse(NOT_OURS.format(name=name), 421)

    def _named(self, scope: Scope) -> Scope:
        """Returns the request without headers that would make Gradio, and links to the page, name another server."""
        headers = Headers(scope=scope)
        forwarded = headers.get("x-forwarded-host", "").partition(",")[0]
        kept = self._access.takes_forwarded_host(forwarded, headers.get("host", ""))
        dropped = ELSEWHERE[1:] if kept else ELSEWHERE
        return {**scope, "headers": [each for each in scope["headers"] if each[0] not in dropped]}

    async def _body(self, request: Request, receive: Receive) -> tuple[Response | None, Receive]:
        """Returns a refusal if a JSON body is invalid, and a `receive` that gives the body to Gradio."""
        read = bytearray()
        while (message := await receive())["type"] == "http.request":
            read += message.get("body", b"")
            if len(read) > self._limits.body:
                return _refused(f"This server takes requests of up to {self._limits.body:,} bytes.", 413), receive
            if not message.get("more_body"):
                break
        body = bytes(read)
        try:
            data = orjson.loads(body or b"{}")
        except orjson.JSONDecodeError:
            data = None
        if not isinstance(data, dict) or not isinstance(data.get("event_data") or {}, dict):
            return _refused(NOT_JSON), receive
        ids = [data[name] for name in ("session_hash", "event_id") if data.get(name) is not None]
        if not all(isinstance(it, str) and ID.fullmatch(it) for it in ids):
            return _refused(NOT_AN_ID), receive
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return None, again


def _refusal(request: Request) -> Response | None:
    """Returns the answer to a request that need not be passed on; None for all others."""
    steps = request.url.path.strip("/").split("/")
    closed = steps[0] in CLOSED or (steps[0] == API.strip("/") and _route(request) not in ROUTES)
    if closed:
        return _refused(CLOSED_HERE, 404)
    sessions = [session for route, session in pairwise(steps) if route == "heartbeat"]
    sessions += request.query_params.getlist("session_hash")
    event = steps[-1] if _route(request) == "call" and request.method == "GET" else None
    if not all(ID.fullmatch(it) for it in (*sessions, *([event] if event else []))):
        return _refused(NOT_AN_ID)
    queue = request.app.get_blocks()._queue
    if request.url.path == f"{API}queue/data" and sessions and sessions[0] not in queue.pending_messages_per_session:
        lost = {"msg": "unexpected_error", "message": "This session has ended.", "session_not_found": True}
        return _stream(f"data: {orjson.dumps(lost | {'success': False}).decode()}\n\n")
    if event and not _known(queue, event):
        return _stream('event: error\ndata: "There is no such event, or its answer was read."\n\n')
    return None


def _known(queue: Any, event: str) -> bool:
    """Returns whether Gradio has an answer to an event, or will have one."""
    waiting = queue.pending_event_ids_session
    return event in queue.event_ids_to_events or event in waiting or any(event in ids for ids in waiting.values())


def _route(request: Request) -> str:
    """Returns the first part of the path after Gradio's prefix; "" for the page itself."""
    path = request.url.path
    return re.split(r"[/=]", path.removeprefix(API), maxsplit=1)[0] if path.startswith(API) else ""


def _refused(sentence: str, status: int = 400) -> Response:
    return JSONResponse({"detail": sentence}, status_code=status)


def _stream(text: str) -> Response:
    return PlainTextResponse(text, media_type="text/event-stream")
