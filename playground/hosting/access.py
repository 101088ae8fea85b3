"""What visitors may do: everything on one's own machine, less where strangers can reach the page.

Decided once, in app.py. Page and endpoint ask here; each limit has a sentence.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from huggingface_hub import get_token

from playground.errors import PlaygroundError, check
from playground.lane import Request
from playground.presets import HUB

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w-][\w.-]*", re.ASCII)
PATH = re.compile(r"(?<![\w/:.])(?:~|[A-Za-z]:)?(?:[\\/][\w.+@-]+)+")
SLASH = re.compile(r"[\\/]")
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
HIDDEN = "…"
OWN_MACHINE = "run the playground on your own machine"
NO_SERVERS = f"Visitors cannot enter server addresses. To enter your own, {OWN_MACHINE}."


@dataclass(frozen=True)
class Limits:
    """Attributes:
    new_tokens: of each lane.
    prompt: characters of prompt, system prompt and earlier turns together.
    run_s: seconds that a run may hold the device; loading and downloads count.
    runs_each: runs of one visitor that wait or decode at a time.
    runs: runs of all visitors that wait or decode at a time.
    hub_cache: bytes that the cache of hub models may grow to by downloads.
    upload: bytes of a request, and so of an uploaded trace.
    body: bytes of a request that is no upload.
    files: bytes of uploaded and saved traces on disk.
    trace_tokens: tokens of a trace that is opened; drafted tokens count.
    opens_each: traces of one visitor that are being opened, or wait for it, at a time.
    traces: bytes of opened traces in memory.
    sessions: browser sessions whose last runs are kept.
    history_s: seconds that the history keeps a run.
    history_each: runs of one visitor that the history keeps.
    history: bytes that the history may take.
    """

    new_tokens: float = float("inf")
    prompt: float = float("inf")
    run_s: float = float("inf")
    runs_each: float = float("inf")
    runs: int = 256
    hub_cache: float = float("inf")
    upload: int = 64_000_000
    body: int = 64_000_000
    files: int = 10_000_000_000
    trace_tokens: int = 1_000_000
    opens_each: float = float("inf")
    traces: int = 2_000_000_000
    sessions: int = 10_000
    history_s: float = float("inf")
    history_each: float = float("inf")
    history: float = float("inf")


FOR_VISITORS = Limits(
    new_tokens=1024,
    prompt=20_000,
    run_s=300,
    runs_each=4,
    runs=200,
    hub_cache=100e9,
    upload=8_000_000,
    body=500_000,
    files=1_000_000_000,
    trace_tokens=20_000,
    opens_each=2,
    traces=200_000_000,
    sessions=500,
    history_s=86_400,
    history_each=20,
    history=500_000_000,
)


@dataclass(frozen=True)
class Access:
    """`public`: strangers can reach the page. `models`: the names that visitors may type; None for any name."""

    public: bool = False
    models: tuple[str, ...] | None = None
    limits: Limits = Limits()

    def typed(self, name: str) -> str:
        """The model that a visitor named, as the loaders take it. Never looks for a folder of that name.

        Raises:
            PlaygroundError: it may not be named here.
        """
        name = name.strip()
        known = not name or name.isdecimal() or name in (self.models or ())  # digits: a number of layers
        if not self.public or (known and self.models != ()):
            return name
        if self.models is None and HUB_ID.fullmatch(name):
            return f"{HUB}{name}"
        raise PlaygroundError(self.typing)

    @property
    def typing(self) -> str:
        """Which models may be typed, in a sentence; "" for any."""
        if not self.public:
            return ""
        if self.models is None:
            return "On this server, a model is named by its id on the hub, as owner/name."
        if not self.models:
            return f"On this server, models cannot be typed. Choose a pair of the list, or {OWN_MACHINE}."
        return f"On this server, these models can be typed: {', '.join(self.models)}. For others, {OWN_MACHINE}."

    def told(self, text: str) -> str:
        """A message for visitors: where they are strangers, without paths, host name and secrets of this machine."""
        return redacted(text) if self.public else text

    def check_request(self, request: Request) -> None:
        """Raises:
        PlaygroundError: it asks for more than a run may take here.
        """
        limits = self.limits
        length = sum(map(len, (request.system, request.tools, *(turn.text for turn in request.turns))))
        check(
            length <= limits.prompt,
            f"The prompt has {length:,} characters in all; this server takes {limits.prompt:,}. "
            f"Shorten it, or {OWN_MACHINE}.",
        )
        check(
            request.max_new_tokens <= limits.new_tokens,
            f"This server decodes up to {limits.new_tokens:,} new tokens, not {request.max_new_tokens:,}. "
            f"Ask for fewer, or {OWN_MACHINE}.",
        )

    def alone(self, request: Request) -> Request:
        """The request as it runs here. Strangers share no prefix cache: what came from it would tell one of them what
        another has asked."""
        return replace(request, prefix_cache=False) if self.public else request

    def check_servers(self) -> None:
        """Whether servers may be named, and started.

        Raises:
            PlaygroundError: visitors may not.
        """
        check(not self.public, NO_SERVERS)

    def admit(self, own: int, all_runs: int) -> None:
        """Whether one more run may wait. `own`, `all_runs`: the visitor's runs and everybody's that wait or decode.

        Raises:
            PlaygroundError: not now.
        """
        limits = self.limits
        check(
            own < limits.runs_each,
            f"{own} of your runs are waiting or running, the most on this server. Wait for one of them to end, or stop "
            "it.",
        )
        check(
            all_runs < limits.runs, f"{all_runs} runs are waiting, the most on this server. Try again in some minutes."
        )

    @property
    def out_of_time(self) -> str:
        """The sentence for a run that took too long."""
        return f"The run was ended after {self.limits.run_s:,.0f} s, the most on this server. Ask for fewer tokens."


def access_for(public: bool, models: Sequence[str] = ()) -> Access:
    """`models`: what strangers may type; "any" is every id on the hub."""
    if not public:
        return Access()
    return Access(public, None if "any" in models else tuple(models), FOR_VISITORS)


def strangers_can_reach(addresses: Sequence[str], share: bool) -> bool:
    """Whether others than this machine's users reach a page that listens on these IP addresses."""
    return share or "SPACE_ID" in os.environ or not all(ipaddress.ip_address(it).is_loopback for it in addresses)


def addresses_of(host: str) -> list[str]:
    """Raises:
    PlaygroundError: there is no such host.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None)
    except OSError as error:
        raise PlaygroundError(f"There is no address {host!r} to listen on ({error}). Choose another --host.") from None
    return [str(address[0]).partition("%")[0] for *_, address in found]


def visitor(address: str, session: str) -> str:
    """Whom the limits of one visitor count for: an address on the internet, else (behind a proxy) a browser session."""
    try:
        return address if ipaddress.ip_address(address).is_global else session
    except ValueError:
        return session


def redacted(text: str) -> str:
    """Without the folders of paths (their last part stays), this machine's name, and the values of secrets."""
    secrets = [value for name, value in os.environ.items() if SECRET.search(name) and len(value) >= 8]
    for secret in (*secrets, get_token() or "", socket.gethostname()):
        text = text.replace(secret, HIDDEN) if len(secret) > 3 else text
    return PATH.sub(lambda path: f"{HIDDEN}/{SLASH.split(path[0])[-1]}", text)
