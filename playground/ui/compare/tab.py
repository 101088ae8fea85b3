"""The layout of the Compare page, and the wiring of its events to their handlers."""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError
from playground.hosting.access import Access
from playground.hosting.turns import address_of
from playground.models.store import ModelStore
from playground.presets import Pair, Prompt
from playground.settings import SETTINGS
from playground.trace import Comparison
from playground.ui import panels
from playground.ui.compare import controls, prefill, rendered, why
from playground.ui.compare import shown as last_runs
from playground.ui.compare.handlers import Handlers
from playground.ui.compare.shown import Screen, Shown
from playground.ui.past import VisibleHistory, owner_of
from playground.ui.preload import Fits, Preload
from playground.ui.serve import StartedServers
from playground.ui.wiring import PRIVATE, QUIET, Filled, Gathered, Named, download, filled, in_browser

OUTCOME = ("details", "menu", "save")
ZONE = "(...inputs) => [...inputs.slice(0, -1), -new Date().getTimezoneOffset()]"  # the last is the minutes

Updates = AsyncGenerator[Named, None]  # of components by their names
Parts = dict[str, Any]  # components by their names


def lay_out(pairs: dict[str, Pair], default: Pair, examples: Sequence[Prompt], fits: Fits, access: Access) -> Parts:
    recorded = Screen.recorded()
    assert recorded.comparison
    parts = controls.build(pairs, default, recorded.comparison.standard.request.prompt, examples, fits, access)
    with parts["more"]:
        parts |= prefill.lay_out()
    with gr.Column(elem_id="result"):
        parts["menu"] = rendered.lay_out()  # in the corner of the stage, beside the verdict
        parts["stage"] = panels.stage(recorded.packed())
    parts["strip"] = last_runs.strip()
    parts["every"] = gr.Button("Run every drafter on this prompt", elem_id="every", size="sm", render=False)
    parts["details"] = gr.HTML(elem_id="details", render=False)
    with gr.Row(elem_id="actions", render=False) as parts["files"]:
        parts["save"] = gr.Button("Save trace", interactive=False, size="sm", elem_id="save", min_width=90, scale=0)
        parts["open"] = gr.UploadButton(
            "Open trace", type="binary", file_types=[".json"], size="sm", elem_id="open", min_width=90, scale=0
        )
        parts["file"] = panels.written()
    parts["shown"], parts["runs"] = gr.State(), gr.State([])
    parts["message"] = gr.State("")  # of the turn that is being added
    parts["saved"] = gr.Textbox(visible=False)  # the id of the run that the history has kept
    parts["tab"] = gr.Textbox(visible=False)  # the secret name of the browser's tab
    return parts


class LoadedModels:
    """What is in memory, which pairs can run, and which servers there are."""

    def __init__(
        self,
        parts: Parts,
        store: ModelStore,
        pairs: Mapping[str, Pair],
        preload: Preload,
        fits: Fits,
        own: StartedServers,
        access: Access,
    ) -> None:
        self._parts, self._store, self._pairs, self._preload = parts, store, pairs, preload
        self._fits, self._own, self._access = fits, own, access
        self.sampling = prefill.RecommendedSampling(parts, pairs, store.sampling_defaults)

    def after_run(self, gathered: Any) -> Named:
        """Returns updates for the models that a run may have downloaded and loaded. `gathered`: see `sampling`."""
        self._fits.refresh()
        return {"pair": self._choices(), "model": self._ready(), **self.sampling.check(gathered)}

    def wire(self, page: gr.Blocks) -> None:
        parts, fits, preload, own_servers = self._parts, self._fits, self._preload, self._own

        def listed() -> Any:
            fits.wait()
            return self._choices()

        async def loading() -> AsyncGenerator[str, None]:
            while not preload.done:
                yield panels.status(preload.latest.label, "busy", preload.latest.fraction)
                await asyncio.sleep(0.25)
            yield self._ready()

        loaded = page.load(loading, None, parts["model"], concurrency_limit=None, **PRIVATE)
        page.load(listed, None, parts["pair"], concurrency_limit=None, **PRIVATE)
        loaded.then(listed, None, parts["pair"], concurrency_limit=None, **PRIVATE)
        addresses = [parts["server"], parts["baseline_server"]]
        page.load(lambda: dict.fromkeys(addresses, gr.update(choices=own_servers.urls())), None, addresses, **PRIVATE)
        self.sampling.wire(loaded)
        prefill.wire_template(parts, self._pairs, self._store)

    def _choices(self) -> Any:
        return gr.update(choices=controls.pair_choices(self._fits, self._access))

    def _ready(self) -> Any:
        store, access, error = self._store, self._access, self._preload.error
        if store.current is None:
            return panels.status(access.without_secrets(error), "error") if error else gr.skip()
        if access.public and store.current.name not in self._pairs:
            return gr.skip()  # another visitor typed it
        return panels.status(f"{store.current.title} is ready")


