"""The HTML head of the page, and Gradio's Blocks with a log that clients cannot fill.

The head gets the tags that other sites show of a link, instead of Gradio's, and a script and a style sheet that must
load before Gradio's. The address of a run that everybody may open has that run's title and picture.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from html import escape
from typing import Any
from urllib.parse import urlencode

import gradio as gr
from anyio import CapacityLimiter, to_thread
from gradio.route_utils import get_root_url
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from playground import metrics
from playground.errors import INTERNAL, PlaygroundError
from playground.trace import Comparison
from playground.views import facts, headline, replay_file, scripts

TAGS = re.compile(r'<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*')
PICTURE = "/screenshot.png"
DEFAULT_PICTURE = scripts.ASSETS / "screenshot.png"
NAMED = ("shared", "id")  # the parameters of an address that name a run


class PageHead:
    """Middleware that gives each room its title, rewrites the og: and twitter: tags, and puts `assets/head.js` and
    `assets/head.css` first. Gradio's `head` would come after its own tags, of which readers take the first, and after
    its scripts. Only a request shows the absolute address that a picture needs.

    Args:
        titles: of the rooms, by the paths of their pages.
        moved: relative addresses with a query, by paths that once were a page's.
    """

    def __init__(self, app: ASGIApp, titles: Mapping[str, str], moved: Mapping[str, str], description: str) -> None:
        self._app, self._titles, self._moved, self._description = app, titles, moved, description
        self._painter = CapacityLimiter(1)
        style = (scripts.ASSETS / "head.css").read_text(encoding="utf-8")
        self._first = f"<style>{style}</style>\n<script>{scripts.bundle('head.js')}.head();</script>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PICTURE:
            run = await self._run(Request(scope))
            picture = await to_thread.run_sync(replay_file.build_picture, run, limiter=self._painter) if run else None
            answer = Response(picture, media_type="image/png") if picture else FileResponse(DEFAULT_PICTURE)
            await answer(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in self._moved:
            rest = Request(scope).url.query
            to = self._moved[scope["path"]] + (f"&{rest}" if rest else "")
            await RedirectResponse(to, status_code=301)(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in self._titles and scope["method"] == "GET":
            request = Request(scope)
            await self._app(scope, receive, self._rewritten(request, await self._run(request), send))
        else:
            await self._app(scope, receive, send)

    async def _run(self, request: Request) -> Comparison | None:
        """Returns the run that the address of the first room names, if everyone who has the address may open it."""
        query = request.query_params
        if request.url.path not in ("/", PICTURE) or not any(query.get(name) for name in NAMED):
            return None
        blocks: QuietBlocks = request.app.get_blocks()
        with suppress(PlaygroundError):
            return await to_thread.run_sync(blocks.linked, dict(query), limiter=self._painter)
        return None

    def _rewritten(self, request: Request, run: Comparison | None, send: Send) -> Send:
        """Returns a `send` that holds the answer back until it is complete."""
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
            query = urlencode({name: request.query_params[name] for name in NAMED if name in request.query_params})
            origin = get_root_url(request, request.url.path, request.scope.get("root_path"))  # also behind a proxy
            asked = origin, request.url.path, query
            page = self.rewrite(body.decode("utf-8"), *asked, run).encode("utf-8")
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            await send({**start, "headers": [*headers, (b"content-length", str(len(page)).encode())]})
            await send({"type": "http.response.body", "body": page})

        return collect

    def rewrite(self, page: str, address: str, path: str, query: str = "", run: Comparison | None = None) -> str:
        """Returns a room's HTML with our tags, style and script.

        Args:
            address: the first room's, without a slash at the end.
            query: the part of the page's address that names `run`, which the page shows; "" for none.
        """
        title, description, named = self._titles.get(path, self._titles["/"]), self._description, ""
        if run:
            found = metrics.ranked(run)[0]
            title, description = headline.title(run, found.ours.lane.name), " ".join(facts.sentences(found))
            named = f"?{query}"
        tags = {"title": title, "description": description, "type": "website"}
        tags |= {"url": address + path + named, "image": address + PICTURE + named}  # sites read the tags of `url`
        html = "".join(f'<meta property="og:{name}" content="{escape(value)}" />\n' for name, value in tags.items())
        card = '<meta name="twitter:card" content="summary_large_image" />\n'
        first = f"<head>\n<title>{escape(title)}</title>\n{self._first}\n{html}{card}"
        return TAGS.sub("", page).replace("<head>", first, 1)


logger = logging.getLogger(__name__)

NOT_TAKEN = "A value of this request cannot be taken by the control that it is for. Reload the page and try again."


class QuietBlocks(gr.Blocks):
    """Gradio's Blocks, whose log clients cannot fill: a value that no component takes leaves no traceback, and a
    repeated fault leaves one. `without_secrets` turns a PlaygroundError's sentence into one that visitors may read, see
    `Access.without_secrets`. `linked` returns the run that an address names, if whoever has the address may open it."""

    without_secrets: Callable[[str], str] = staticmethod(str)
    linked: Callable[[Mapping[str, str]], Comparison | None] = staticmethod(lambda query: None)

    async def preprocess_data(self, *arguments: Any, **more: Any) -> Any:
        """Converts the inputs of an event, like Gradio's method.

        Raises:
            gr.Error: a value cannot be converted.
        """
        try:
            return await super().preprocess_data(*arguments, **more)
        except Exception as problem:
            words = problem.message if isinstance(problem, gr.Error) else NOT_TAKEN
            raise gr.Error(words, print_exception=False) from None

    async def process_api(self, *arguments: Any, **more: Any) -> Any:
        """Runs an event, like Gradio's method.

        Raises:
            gr.Error: a handler failed. A PlaygroundError is passed on as its sentence; any other exception is a fault
                of ours, and is logged the first time.
        """
        try:
            return await super().process_api(*arguments, **more)
        except gr.Error:
            raise
        except PlaygroundError as problem:
            raise gr.Error(escape(self.without_secrets(str(problem)), quote=False), print_exception=False) from None
        except Exception as problem:
            place = traceback.extract_tb(problem.__traceback__)[-1]
            if (fault := (place.filename, place.lineno, type(problem))) not in _logged:
                _logged.add(fault)
                logger.exception("a handler failed; it is logged once")
            raise gr.Error(INTERNAL, print_exception=False) from None


class _FirstLine(logging.Filter):
    """Shortens the MCP library's message on a malformed request, which has a hundred lines with parts of the
    request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Failed to validate request"):
            record.msg, record.args = record.getMessage().partition("\n")[0], ()
        return True


logging.getLogger().addFilter(_FirstLine())  # filters only what is logged without a named logger, as this message is

_logged: set[tuple[str, int | None, type[Exception]]] = set()
