"""How much visitors may send, and leave on the disk."""

from __future__ import annotations

import os
from contextlib import suppress

from gradio.utils import get_upload_folder
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from playground.hosting.access import Limits


class SizeLimits:
    """Middleware that ends requests which are larger than an upload may be, and makes room before an upload."""

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
        """For a body of undeclared length. One that is too long ends as if the client had gone."""
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