def wire(
    page: gr.Blocks,
    parts: Parts,
    events: Handlers,
    past: VisibleHistory,
    pairs: Mapping[str, Pair],
    default: Pair,
    waiting: Mapping[str, Any],
    models: LoadedModels,
) -> None:
    """Connects buttons and handlers.

    Args:
        waiting: arguments of events that wait for the device.
    """
    stage = parts["stage"]
    selections = [stage.select, parts["open"].upload, parts["strip"].input]
    folds = why.wire(parts["shown"], pairs, selections, parts["every"], parts["details"])
    owner, minutes, linked = _wire_history(page, parts, events, past, pairs, default)
    _wire_sharing(parts, events, past, owner)
    _wire_runs(parts, events, past, pairs, waiting, models, folds, owner, minutes)
    chosen, opened = _wire_selection(page, parts, events)
    fills = [*opened, linked]
    why.renew([chosen, *fills])
    rendered.wire(parts["menu"], [it.then for it in fills], controls.inputs(parts), pairs)
    parts["files"].render()
    models.wire(page)


def _wire_runs(
    parts: Parts,
    events: Handlers,
    past: VisibleHistory,
    pairs: Mapping[str, Pair],
    waiting: Mapping[str, Any],
    models: LoadedModels,
    folds: Mapping[str, list[Any]],
    owner: gr.State,
    minutes: gr.JSON,
) -> None:
    """Wires Run, Which drafter?, Download, Measure it here, Repeat, Add a turn, and a run that goes on after a reload.

    A press is four events: the browser gathers the controls, clears the last results and turns the buttons off; the
    server streams the run, and then says all that follows it; the browser turns the buttons on again. Each comes after
    the one before also where that failed, so that a run can always be pressed again.

    Args:
        folds: changes that fold and empty the sections under a run.
        owner: whose history the run is added to.
        minutes: what the browser's clock is ahead of UTC; ZONE fills it.
    """
    fill, of, stage, shown = _by_name(parts)
    settings, sampling = Gathered([*controls.inputs(parts), *of(*controls.SERVERS)]), models.sampling
    handler = partial(_streaming, events, fill)

    def stream(session: str, values: Any, **how: Any) -> Updates:
        return events.stream(session, *controls.typed(settings.read(values)), **how)

    def accept(session: str, values: Any, **how: Any) -> Updates:
        return events.accept(session, *controls.typed(settings.read(values)), **how)

    def finish(owner: str, shown: Shown | None, runs: list[Shown], gathered: Any, minutes: float) -> Filled:
        ran = shown if shown and shown.pair else None  # where the run could not start, something else is still shown
        history = {**_strip(runs, ran, minutes), "saved": past.keep(owner, ran)}
        return fill({**events.finish(shown), **history, **models.after_run(gathered)})

    idle = of("run", "every", "open", "strip")
    begin, begin_again, begin_rejoining = _begin(parts, settings, sampling, pairs, idle, folds)
    buttons, on = in_browser({"interactive: true": idle, "interactive: false": of("stop")})
    end = f"(id) => {{ {rendered.SCRIPT}.showRun(id); {why.RENEW}; return {on}; }}"
    outcome = of(*OUTCOME, "drafter", "runs", "strip", "saved", "pair", "model", *sampling.LINE)
    picked = stage.option_select(_lane_of, None, of("drafter", "lookahead", "policy"), **QUIET)
    written = stage.submit(_message_of, None, parts["message"], **QUIET)
    run, every = handler("stream", stream), handler("stream_every", partial(stream, every=True))
    for press, first, then, inputs in (
        (parts["run"].click, begin, run, settings.input),
        (picked.success, begin, run, settings.input),
        (parts["every"].click, begin, every, settings.input),
        (stage.download, begin, handler("accept", accept), settings.input),
        (stage.retry, begin_again, handler("repeat", events.repeat), shown),
        (written.success, begin, handler("turn", events.turn), [shown, parts["message"]]),
        (stage.rejoin, begin_rejoining, handler("rejoin", events.rejoin), []),
    ):
        inputs = [*(inputs if isinstance(inputs, list) else [inputs]), parts["tab"]]
        streamed = press(**first, **QUIET).then(then, inputs, of("stage", "shown", "stop"), **waiting, **PRIVATE)
        given = [owner, shown, parts["runs"], sampling.chosen.input, minutes]
        finished = streamed.then(finish, given, outcome, js=ZONE, **PRIVATE)
        finished.then(None, parts["saved"], buttons, js=end, **PRIVATE)


