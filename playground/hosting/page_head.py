"""The head of the page: what other sites show of a link to it, in place of Gradio's own, and a script and a style sheet
that have to be there before Gradio's."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from playground.errors import INTERNAL, PlaygroundError
from playground.views import scripts

TAGS = re.compile(r'<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*')
PICTURE = "/screenshot.png"


class PageHead:
    """Middleware that rewrites the og: and twitter: tags of the page itself and puts `assets/head.js` and
    `assets/head.css` first. Gradio's `head` would come after its own tags, of which readers take the first, and after
    its scripts; and only a request tells the absolute address that a picture needs."""

    def __init__(self, app: ASGIApp, title: str, description: str) -> None:
        self._app = app
        self._words = {"title": title, "description": description}
        style = (scripts.ASSETS / "head.css").read_text(encoding="utf-8")
        self._first = f"<style>{style}</style>\n<script>{scripts.bundle('head.js')}.head();</script>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PICTURE:
            await FileResponse(scripts.ASSETS / "screenshot.png")(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET":
            await self._app(scope, receive, self._rewritten(Request(scope), send))
        else:
            await self._app(scope, receive, send)

    def _rewritten(self, request: Request, send: Send) -> Send:
        """A `send` that holds the answer back until it is whole."""
        start: Message = {}
        body = b""

        async def collect(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            page = self.rewrite(body.decode("utf-8"), str(request.base_url)).encode("utf-8")
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            await send({**start, "headers": [*headers, (b"content-length", str(len(page)).encode())]})
            await send({"type": "http.response.body", "body": page})

        return collect

    def rewrite(self, page: str, address: str) -> str:
        """The page's HTML with our tags, style and script. `address`: where it is served, ended by a slash."""
        facts = {**self._words, "type": "website", "url": address, "image": address.rstrip("/") + PICTURE}
        tags = "".join(f'<meta property="og:{name}" content="{escape(fact)}" />\n' for name, fact in facts.items())
        card = '<meta name="twitter:card" content="summary_large_image" />\n'
        return TAGS.sub("", page).replace("<head>", f"<head>\n{self._first}\n{tags}{card}", 1)


# Gradio's page, whose log programs cannot fill: a value that no component takes leaves no traceback there, and a fault
# leaves one, however often it is met. Errors for people reach them as they are.


logger = logging.getLogger(__name__)

NOT_TAKEN = "A value of this request cannot be taken by the control that it is for. Reload the page and try again."


class QuietBlocks(gr.Blocks):
    """`told`: makes of a sentence for people the one that this page's visitors may read, as `Access.told`."""

    told: Callable[[str], str] = staticmethod(str)

    async def preprocess_data(self, *arguments: Any, **more: Any) -> Any:
        """As Gradio's own.

        Raises:
            gr.Error: a value cannot be taken, in words.
        """
        try:
            return await super().preprocess_data(*arguments, **more)
        except Exception as problem:
            words = problem.message if isinstance(problem, gr.Error) else NOT_TAKEN
            raise gr.Error(words, print_exception=False) from None

    async def process_api(self, *arguments: Any, **more: Any) -> Any:
        """As Gradio's own.

        Raises:
            gr.Error: what a handler raised, errors for people as their sentence. Another exception is a fault of ours,
                and is logged the first time.
        """
        try:
            return await super().process_api(*arguments, **more)
        except gr.Error:
            raise
        except PlaygroundError as problem:
            raise gr.Error(escape(self.told(str(problem)), quote=False), print_exception=False) from None
        except Exception as problem:
            place = traceback.extract_tb(problem.__traceback__)[-1]
            if (fault := (place.filename, place.lineno, type(problem))) not in _logged:
                _logged.add(fault)
                logger.exception("a handler failed; it is logged once")
            raise gr.Error(INTERNAL, print_exception=False) from None


class _FirstLine(logging.Filter):
    """Cuts what the MCP library says of a malformed request, which is a hundred lines with parts of the request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Failed to validate request"):
            record.msg, record.args = record.getMessage().partition("\n")[0], ()
        return True


logging.getLogger().addFilter(_FirstLine())  # only for what is logged by no logger of its own, as this is

_logged: set[tuple[str, int | None, type[Exception]]] = set()
