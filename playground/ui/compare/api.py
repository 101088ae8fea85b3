"""The comparison as endpoints for other programs: `/compare`, and the MCP tool `watch` for chats.

`/compare` takes the settings of SETTINGS and returns a comparison. `watch` answers in a few lines, and clients of MCP
Apps show its replay as a view (the extension io.modelcontextprotocol/ui, version 2026-01-26).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, get_type_hints
from urllib.parse import parse_qsl

import gradio as gr
from anyio import to_thread

from playground import export
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, check
from playground.hosting.access import visitor
from playground.hosting.turns import address_of
from playground.presets import OWN, Pair
from playground.settings import SETTINGS
from playground.ui import rooms
from playground.ui.compare.controls import DEFAULTS, OF_A_PAIR, CompareOptions
from playground.ui.compare.handlers import Handlers
from playground.ui.past import VisibleHistory
from playground.views import replay_file, stage
from playground.views.comparison import markdown

T = TypeVar("T")
ANY_WAY = inspect.Parameter.POSITIONAL_OR_KEYWORD


def publish(
    page: gr.Blocks, events: Handlers, past: VisibleHistory, pairs: Mapping[str, Pair], concurrency: Mapping[str, Any]
) -> None:
    """Adds the endpoint `/compare` and the tool `watch` to the page, each parameter described with the values that it
    accepts."""

    async def compare(request: gr.Request, options: CompareOptions) -> dict:
        """Runs a prompt through a language model twice, with standard and with speculative decoding, and returns the
        whole comparison as JSON: each lane with its settings, environment, rounds (every draft token with its
        probabilities and the decision) and metrics such as tokens per second and acceptance rate. It can take minutes.
        `replay`, on the user's own machine, is the address of a page that shows the run, to give to the reader.
        `pair` is a preset's name, or "own" to use `target` and `assistant`.
        """
        shown = await events.compare(str(request.session_hash), options, address=address_of(request))
        data = await to_thread.run_sync(export.to_json, shown.comparison)
        kept = past.keep("", shown)  # not a stranger's, who has no history here
        return {**data, "replay": f"{request.base_url}?id={kept}"} if kept else data

    async def watch(request: gr.Request, options: CompareOptions) -> str:
        """Runs a prompt through a language model twice, with standard and with speculative decoding, and shows the
        reader the replay in clients that show views of tools. Returns JSON: `summary`, the figures of both lanes as
        Markdown, and `replay`, the address of a page that shows the run, to give to the reader ("" if it cannot
        be stored). On a public link the address works for a while, for everybody who has it. It can take
        minutes; `compare` returns every round.
        `pair` is a preset's name, or "own" to use `target` and `assistant`.
        """
        session, address = str(request.session_hash), address_of(request)
        shown = await events.compare(session, options, address=address)
        summary = await to_thread.run_sync(markdown, shown.comparison, [*pairs.values()])
        query = ""
        with suppress(PlaygroundError):  # the history cannot be written
            query = past.share(past.client(visitor(address, session)), shown)
        replay = f"{rooms.home() or request.base_url}?{query}" if query else ""
        return json.dumps({"summary": summary, "replay": replay})

    add(page, "compare", with_settings(compare), descriptions(pairs), **concurrency)
    shows = gr.mcp.tool(_meta={"ui": {"resourceUri": VIEW}})
    add(page, "watch", shows(with_settings(watch)), descriptions(pairs), **concurrency)


VIEW = "ui://playground/replay.html"
NO_ADDRESS = "`replay` is the address that the tool `watch` gave."


def publish_view(page: gr.Blocks, past: VisibleHistory) -> None:
    """Adds the view of `watch`, and the endpoint from which the view gets its run."""

    def watched(replay: str) -> str:
        """Returns the run at an address as JSON, for the view of `watch` to draw."""
        try:
            comparison = past.linked("", dict(parse_qsl(replay.partition("?")[2])))
            check(comparison is not None, NO_ADDRESS)
        except PlaygroundError as problem:
            raise gr.Error(str(problem), print_exception=False) from problem
        assert comparison
        return json.dumps(stage.packed(stage.replaying(comparison).value()), separators=(",", ":"))

    def replay_view() -> str:
        """Returns the replay of a run that `watch` made, as HTML for clients of MCP Apps."""
        return replay_file.in_chat()

    for_view = gr.mcp.tool(_meta={"ui": {"resourceUri": VIEW, "visibility": ["app"]}})
    add(page, "watched", for_view(watched), {"replay": NO_ADDRESS})
    add(page, "replay_view", gr.mcp.resource(VIEW, mime_type="text/html;profile=mcp-app")(replay_view), {})


def descriptions(pairs: Iterable[str]) -> dict[str, str]:
    """Describes each of SETTINGS in a line, by its name."""
    choices = {"pair": [*pairs, OWN], "drafter": [*METHODS]}
    return {name: describe(name, choices.get(name, ()), optional=name in OF_A_PAIR) for name in SETTINGS}


def add(page: gr.Blocks, name: str, call: Callable, descriptions: Mapping[str, str], **more: Any) -> None:
    """Adds an endpoint to the page.

    Args:
        call: the handler; gr.api reads names, types and defaults from its signature.
        descriptions: a line on each parameter, in the order of the signature.
        more: further arguments of gr.api.
    """
    call.__name__ = name
    # An MCP server reads the descriptions of a tool's parameters here.
    call.__doc__ = "\n".join([str(call.__doc__), "", "Parameters:", *map(": ".join, descriptions.items())])
    published = gr.api(call, api_name=name, **more)
    # gr.api labels the parameters by their number, and takes no descriptions.
    inputs: Sequence[Any] = page.fns[published["id"]].inputs
    for (parameter, text), component in zip(descriptions.items(), inputs, strict=True):
        component.label = (
            SETTINGS[parameter].label if parameter in SETTINGS else parameter.replace("_", " ").capitalize()
        )
        component._api_info = {**component._api_info, "description": text, "additional_description": text}


def describe(name: str, choices: Iterable[str], *, optional: bool) -> str:
    """Describes a parameter in a line: what it accepts, what it is for, and what None means where it may be None."""
    setting = SETTINGS[name]
    allowed = f"one of {', '.join(choices)}" if choices else setting.allowed
    default = " None uses the preset's value." if optional else ""
    return f"{allowed[0].upper()}{allowed[1:]}; {setting.help}.{default}"


def with_settings(run: Callable[[gr.Request, CompareOptions], Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """Turns `run` into a function with a parameter for each of SETTINGS. `gr.api` reads names, types and defaults from
    its signature."""

    async def call(request: gr.Request, *values: Any) -> T:
        return await run(request, CompareOptions(dict(zip(SETTINGS, values, strict=True))))

    parameters = [inspect.Parameter("request", ANY_WAY, annotation=gr.Request), *map(_parameter, SETTINGS)]
    returns = get_type_hints(run)["return"]
    call.__doc__ = run.__doc__
    call.__annotations__ = {it.name: it.annotation for it in parameters} | {"return": returns}
    call.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
    return call


def _parameter(name: str) -> inspect.Parameter:
    """Returns a setting as a parameter of a signature. Every parameter but the prompt is optional."""
    kind = type(SETTINGS[name].default)
    default = inspect.Parameter.empty if name == "prompt" else DEFAULTS[name]
    return inspect.Parameter(name, ANY_WAY, default=default, annotation=kind | None if name in OF_A_PAIR else kind)