def _streaming(
    events: Handlers, fill: Callable[[Named], Filled], name: str, start: Callable[..., Updates]
) -> Callable[..., AsyncGenerator[Filled, None]]:
    """Returns an event handler of this name. It yields what `start` does for a browser session and the event's inputs;
    the last input is the name of the browser's tab."""

    async def stream(request: gr.Request, *inputs: Any) -> AsyncGenerator[Filled, None]:
        session, (*values, tab) = str(request.session_hash), inputs
        updates = start(session, *values, tab=tab or "", address=address_of(request))
        events.begin(session)
        yield fill({"stop": gr.update(interactive=True)})
        async with aclosing(updates):
            async for update in updates:
                yield fill(update)

    stream.__name__ = name
    return stream


def _lane_of(pressed: gr.EventData) -> Any:
    """Returns updates of drafter, lookahead and policy, for the lane of a command that was not measured."""
    asked = pressed._data or {}
    drafter, lookahead = asked.get("drafter"), asked.get("lookahead")
    if drafter not in METHODS or not isinstance(lookahead, int) or not SETTINGS["lookahead"].accepts(lookahead):
        return gr.skip(), gr.skip(), gr.skip()
    return gr.update(value=drafter), gr.update(value=lookahead), gr.update(value="constant")


def _message_of(pressed: gr.EventData) -> str:
    return str((pressed._data or {}).get("message", ""))


