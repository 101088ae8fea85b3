"""The layout of the Compare page, and the wiring of its events to their handlers."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError
from playground.hosting.access import Access
from playground.hosting.turns import address_of
from playground.models.store import Store
from playground.presets import Pair, Prompt
from playground.ui import panels
from playground.ui.compare import controls, prefill, rendered, why
from playground.ui.compare import prefill as recommended_sampling
from playground.ui.compare import prefill as template_arguments
from playground.ui.compare import shown as last_runs
from playground.ui.compare.handlers import Handlers
from playground.ui.compare.shown import Screen, Shown
from playground.ui.past import VisibleHistory, owner_of
from playground.ui.preload import Fits, Preload
from playground.ui.serve import StartedServers
from playground.ui.wiring import PRIVATE, QUIET, Filled, Gathered, Named, filled
from playground.views import replay_file

SHARED = ("menu", "html", "save")
OUTCOME = ("details", *SHARED)
BUTTONS = ("run", "stop", "every", "open", "strip")
ZONE = "(...inputs) => [...inputs.slice(0, -1), -new Date().getTimezoneOffset()]"  # the last is the minutes

Parts = dict[str, Any]  # components by their names; of the controls, those of `Asked`


def lay_out(pairs: dict[str, Pair], default: Pair, examples: Sequence[Prompt], fits: Fits, access: Access) -> Parts:
    recorded = Screen.recorded()
    assert recorded.comparison
    asked, go = controls.build(pairs, default, recorded.comparison.standard.request.prompt, examples, fits, access)
    parts = {**asked, **go._asdict(), **recommended_sampling.lay_out()}
    parts["stage"] = panels.stage(recorded.packed())
    with gr.Row(elem_id="actions"):
        parts["save"] = gr.DownloadButton(
            "Save trace", interactive=False, size="sm", elem_id="save", min_width=90, scale=0
        )
        parts["open"] = gr.UploadButton(
            "Open trace", type="binary", file_types=[".json"], size="sm", elem_id="open", min_width=90, scale=0
        )
        parts |= rendered.lay_out()
    parts["strip"] = last_runs.strip()
    parts["details"] = gr.HTML(elem_id="details", render=False)  # below the folds
    parts["shown"], parts["kept"] = gr.State(), gr.State([])
    parts["message"] = gr.State("")  # of the turn that is being added
    return parts


def wire(
    page: gr.Blocks,
    parts: Parts,
    events: Handlers,
    past: VisibleHistory,
    pairs: Mapping[str, Pair],
    default: Pair,
    waiting: Mapping[str, Any],
) -> list[Dependency]:
    """What does not depend on where models come from. Returns the ends of runs.

    Args:
        waiting: arguments of events that wait for the device.
    """
    stage = parts["stage"]
    presses = [parts["run"].click, parts["every"].click, stage.download, stage.submit, stage.option_select]
    looks = [stage.retry, stage.select, parts["open"].upload, parts["strip"].input]
    why.wire(parts["shown"], pairs, [*presses, *looks])
    finished = _wire_runs(parts, events, waiting)
    chosen, looked = _wire_selection(page, parts, events)
    fills = [*looked, _wire_history(page, parts, events, past, finished)]
    why.renew([*finished, chosen, *fills])
    _wire_address(page, parts, pairs, default)
    asked = controls.inputs(parts)
    rendered.wire(parts["menu"], presses, [it.then for it in fills], asked, pairs)
    parts["details"].render()
    return finished


def _wire_runs(parts: Parts, events: Handlers, waiting: Mapping[str, Any]) -> list[Dependency]:
    """Run, Which drafter?, Download, Measure it here, Repeat and Add a turn. Returns the ends of runs."""
    fill, of, stage, shown = _by_name(parts)
    asked = Gathered([*controls.inputs(parts), *controls.server_inputs(parts)])

    async def begin(request: gr.Request) -> Filled:
        return fill(events.begin(str(request.session_hash)))

    async def begin_repeat(request: gr.Request) -> Filled:
        return fill(events.begin_repeat(str(request.session_hash)))

    async def begin_turn(pressed: gr.EventData, request: gr.Request) -> Filled:
        message = str((pressed._data or {}).get("message", ""))
        return fill({**events.begin(str(request.session_hash)), "message": message})

    async def stream(request: gr.Request, values: Any) -> AsyncGenerator[Filled, None]:
        typed = controls.typed(asked.read(values))
        async for update in _each(events.stream(str(request.session_hash), *typed, address=address_of(request))):
            yield fill(update)

    async def stream_every(request: gr.Request, values: Any) -> AsyncGenerator[Filled, None]:
        session, typed, address = str(request.session_hash), controls.typed(asked.read(values)), address_of(request)
        async for update in _each(events.stream(session, *typed, every=True, address=address)):
            yield fill(update)

    def pick(pressed: gr.EventData) -> Any:
        drafter = (pressed._data or {}).get("drafter")
        return gr.update(value=drafter) if drafter in METHODS else gr.skip()

    async def accept(request: gr.Request, values: Any) -> AsyncGenerator[Filled, None]:
        typed = controls.typed(asked.read(values))
        async for update in _each(events.accept(str(request.session_hash), *typed, address=address_of(request))):
            yield fill(update)

    async def repeat(request: gr.Request, shown: Shown | None) -> AsyncGenerator[Filled, None]:
        async for update in _each(events.repeat(str(request.session_hash), shown, address=address_of(request))):
            yield fill(update)

    async def turn(request: gr.Request, shown: Shown | None, message: str) -> AsyncGenerator[Filled, None]:
        updates = events.turn(str(request.session_hash), shown, message, address=address_of(request))
        async for update in _each(updates):
            yield fill(update)

    def finish(shown: Shown | None) -> Filled:
        return fill(events.finish(shown))

    results = of(*OUTCOME, *BUTTONS)
    finished = []
    picked = stage.option_select(pick, None, parts["drafter"], **QUIET)
    for press, first, cleared, then, inputs in (
        (parts["run"].click, begin, results, stream, asked.input),
        (picked.success, begin, results, stream, asked.input),
        (parts["every"].click, begin, results, stream_every, asked.input),
        (stage.download, begin, results, accept, asked.input),
        (stage.retry, begin_repeat, of(*BUTTONS), repeat, shown),
        (stage.submit, begin_turn, [*results, parts["message"]], turn, [shown, parts["message"]]),
    ):
        begun = asked.after(press(first, None, cleared, **QUIET).then)
        streamed = begun.then(then, inputs, [stage, shown], **waiting, **PRIVATE)
        finished.append(streamed.success(finish, shown, results, **PRIVATE))
        # Of a page that is older than the program Gradio shows a message alone.
        streamed.failure(lambda: finish(None), None, results, **PRIVATE)
    return finished


def _wire_selection(page: gr.Blocks, parts: Parts, events: Handlers) -> tuple[Dependency, list[Dependency]]:
    """Stop, and what shows another lane or another run. Returns the choice of a lane, and what fills the controls."""
    fill, of, stage, shown = _by_name(parts)
    strip, kept, open_ = parts["strip"], parts["kept"], parts["open"]
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
    chosen = stage.select(choose, shown, drawn, **PRIVATE)
    opened = open_.upload(open_file, open_, whole, api_name="open", **PRIVATE)
    restored = strip.input(restore, [kept, strip], whole, **PRIVATE)
    open_.upload(lambda: gr.update(value=None), None, strip, **PRIVATE)
    return chosen, [opened, restored]


def _wire_history(
    page: gr.Blocks, parts: Parts, events: Handlers, past: VisibleHistory, finished: Sequence[Dependency]
) -> Dependency:
    """What the page shows from the start: a recorded run, or the comparison that its address names. Each that ends is
    kept, in the history and in the strip. Returns what fills the controls."""
    fill, of, _, shown = _by_name(parts)
    kept, strip = parts["kept"], parts["strip"]
    linked = gr.State("")  # the id of the address's run
    minutes = gr.JSON(visible=False)  # what the browser's clock is ahead of UTC; ZONE fills it
    recorded = Screen.recorded()
    assert recorded.comparison
    first = Shown(recorded.comparison, recorded.chosen)

    def of_address(owner: str, request: gr.Request) -> Filled:
        try:
            found = past.linked(owner, dict(request.query_params))
        except PlaygroundError as problem:
            gr.Warning(html.escape(str(problem)))  # which takes HTML
            return gr.skip()
        source = "a link" if "shared" in request.query_params else "the history"
        if not found:
            return gr.skip()
        drawn = events.show(found, source, own=True)
        return {**fill(drawn), linked: drawn["shown"].id}

    def _keep(runs: list[Shown], shown: Shown | None, minutes: float) -> Filled:
        runs = last_runs.added(runs, shown)
        return {kept: runs, strip: last_runs.choices(runs, last_runs.index_of(runs, shown), minutes)}

    def _keep_opened(runs: list[Shown], shown: Shown | None, linked: str, minutes: float) -> Filled:
        """A run of the address is in the strip, as it was before another room was visited; no other is: not the
        recorded run, nor what was opened while the page loaded."""
        return _keep(runs, shown, minutes) if shown and shown.id == linked else gr.skip()

    def share_first() -> Filled:
        return fill({"shown": first, **events.share(first)})

    loaded = page.load(share_first, None, of("shown", *SHARED), **PRIVATE)
    owner, known = owner_of(loaded.then, past)
    whole = [*of("stage", "shown", *OUTCOME), *controls.inputs(parts)]
    back = known.then(of_address, owner, [*whole, linked], **PRIVATE)
    back.success(_keep_opened, [kept, shown, linked, minutes], [kept, strip], js=ZONE, **PRIVATE)
    saved = gr.Textbox(visible=False)  # the id of the run that the history has kept
    for end in finished:
        end.then(_keep, [kept, shown, minutes], [kept, strip], js=ZONE, **PRIVATE)
        end.then(past.keep, [owner, shown], saved, **PRIVATE).then(
            None, saved, None, js=f"(id) => {rendered.SCRIPT}.showRun(id)", **PRIVATE
        )
    link = gr.Textbox(visible=False)  # what the address of a shared run asks for

    def share_run(owner: str, shown: Shown | None) -> str:
        try:
            return past.share(owner, shown)
        except PlaygroundError as problem:
            raise gr.Error(html.escape(str(problem)), print_exception=False) from None

    def animate(shown: Shown | None, address: str | None) -> dict[str, Any]:
        assert shown, "the menu offers it of a run alone"
        return panels.saved("replay.gif", replay_file.build_gif(shown.comparison, shown.chosen, address or ""))

    address = gr.JSON(visible=False)  # of the page, as the browser knows it
    ask = f"(shown) => [shown, {rendered.SCRIPT}.publicAddress()]"
    drawn = parts["menu"].download(animate, [shown, address], parts["gif"], js=ask, concurrency_limit=1, **PRIVATE)
    drawn.success(None, None, None, js="() => document.getElementById('save-gif').click()", **PRIVATE)
    copied = f"(query) => {rendered.SCRIPT}.copyRun(query)"
    parts["menu"].keep(share_run, [owner, shown], link, **PRIVATE).success(None, link, None, js=copied, **PRIVATE)
    return back


def _wire_address(page: gr.Blocks, parts: Parts, pairs: Mapping[str, Pair], default: Pair) -> None:
    """Fills the controls from the page's address."""

    def fill(request: gr.Request) -> Filled:
        values, ignored = prefill.from_address(dict(request.query_params), pairs, default)
        if ignored:
            gr.Warning(html.escape(ignored))  # which takes HTML
        return filled(parts, prefill.updates(values, pairs))

    page.load(fill, None, controls.inputs(parts), **PRIVATE)


