"""The permissions of visitors: everything on the user's own machine, less where strangers can reach the page.

Decided once, in playground/app.py. Page and endpoint ask this module; each limit has a sentence.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import inf
from typing import Any

from huggingface_hub import get_token

from playground import constraint
from playground.errors import PlaygroundError, check
from playground.lane import Request
from playground.presets import HUB

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w-][\w.-]*", re.ASCII)
# A backslash alone begins an escape, such as one in a stop string, and </ a closing tag.
PATH = re.compile(r"(?<![\w/:.<])(?:(?:~|[A-Za-z]:)?/|(?:~|[A-Za-z]:)\\|\\\\(?=\w))[\w.+@-]+(?:[\\/][\w.+@-]+)*")
SLASH = re.compile(r"[\\/]")
HOST = re.compile(
    r"(\[[\da-f:.]+\]|[\w.-]+)(?::\d*)?", re.ASCII | re.IGNORECASE
)  # the value of a header, or an address
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
HIDDEN = "…"
OWN_MACHINE = "run the playground on your own machine"
NO_SERVERS = f"Visitors cannot enter server addresses. To enter your own, {OWN_MACHINE}."


def _limit(here: float, for_visitors: float) -> Any:
    """Returns a field with two values: for the user's own machine, and for a page that strangers can reach."""
    return field(default=here, metadata={"for_visitors": for_visitors})


@dataclass(frozen=True)
class Limits:
    """Limits of what a server takes and stores."""

    new_tokens: float = _limit(inf, 1024)  # of each lane
    prompt: float = _limit(inf, 20_000)  # characters of all texts of a request together
    grammar_s: float = _limit(constraint.ANY.seconds, 5)  # seconds that reading a grammar may take
    grammar_bytes: int = _limit(constraint.ANY.bytes, 500_000_000)  # bytes of the process that reads it
    wait_s: float = _limit(inf, 240)  # seconds that a run may wait for the device
    run_s: float = _limit(inf, 300)  # seconds that a run may hold the device; loading and downloads count
    runs_each: float = _limit(inf, 4)  # runs of one visitor that wait or decode at a time, or were just refused
    runs: int = _limit(256, 200)  # runs of all visitors that wait or decode at a time
    hub_cache: float = _limit(inf, 100e9)  # bytes that the cache of hub models may grow to by downloads
    upload: int = _limit(64_000_000, 8_000_000)  # bytes of a request, and so of an uploaded trace
    body: int = _limit(64_000_000, 500_000)  # bytes of a request that is no upload
    files: int = _limit(10_000_000_000, 1_000_000_000)  # bytes of uploaded and saved traces on disk
    trace_tokens: int = _limit(1_000_000, 20_000)  # tokens of a trace that is opened; drafted tokens count
    opens_each: float = _limit(inf, 2)  # traces of one visitor that are being opened, or wait for it, at a time
    traces: int = _limit(2_000_000_000, 200_000_000)  # bytes of opened traces in memory
    sessions: int = _limit(10_000, 500)  # browser sessions whose last runs are kept
    history_s: float = _limit(inf, 86_400)  # seconds that the history keeps a run
    history_each: float = _limit(inf, 20)  # runs of one visitor that the history keeps, and as many shared ones
    history_each_bytes: float = _limit(inf, 50_000_000)  # bytes of one visitor that the history keeps
    history: float = _limit(inf, 500_000_000)  # bytes that the history may take


FOR_VISITORS = Limits(**{it.name: it.metadata["for_visitors"] for it in fields(Limits)})