def _begin(
    parts: Parts,
    settings: Gathered,
    sampling: prefill.RecommendedSampling,
    pairs: Mapping[str, Pair],
    idle: Sequence[Any],
    folds: Mapping[str, list[Any]],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Returns the arguments of the event with which the browser answers a press: for a new run, for a repeat, and for a
    run that is found again. A repeat leaves the results until there are better ones.

    Args:
        idle: buttons that cannot be pressed while a run lasts.
    """
    emptied = [parts["saved"], *folds["value: ''"]]
    off = {**folds, "interactive: false": [*idle], "value: ''": emptied}
    cleared = {
        **off,
        "interactive: false": [*idle, parts["save"]],
        "value: ''": [*emptied, parts["menu"]],
    }
    outputs, updates = in_browser(cleared)
    names, known = [*SETTINGS], json.dumps(prefill.defaults(pairs))
    chosen = ", ".join(f"values[{names.index(name)}]" for name in sampling.CONTROLS)

    def begin(act: str) -> dict[str, Any]:
        js = f"""(...values) => {{
          {rendered.SCRIPT}.{act}(values.slice(0, {len(names)}), {known});
          return [values, [{chosen}], ...{updates}];
        }}"""
        return {"fn": None, "inputs": settings.controls, "outputs": gathered, "js": js}

    gathered = [settings.input, sampling.chosen.input, *outputs]
    outputs_again, updates_again = in_browser(off)
    js = f"() => {{ {rendered.SCRIPT}.begins(); return {updates_again}; }}"
    again = {"fn": None, "inputs": None, "outputs": outputs_again, "js": js}
    return begin("showAddress"), again, begin("follow")


def _wire_selection(page: gr.Blocks, parts: Parts, events: Handlers) -> tuple[Dependency, list[Dependency]]:
    """Wires Stop, and the events that show another lane or another run. Returns the choice of a lane, and the events
    that fill the controls."""
    fill, of, stage, shown = _by_name(parts)
    strip, runs, open_ = parts["strip"], parts["runs"], parts["open"]
    drawn = of("stage", "shown", *OUTCOME)
    whole = [*drawn, *controls.inputs(parts)]

    async def stop_own(request: gr.Request) -> None:
        events.stop(str(request.session_hash))

    async def leave(request: gr.Request) -> None:
        events.leave(str(request.session_hash))

    async def choose(shown: Shown | None, pressed: gr.EventData, request: gr.Request) -> Filled:
        lane = (pressed._data or {}).get("lane")
        return fill(await events.choose(shown, lane, str(request.session_hash), address_of(request)))

    async def open_file(data: bytes | None, request: gr.Request) -> Filled:
        return fill(await events.open(data, str(request.session_hash), address_of(request)))

    def restore(runs: list[Shown], index: Any) -> Filled:
        return fill(events.restore(dict(enumerate(runs)).get(index)))

    parts["stop"].click(stop_own, **QUIET)
    page.unload(leave)
    chosen = stage.select(choose, shown, [*drawn, parts["drafter"]], **PRIVATE)
    opened = open_.upload(open_file, open_, whole, api_name="open", **PRIVATE)
    restored = strip.input(restore, [runs, strip], whole, **PRIVATE)
    open_.upload(lambda: gr.update(value=None), None, strip, **PRIVATE)
    return chosen, [opened, restored]


def _wire_history(
    page: gr.Blocks, parts: Parts, events: Handlers, past: VisibleHistory, pairs: Mapping[str, Pair], default: Pair
) -> tuple[gr.State, gr.JSON, Dependency]:
    """Wires what the page shows from the start: a recorded run, the comparison or the settings that its address names,
    or the run that went on when it was loaded anew.

    Returns:
        The owner of the page's history; a component that ZONE fills with what the browser's clock is ahead of UTC, in
        minutes; the event that fills the controls.
    """
    fill, of, _, shown = _by_name(parts)
    linked = gr.State("")  # the id of the address's run
    minutes = gr.JSON(visible=False)
    recorded = Screen.recorded()
    assert recorded.comparison
    first = {
        "shown": Shown(recorded.comparison, recorded.chosen),
        **rendered.outcome(recorded.comparison, recorded.chosen, pairs),
    }

    def of_address(owner: str, request: gr.Request) -> Filled:
        query, problem = dict(request.query_params), ""
        try:
            if found := past.linked(owner, query):
                return opened(found, query)
        except PlaygroundError as error:
            problem = str(error)
        values, ignored = prefill.from_address(query, pairs, default)
        if ignored:
            gr.Warning(html.escape(ignored))  # which takes HTML
        none = events.show_none(problem) if problem or query.keys() & {"pair", "prompt"} else {}
        return fill({**prefill.updates(values, pairs), **none})

    def opened(found: Comparison, query: Mapping[str, str]) -> Filled:
        shared, name = query.get("shared"), query.get("id")
        drawn = events.show(found, "a link" if shared else "the history", own=True)
        link = {"link": f"shared={shared}"} if shared else {"id": name}
        drawn["shown"] = replace(drawn["shown"], **link)
        return {**fill(drawn), linked: drawn["shown"].id}

    def add_opened(runs: list[Shown], shown: Shown | None, linked: str, minutes: float) -> Filled:
        """Adds the run of the address to the strip, where it was before another room was visited; but neither the
        recorded run nor one that was opened while the page loaded."""
        return fill(_strip(runs, shown, minutes)) if shown and shown.id == linked else gr.skip()

    def show_first() -> Filled:
        return fill(first)

    loaded = page.load(show_first, None, of("shown", *OUTCOME), **PRIVATE)
    owner, known = owner_of(loaded.then, past)
    whole = [*of("stage", "shown", *OUTCOME), *controls.inputs(parts)]
    back = known.then(of_address, owner, [*whole, linked], **PRIVATE)
    back.success(add_opened, [parts["runs"], shown, linked, minutes], of("runs", "strip"), js=ZONE, **PRIVATE)
    named = back.then(None, None, parts["tab"], js=f"() => {rendered.SCRIPT}.nameOfTab()", **PRIVATE)
    named.then(None, None, None, js=f"() => {rendered.SCRIPT}.lookForRun()", **PRIVATE)
    return owner, minutes, back


def _wire_sharing(parts: Parts, events: Handlers, past: VisibleHistory, owner: gr.State) -> None:
    """Wires the files that are saved, and the link to the run that is shown."""
    fill, _, _, shown = _by_name(parts)
    link = gr.Textbox(visible=False)  # what the address of a shared run asks for

    def share_run(owner: str, shown: Shown | None) -> str:
        try:
            return past.share(owner, shown)
        except PlaygroundError as problem:
            raise gr.Error(html.escape(str(problem)), print_exception=False) from None

    async def save(shown: Shown | None, page: str | None, pressed: gr.EventData, request: gr.Request) -> Filled:
        form = (pressed._data or {}).get("form", "json")
        return fill(await events.save(shown, form, page or "", str(request.session_hash), address_of(request)))

    address = gr.JSON(visible=False)  # of the page, as the browser knows it
    ask = f"(shown) => [shown, {rendered.SCRIPT}.publicAddress()]"
    for press in (parts["save"].click, parts["menu"].download):
        download(press, save, [shown, address], parts["file"], js=ask, concurrency_limit=1)
    copied = f"(query) => {rendered.SCRIPT}.copyRun(query)"
    parts["menu"].keep(share_run, [owner, shown], link, **PRIVATE).success(None, link, None, js=copied, **PRIVATE)


def _by_name(parts: Parts) -> tuple[Callable[[Named], Filled], Callable[..., list[Any]], Any, gr.State]:
    """Returns a function that turns a handler's values by name into those by component, one that returns components by
    their names, the stage, and the state of what it shows."""
    return partial(filled, parts), lambda *names: [parts[name] for name in names], parts["stage"], parts["shown"]


def _strip(runs: Sequence[Shown], shown: Shown | None, minutes: float) -> Named:
    """Returns the session's last runs, and the strip that offers them, with the shown one."""
    runs = last_runs.added(runs, shown)
    return {"runs": runs, "strip": last_runs.choices(runs, last_runs.index_of(runs, shown), minutes)}
