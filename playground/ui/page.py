"""The page: its layout, and which button calls which handler."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency
from starlette.middleware import Middleware

from playground.backends.local import LocalBackend
from playground.experiments.history import History
from playground.experiments.jobs import Jobs
from playground.experiments.kinds import KINDS
from playground.experiments.kinds.kind import Kind
from playground.experiments.runner import Runner
from playground.hosting.access import Access
from playground.hosting.page_head import PageHead
from playground.hosting.quiet_blocks import QuietBlocks
from playground.hosting.readers import address_of
from playground.hosting.request_filter import RequestFilter
from playground.hosting.size_limits import SizeLimits
from playground.presets import Pair, Prompt
from playground.ui import panels
from playground.ui.compare import controls, last_runs, prefill, recommended_sampling, share, why
from playground.ui.compare.api import publish
from playground.ui.compare.handlers import SHARED, BackendFor, Elsewhere, Handlers, Shown
from playground.ui.compare.screen import Screen
from playground.ui.experiments import api as experiments_api
from playground.ui.experiments import tab as experiment_tab
from playground.ui.experiments.controls import Models
from playground.ui.experiments.service import Experiments
from playground.ui.fits import Fits
from playground.ui.history import owner
from playground.ui.history import tab as history_tab
from playground.ui.history.visible import VisibleHistory
from playground.ui.preload import Preload
from playground.ui.servers import tab as servers_tab
from playground.ui.servers.started import LOOKUP, PLAIN, StartedServers
from playground.views import scripts

TITLE = "Speculative Decoding Playground"
TAGLINE = (
    "A small drafter guesses ahead; the model checks several guesses in one pass. Same answer, fewer passes. "
    "See whether it speeds up your model, and why."
)
SHORT = 8  # calls at a time of each handler that does not run models
BESIDES = 64  # events under way beside the runs; and runs beyond the limit, which are answered with a sentence
DAY_S = 86_400
Updates = AsyncGenerator[tuple[Any, ...], None]
ZONE = "(kept, shown) => [kept, shown, -new Date().getTimezoneOffset()]"

# fmt: off
BLUE = gr.themes.Color(
    "#eef6fc", "#d6eaf7", "#aed6ef", "#7fbde4", "#4aa0d5", "#1d85c2", "#0072b2", "#005f95", "#064d78", "#0a3f62",
    "#082a42",
)  # shades of Okabe and Ito's blue, light to dark
# fmt: on


def build(
    store: Any,
    pairs: dict[str, Pair],
    default: Pair,
    examples: Sequence[Prompt],
    *,
    problems: list[str] | None = None,
    backend_for: BackendFor | None = None,
    elsewhere: Elsewhere | None = None,
    access: Access = Access(),  # noqa: B008  # frozen
    history: History | None = None,
) -> gr.Blocks:
    """The page over a model store. `default` begins to load here, in the background; `problems` are shown on top.
    `backend_for` replaces the local backend, for tests; `elsewhere` decodes in other processes; `access` says what
    visitors may do; `history` keeps long experiments, by default for as long as the page lives."""
    runner = Runner()
    events = Handlers(
        pairs, backend_for or (lambda pair: LocalBackend(store, pair)), store.fit, elsewhere, access, runner
    )
    limits = access.limits
    history = history or History(None, limits.history_s, limits.history_each, limits.history)
    past = VisibleHistory(history, access)
    own = StartedServers()
    experiments = Experiments(Jobs(history, events.prepared, runner), history, access)
    waiting = {"concurrency_id": "device", "concurrency_limit": limits.runs + BESIDES // 2}
    fits = Fits(pairs, store.fit)
    preload = Preload(lambda progress: store.get(default, drafter=default.drafter, progress=progress))
    with QuietBlocks(title=TITLE, analytics_enabled=False, delete_cache=(DAY_S, DAY_S)) as page:
        _navigation()
        with gr.Row(elem_id="header"):
            gr.HTML(f"<h1>{TITLE}</h1><p>{TAGLINE}</p>")
            model = gr.HTML(elem_id="model")
        for problem in problems or []:
            gr.HTML(panels.status(access.told(problem), "error"))
        recorded = Screen.recorded()
        asked, settings, outputs = _lay_out(pairs, default, examples, fits, access, recorded)
        finished = _wire(page, events, asked, outputs, waiting, recorded, pairs, past)
        run, _, every, *_ = outputs.buttons
        stage: Any = outputs.stage
        starts = [run.click, every.click, stage.download]
        share.wire(outputs.share, starts, controls.inputs(asked), pairs)

        def listed() -> Any:
            fits.wait()
            return gr.update(choices=controls.pair_choices(fits))

        def listed_again() -> Any:
            fits.refresh()
            return gr.update(choices=controls.pair_choices(fits))

        async def loading() -> AsyncGenerator[str, None]:
            async for status in _loading(preload):
                yield status
            yield ready()

        def ready() -> Any:
            if store.current is None:
                return panels.status(access.told(preload.error), "error") if preload.error else gr.skip()
            if access.public and store.current.name not in pairs:
                return gr.skip()  # another visitor typed it
            return panels.status(f"{store.current.title} is ready")

        shown: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        loaded = page.load(loading, None, model, concurrency_limit=None, **shown)
        page.load(listed, None, asked["pair"], concurrency_limit=None, **shown)
        for end in finished:
            end.then(listed_again, None, asked["pair"], **shown)
            end.then(ready, None, model, **shown)
        _fill_from_address(page, asked, pairs, default)
        addresses = [asked["server"], asked["baseline_server"]]
        page.load(lambda: [gr.update(choices=own.urls())] * 2, None, addresses, **shown)
        recommended_sampling.wire(settings, asked, pairs, store.sampling_defaults, [loaded, *finished])
        publish(page, events, pairs, waiting)
        experiments_api.publish(page, experiments, pairs)
    models = Models(pairs, default, fits)
    started = {"baseline_server": lambda: own.url(PLAIN), "server": lambda: own.url(LOOKUP)}

    def build_tab(kind: Kind) -> Callable[[], None]:
        return lambda: experiment_tab.build(page, kind, experiments, models, started)

    tabs: dict[str, Callable[[], None]] = {
        **{kind.name.capitalize(): build_tab(kind) for kind in KINDS.values() if kind.pair},
        "Servers": lambda: servers_tab.build(page, access, own, events.turns),
        **{kind.name.capitalize(): build_tab(kind) for kind in KINDS.values() if not kind.pair},
        "History": lambda: history_tab.build(page, past, access),
    }
    for name, tab in tabs.items():
        with page.route(name):
            _navigation()
            tab()
    page.queue(api_open=False, max_size=2 * limits.runs, default_concurrency_limit=SHORT)
    return page


def _navigation() -> None:
    gr.Navbar(main_page_name="Compare")


def bounds(access: Access) -> dict[str, Any]:
    """What the server may hold, as arguments for `launch`. Each run that waits is an event under way."""
    limits = access.limits
    return {
        "max_threads": limits.runs + BESIDES,
        "max_file_size": limits.upload,
        "state_session_capacity": limits.sessions,
        "run_history": not access.public,
    }


def look(access: Access = Access()) -> dict[str, Any]:  # noqa: B008  # frozen
    """The theme, style sheet and script of the page, as arguments for `launch`."""
    return {
        "theme": gr.themes.Default(
            primary_hue=BLUE,
            secondary_hue=BLUE,
            neutral_hue=gr.themes.colors.gray,
            spacing_size=gr.themes.sizes.spacing_sm,
            radius_size=gr.themes.sizes.radius_sm,
            text_size=gr.themes.sizes.text_sm,
            font=("ui-sans-serif", "system-ui", "sans-serif"),
            font_mono=("ui-monospace", "monospace"),
        ).set(
            button_primary_background_fill="*primary_600",
            button_primary_background_fill_hover="*primary_700",
            body_text_color_subdued="#57606a",
            body_text_color_subdued_dark="#a3abb5",
        ),
        "css_paths": scripts.styles(),
        "js": f"() => {scripts.bundle('page.js')}.page()",
        "footer_links": ["api", "settings"],
        # Else Gradio asks its own server for the page and gives up after 3 s, which a busy machine may take.
        "_frontend": False,
        "app_kwargs": {
            "middleware": [
                Middleware(SizeLimits, limits=access.limits),
                Middleware(RequestFilter, limits=access.limits),
                Middleware(PageHead, title=TITLE, description=TAGLINE),
            ]
        },
    }


@dataclass(frozen=True)
class Outputs:
    """The components that handlers update, in the order in which `Handlers` returns values."""

    stage: Component
    outcome: list[Component]
    buttons: list[Any]
    share: share.Share


def _lay_out(
    pairs: dict[str, Pair], default: Pair, examples: Sequence[Prompt], fits: Fits, access: Access, recorded: Screen
) -> tuple[controls.Controls, recommended_sampling.SamplingRow, Outputs]:
    asked, go = controls.build(pairs, default, examples, fits, access)
    own = recommended_sampling.lay_out()
    stage = panels.stage(recorded.packed())
    with gr.Row(elem_id="actions"):
        panels.legend()
        save = gr.DownloadButton("Save trace", interactive=False, size="sm", elem_id="save", min_width=90, scale=0)
        open_ = gr.UploadButton(
            "Open trace", type="binary", file_types=[".json"], size="sm", elem_id="open", min_width=90, scale=0
        )
        clear = gr.Button("Clear", size="sm", elem_id="clear", min_width=60, scale=0)
        shared = share.lay_out()
    strip = last_runs.strip()
    with gr.Row(elem_id="charts"):
        race, acceptance = panels.empty_plot(), panels.empty_plot()
    memory = gr.HTML(elem_id="memory")
    details = gr.HTML(elem_id="details")
    outputs = Outputs(
        stage=stage,
        outcome=[details, memory, race, acceptance, shared.menu, shared.file, save],
        buttons=[go.run, go.stop, go.every, clear, open_, strip],
        share=shared,
    )
    return asked, own, outputs


def _wire(
    page: gr.Blocks,
    events: Handlers,
    asked: controls.Controls,
    outputs: Outputs,
    waiting: dict[str, Any],
    recorded: Screen,
    pairs: dict[str, Pair],
    past: VisibleHistory,
) -> list[Dependency]:
    """Returns the ends of runs, which further handlers may follow."""
    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    run, stop, every, clear, open_, strip = outputs.buttons
    stage: Any = outputs.stage
    shown, kept = gr.State(), gr.State([])
    minutes = gr.JSON(visible=False)  # what the browser's clock is ahead of UTC; ZONE fills it

    async def begin(request: gr.Request) -> tuple[Any, ...]:
        return events.begin(str(request.session_hash))

    async def begin_repeat(request: gr.Request) -> tuple[Any, ...]:
        return events.begin_repeat(str(request.session_hash))

    @_streamed
    def stream(session: str, *values: Any, **who: Any) -> Updates:
        return events.stream(session, *controls.typed(values), **who)

    @_streamed
    def stream_every(session: str, *values: Any, **who: Any) -> Updates:
        return events.stream(session, *controls.typed(values), every=True, **who)

    @_streamed
    def accept(session: str, *values: Any, **who: Any) -> Updates:
        return events.accept(session, *controls.typed(values), **who)

    repeat = _streamed(events.repeat)

    async def choose(shown: Shown | None, pressed: gr.EventData, request: gr.Request) -> tuple[Any, ...]:
        lane = (pressed._data or {}).get("lane")
        return await events.choose(shown, lane, str(request.session_hash), address_of(request))

    async def open_file(data: bytes | None, request: gr.Request) -> tuple[Any, ...]:
        return await events.open(data, str(request.session_hash), address_of(request))

    def restore(past: list[Shown], index: Any) -> tuple[Any, ...]:
        return events.restore(dict(enumerate(past)).get(index))

    async def stop_own(request: gr.Request) -> None:
        events.stop(str(request.session_hash))

    async def leave(request: gr.Request) -> None:
        events.leave(str(request.session_hash))

    results = [*outputs.outcome, *outputs.buttons]
    asked_for = controls.inputs(asked)
    typed = [*asked_for, *controls.server_inputs(asked)]
    streams = [
        run.click(begin, None, results, queue=False, **private).then(
            stream, typed, [stage, shown], **waiting, **private
        ),
        every.click(begin, None, results, queue=False, **private).then(
            stream_every, typed, [stage, shown], **waiting, **private
        ),
        stage.download(begin, None, results, queue=False, **private).then(
            accept, typed, [stage, shown], **waiting, **private
        ),
        stage.retry(begin_repeat, None, outputs.buttons, queue=False, **private).then(
            repeat, shown, [stage, shown], **waiting, **private
        ),
    ]
    finished = [streamed.success(events.finish, shown, results, **private) for streamed in streams]
    for streamed in streams:  # Gradio rejects some values before any handler sees them, and shows a message of its own.
        streamed.failure(lambda: events.finish(None), None, results, **private)
    for end in finished:
        end.then(_keep, [kept, shown, minutes], [kept, strip], js=ZONE, **private)
    stage.select(choose, shown, [stage, shown, *outputs.outcome], **private)
    stop.click(stop_own, queue=False, **private)
    page.unload(leave)
    clear.click(events.clear, None, [stage, shown, *outputs.outcome], queue=False, **private)
    filled = [stage, shown, *outputs.outcome, *asked_for]
    open_.upload(open_file, open_, filled, api_name="open", **private)
    strip.input(restore, [kept, strip], filled, **private)
    gr.on([clear.click, open_.upload], lambda: gr.update(value=None), None, strip, **private)
    assert recorded.comparison
    first = Shown(recorded.comparison, recorded.chosen)
    loaded = page.load(lambda: (first, *events.share(first)), None, [shown, *outputs.outcome[-SHARED:]], **private)
    owner.wire(past, events, loaded.then, shown, filled, finished)
    begun = [run.click, every.click, stage.download, stage.retry]
    why.wire(shown, pairs, [*begun, stage.select, clear.click, open_.upload, strip.input])
    return finished


def _streamed(updates: Callable[..., Updates]) -> Callable[..., Updates]:
    """A handler that yields what `updates` makes of a session, the values of the inputs and the browser's address."""

    async def handle(request: gr.Request, *values: Any) -> Updates:
        async with aclosing(updates(str(request.session_hash), *values, address=address_of(request))) as each:
            async for update in each:
                yield update

    handle.__name__ = updates.__name__  # by which Gradio calls it
    return handle


def _keep(past: list[Shown], shown: Shown | None, minutes: float) -> tuple[list[Shown], dict[str, Any]]:
    """The session's last runs, with the one that has just ended."""
    past = last_runs.added(past, shown)
    return past, last_runs.choices(past, last_runs.index_of(past, shown), minutes)


def _fill_from_address(page: gr.Blocks, asked: controls.Controls, pairs: dict[str, Pair], default: Pair) -> None:
    def fill(request: gr.Request) -> list[Any]:
        values, ignored = prefill.from_address(dict(request.query_params), pairs, default)
        if ignored:
            gr.Warning(html.escape(ignored))  # which takes HTML
        return prefill.updates(values, pairs)

    page.load(fill, None, controls.inputs(asked), show_progress="hidden", api_visibility="private")


async def _loading(preload: Preload) -> AsyncGenerator[str, None]:
    """The progress of the default pair, until it is loaded."""
    while not preload.done:
        yield panels.status(preload.latest.label, "busy", preload.latest.fraction)
        await asyncio.sleep(0.25)