def wire_models(
    page: gr.Blocks,
    parts: Parts,
    model: gr.HTML,
    store: Store,
    pairs: Mapping[str, Pair],
    preload: Preload,
    fits: Fits,
    own: StartedServers,
    access: Access,
    finished: Sequence[Dependency],
) -> None:
    """What is in memory, which pairs can run, and which servers there are.

    Args:
        model: says what is in memory.
        finished: the ends of runs, after which it may be another.
    """

    def listed() -> Any:
        fits.wait()
        return gr.update(choices=controls.pair_choices(fits))

    def listed_again() -> Any:
        fits.refresh()
        return gr.update(choices=controls.pair_choices(fits))

    async def loading() -> AsyncGenerator[str, None]:
        while not preload.done:
            yield panels.status(preload.latest.label, "busy", preload.latest.fraction)
            await asyncio.sleep(0.25)
        yield ready()

    def ready() -> Any:
        if store.current is None:
            return panels.status(access.told(preload.error), "error") if preload.error else gr.skip()
        if access.public and store.current.name not in pairs:
            return gr.skip()  # another visitor typed it
        return panels.status(f"{store.current.title} is ready")

    loaded = page.load(loading, None, model, concurrency_limit=None, **PRIVATE)
    page.load(listed, None, parts["pair"], concurrency_limit=None, **PRIVATE)
    loaded.then(listed, None, parts["pair"], concurrency_limit=None, **PRIVATE)
    for end in finished:
        end.then(listed_again, None, parts["pair"], **PRIVATE)
        end.then(ready, None, model, **PRIVATE)
    addresses = [parts["server"], parts["baseline_server"]]
    page.load(lambda: dict.fromkeys(addresses, gr.update(choices=own.urls())), None, addresses, **PRIVATE)
    recommended_sampling.wire_sampling(parts, pairs, store.sampling_defaults, [loaded, *finished])
    template_arguments.wire_template(parts, pairs, store)


def _by_name(parts: Parts) -> tuple[Callable[[Named], Filled], Callable[..., list[Any]], Any, gr.State]:
    """What handlers return by names, and lists of components by their names; the stage, and what it shows."""
    return partial(filled, parts), lambda *names: [parts[name] for name in names], parts["stage"], parts["shown"]


async def _each(updates: AsyncGenerator[Named, None]) -> AsyncGenerator[Named, None]:
    """The same, closed when this is."""
    async with aclosing(updates):
        async for update in updates:
            yield update