@dataclass(frozen=True)
class Access:
    """Permissions of visitors. `public`: whether strangers can reach the page. `models`: the names that visitors may
    type; None for any name. `hosts`: the names of this server that the operator gave; None where a platform runs its
    own proxy in front."""

    public: bool = False
    models: tuple[str, ...] | None = None
    limits: Limits = Limits()
    hosts: tuple[str, ...] | None = ()

    def takes_host(self, host: str) -> bool:
        """Returns whether a request with this `Host` is accepted. Another site can point a name of its own to this
        server, and its page then reads and starts whatever the reader can (DNS rebinding). So a name must be known,
        unless everybody may come anyway; an IP address cannot be redirected."""
        if self.hosts is None or (self.public and not self.hosts):
            return True
        name = host_name(host)
        return name in self.hosts or name == "localhost" or name.endswith(".localhost") or _is_address(name)

    def takes_forwarded_host(self, forwarded: str, host: str) -> bool:
        """Returns whether links may name the host that a proxy forwards instead of `Host`: a name that the operator
        gave; or on a public page any name, if the proxy has replaced the requested host by the server's address."""
        name = host_name(forwarded)
        if self.hosts is None or name in (host_name(host), *self.hosts):
            return True
        return self.public and not self.hosts and bool(name) and not _is_name(host_name(host))

    def typed(self, name: str) -> str:
        """Returns a model's name that a visitor typed in the form that the loaders take. It never looks for a folder of
        that name.

        Raises:
            PlaygroundError: the name is not allowed here.
        """
        name = name.strip()
        if not self.public or (self.models != () and (not name or name.isdecimal())):  # digits: a number of layers
            return name
        if allowed := [model for model in self.models or () if name in (model, called(model))]:
            return allowed[0]
        if self.models is None and HUB_ID.fullmatch(name):
            return f"{HUB}{name}"
        raise PlaygroundError(self.typing)

    @property
    def typing(self) -> str:
        """A sentence that says which models may be typed; "" for any."""
        if not self.public:
            return ""
        if self.models is None:
            return "On this server, a model is named by its id on the hub, as owner/name."
        if not self.models:
            return f"Custom models are off on this server. Pick one from the list, or {OWN_MACHINE}."
        names = ", ".join(map(called, self.models))
        return f"On this server, these models can be typed: {names}. For others, {OWN_MACHINE}."

    def without_secrets(self, text: str) -> str:
        """Returns a message as visitors may read it: for strangers without paths, host name and secrets of this
        machine."""
        return redacted(text) if self.public else text

    def check_length(self, texts: Any) -> None:
        """Checks the length of all texts in a value together. Typed texts are checked before anything else, because
        reading a text can take far longer than counting it.

        Raises:
            PlaygroundError: they are longer than this server takes.
        """
        length, most = characters(texts), self.limits.prompt
        check(
            length <= most,
            f"The prompt has {length:,} characters in all; this server takes {most:,}. Shorten it, or {OWN_MACHINE}.",
        )

    def check_grammar(self, request: Request) -> None:
        """Reads the request's grammar within this server's limits of time and memory.

        Raises:
            PlaygroundError: see `constraint.try_out`.
        """
        constraint.try_out(request, constraint.Effort(self.limits.grammar_s, self.limits.grammar_bytes))

    def check_request(self, request: Request) -> None:
        """Checks a request against the limits of a run.

        Raises:
            PlaygroundError: it exceeds one of them.
        """
        limits = self.limits
        self.check_length(request)
        check(
            request.max_new_tokens <= limits.new_tokens,
            f"This server decodes up to {limits.new_tokens:,} new tokens, not {request.max_new_tokens:,}. "
            f"Ask for fewer, or {OWN_MACHINE}.",
        )

    def alone(self, request: Request) -> Request:
        """Returns the request as it runs here. Strangers share no prefix cache: reused tokens would tell one visitor
        what another has asked."""
        return replace(request, prefix_cache=False) if self.public else request

    def check_servers(self) -> None:
        """Checks that servers may be named and started.

        Raises:
            PlaygroundError: visitors may not.
        """
        check(not self.public, NO_SERVERS)

    def admit(self, of_visitor: int, of_all: int) -> None:
        """Checks that one more run may wait. `of_visitor`, `of_all`: the runs of this visitor and of all that wait or
        run.

        Raises:
            PlaygroundError: there are too many now.
        """
        limits = self.limits
        check(
            of_visitor < limits.runs_each,
            f"{of_visitor} of your runs are waiting or running, or were just refused, the most on this server. Wait "
            "for one of them to end, or stop it.",
        )
        check(of_all < limits.runs, f"{of_all} runs are waiting, the most on this server. Try again in some minutes.")

    @property
    def no_turn(self) -> str:
        """The sentence for a run that waited too long."""
        waited = f"{self.limits.wait_s:,.0f} s"
        return f"The run waited {waited} for the runs before it, the most on this server. Try again in some minutes."

    @property
    def out_of_time(self) -> str:
        """The sentence for a run that took too long."""
        return f"The run was ended after {self.limits.run_s:,.0f} s, the most on this server. Ask for fewer tokens."


def access_for(public: bool, models: Sequence[str] = (), hosts: Sequence[str] = ()) -> Access:
    """Returns the access of a page. `models`: the names that strangers may type; "any" means every id on the hub.
    `hosts`: the server's names."""
    names = None if "SPACE_ID" in os.environ else tuple(filter(None, map(host_name, hosts)))
    if not public:
        return Access(hosts=names)
    return Access(public, None if "any" in models else tuple(models), FOR_VISITORS, names)


def called(model: str) -> str:
    """Returns the name by which visitors know a model that they may type: its id on the hub, or its folder without the
    path."""
    return model if HUB_ID.fullmatch(model) else SLASH.split(model.rstrip("/\\"))[-1]


def host_name(host: str) -> str:
    """Returns the name or address in a `Host` header, without port, brackets, case and the dot of the root; "" if it is
    neither."""
    found = HOST.fullmatch(host.strip())
    return found[1].strip("[]").lower().rstrip(".") if found else ""


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _is_name(name: str) -> bool:
    """Returns whether a name is one by which other machines may know this one."""
    return name != "localhost" and not _is_address(name)


def strangers_can_reach(addresses: Sequence[str], share: bool) -> bool:
    """Returns whether other machines or users can reach a page that listens on these IP addresses."""
    return share or "SPACE_ID" in os.environ or not all(ipaddress.ip_address(it).is_loopback for it in addresses)


def addresses_of(host: str) -> list[str]:
    """Returns the IP addresses of a host.

    Raises:
        PlaygroundError: there is no such host.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None)
    except OSError as error:
        raise PlaygroundError(f"There is no address {host!r} to listen on ({error}). Choose another --host.") from None
    return [str(address[0]).partition("%")[0] for *_, address in found]


def characters(value: Any) -> int:
    """Counts the characters of all texts in a value: a text, or a list, a dictionary or a dataclass that holds
    texts."""
    match value:
        case str():
            return len(value)
        case list() | tuple():
            return sum(map(characters, value))
        case Mapping():
            return sum(map(characters, value.values()))
    return characters(vars(value)) if is_dataclass(value) else 0


def visitor(address: str, session: str) -> str:
    """Returns the key by which the limits of one visitor are counted: an address on the internet, otherwise (behind a
    proxy) a browser session."""
    try:
        return address if ipaddress.ip_address(address).is_global else session
    except ValueError:
        return session


def redacted(text: str) -> str:
    """Returns a text without the folders of paths (their last part remains), this machine's name, and the values of
    secrets."""
    secrets = [value for name, value in os.environ.items() if SECRET.search(name) and len(value) >= 8]
    for secret in (*secrets, get_token() or "", socket.gethostname()):
        text = text.replace(secret, HIDDEN) if len(secret) > 3 else text
    return PATH.sub(lambda path: f"{HIDDEN}/{SLASH.split(path[0])[-1]}", text)
