"""HTTP to a model server: JSON and server-sent events. Each failure becomes a sentence.

Redirects are not followed, because the key would be sent along. The key appears in no message. An answer takes a
bounded number of bytes and seconds, whatever the server sends.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import httpx

from playground.errors import PlaygroundError, check

KEY = "PLAYGROUND_SERVER_KEY"  # the environment variable that holds the key
CONNECT_S = 5.0
IDLE_S = 120.0  # seconds without a byte after which a server counts as hung; the prefill of a long prompt takes a while
MOST_BYTES = 16_000_000  # bytes of an answer or a stream's event; 32,000 tokens with their alternatives take some 10 MB
MOST_S = 300.0  # seconds for a whole answer
STREAM_BYTES, STREAM_S = 1_000_000_000, 3 * 3600.0  # for all events of a stream
QUOTED = 300  # characters of a server's own message


class Event(NamedTuple):
    """A server-sent event. `seconds`: the time of its arrival, from the moment the request was sent."""

    seconds: float
    data: dict[str, Any]


class NotFound(PlaygroundError):
    """The server has nothing at this path."""


class Http:
    """Requests to one server, from any thread.

    Args:
        url: scheme, host and port; a path "/v1" at the end is left out. The part after "#", which is not sent with the
            address, names what a request should draft with, see `ServerBackend.draft_option`.
        key: sent as a bearer token; "" for none.

    Raises:
        PlaygroundError: by the constructor, if the URL is invalid. By each request, if nothing answers, or if the
            server redirects, refuses the key, hangs, breaks off or reports an error.
    """

    def __init__(self, url: str, key: str = "", *, idle_s: float = IDLE_S) -> None:
        self.url = server_url(url)
        self.draft = httpx.URL(url.strip()).fragment
        self._key, self._idle_s = key, idle_s
        self._client = httpx.Client(
            base_url=self.url,
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx.Timeout(idle_s, connect=min(CONNECT_S, idle_s), pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=not is_loopback(self.url),  # a proxy's loopback is another machine's
        )

    @property
    def address(self) -> str:
        """The address as it was given, which distinguishes two ways of asking one server."""
        return f"{self.url}#{self.draft}" if self.draft else self.url

    def get(self, path: str) -> Any:
        """Returns the JSON at a path."""
        return self._parsed(self._send("GET", path))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Returns the JSON that answers a JSON body."""
        return self._parsed(self._send("POST", path, body))

    def text(self, path: str) -> str:
        """Returns the text at a path."""
        return self._send("GET", path)

    def stream(self, path: str, body: dict[str, Any]) -> Generator[Event, None, None]:
        """Sends a request and yields the events of its answer as they arrive, up to "[DONE]": server-sent events, or a
        JSON object a line. Closing the generator ends the request."""
        start = time.monotonic()
        with self._explained(), self._client.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                self._check(response, self._whole(response))
            for line in self._lines(response):
                field, _, value = ("data", "", line) if line.startswith("{") else line.partition(":")
                value = value.strip()
                if field not in ("data", "error") or value == "[DONE]":
                    continue
                seconds = time.monotonic() - start
                data = self._parsed(value)
                if "error" in data or field == "error":
                    raise PlaygroundError(f"The server at {self.url} ended its answer with an error: {_said(data)}")
                yield Event(seconds, data)

    def close(self) -> None:
        self._client.close()

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        with self._explained(), self._client.stream(method, path, json=body) as response:
            text = self._whole(response)
        self._check(response, text)
        return text

    def _whole(self, response: httpx.Response) -> str:
        return b"".join(self._bounded(response, MOST_BYTES, MOST_S)).decode(errors="replace")

    def _lines(self, response: httpx.Response) -> Iterator[str]:
        begun: list[bytes] = []  # parts of an unfinished line
        size = 0
        for chunk in self._bounded(response, STREAM_BYTES, STREAM_S):
            *ended, rest = chunk.split(b"\n")
            for line in ended:
                yield b"".join([*begun, line]).decode(errors="replace").strip("\r")
                begun, size = [], 0
            begun.append(rest)
            size += len(rest)
            if size > MOST_BYTES:
                raise self._too_much(f"an event of more than {MOST_BYTES:,} bytes")
        yield b"".join(begun).decode(errors="replace")

    def _bounded(self, response: httpx.Response, most_bytes: int, most_s: float) -> Iterator[bytes]:
        """Yields the raw bytes of the answer. They are not decompressed, because a small answer can decompress to a
        large one."""
        end, size = time.monotonic() + most_s, 0
        for chunk in response.iter_raw():
            size += len(chunk)
            if size > most_bytes:
                raise self._too_much(f"more than {most_bytes:,} bytes")
            if time.monotonic() > end:
                raise self._too_much(f"an answer that was not whole after {most_s:,.0f} seconds")
            yield chunk

    def _too_much(self, what: str) -> PlaygroundError:
        return PlaygroundError(
            f"The server at {self.url} sent {what}, which no model server does. Check address and port."
        )

    def _parsed(self, text: str) -> Any:
        with suppress(ValueError, RecursionError):
            data = json.loads(text)
            if isinstance(data, (dict, list)):
                return data
        raise PlaygroundError(
            f"What answers at {self.url} is not a model server: it does not speak JSON. Check address and port."
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise PlaygroundError(
                f"No server answers at {self.url} ({_reason(error)}). Start it, or check host and port."
            ) from None
        except httpx.TimeoutException:
            raise PlaygroundError(
                f"The server at {self.url} has sent nothing for {self._idle_s:g} seconds: it hangs or is overloaded. "
                "Its log says more."
            ) from None
        except httpx.HTTPError as error:
            raise PlaygroundError(
                f"The server at {self.url} broke off in the middle of an answer ({_reason(error)}). It may have "
                "crashed: its log says more. Start it again."
            ) from None

    def _check(self, response: httpx.Response, text: str) -> None:
        status = response.status_code
        if response.is_success:
            return
        if response.is_redirect:
            raise PlaygroundError(
                f"{self.url} redirects to {response.headers.get('location', 'nowhere')[:QUOTED]}, which is not "
                "followed. Give the address of the server itself."
            )
        if status in (401, 403):
            hint = "Check the key" if self._key else "It wants a key: put it"
            raise PlaygroundError(
                f"The server at {self.url} refuses access ({status}). {hint} in the environment variable {KEY}."
            )
        said = _said(_decoded(text))
        if self._key:
            said = said.replace(self._key, "…")
        kind = NotFound if status == 404 else PlaygroundError
        raise kind(f"The server at {self.url} answers {status} to {response.request.url.path}: {said}")


def server_url(text: str) -> str:
    """Returns the address of a server without a path: "http://host:port".

    Raises:
        PlaygroundError: it is not an http address, or holds a user, a password or a query.
    """
    try:
        url = httpx.URL(text.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    check(
        url.scheme in ("http", "https") and bool(url.host),
        f"{text!r} is not the address of a server. Give one such as http://127.0.0.1:8080.",
    )
    check(
        not url.userinfo and not url.query,
        f"A server's address holds no user, password or query. Put its key in the environment variable {KEY}.",
    )
    path = url.path.rstrip("/").removesuffix("/v1")
    return str(url.copy_with(path=path or "/", fragment=None)).rstrip("/")


def is_loopback(url: str) -> bool:
    """Returns whether an address is on this machine's loopback."""
    host = httpx.URL(url).host
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _decoded(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return text


def _said(data: Any) -> str:
    """Returns a server's own message, in any of the forms that servers use."""
    while isinstance(data, dict):
        data = next((data[key] for key in ("error", "message", "detail") if key in data), str(data))
    text = " ".join(str(data).split())
    return text[:QUOTED].rstrip(".") + "." if text else "no reason given."
