"""How much visitors may send, and leave on the disk."""

from __future__ import annotations

from pathlib import Path

from gradio.utils import get_upload_folder
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from playground.access import Limits


class Bounds:
    """Middleware that ends requests which are larger than an upload may be, and makes room before an upload."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit() or int(told) > self._limits.upload:
            sentence = f"This server takes requests of up to {self._limits.upload:,} bytes."
            await PlainTextResponse(sentence, status_code=413)(scope, receive, send)
            return
        if scope["path"].startswith("/gradio_api/upload"):
            make_room(self._limits.files)
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        """For a body whose length is not told. One that is too long ends as if the client had gone."""
        got = 0

        async def counted() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            return message if got <= self._limits.upload else {"type": "http.disconnect"}

        return counted


def make_room(limit: int) -> None:
    """Deletes the oldest files of the page until they take no more than `limit` bytes."""
    files = sorted((path for path in Path(get_upload_folder()).rglob("*") if path.is_file()), key=_age)
    excess = sum(path.stat().st_size for path in files) - limit
    for path in files:
        if excess <= 0:
            break
        excess -= path.stat().st_size
        path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    return path.stat().st_mtime
