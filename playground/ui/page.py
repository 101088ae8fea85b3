"""The page: its rooms, its look, and the bounds of its server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import gradio as gr
from gradio.routes import App
from starlette.middleware import Middleware

from playground.backends.local import LocalBackend
from playground.experiments.history import History
from playground.experiments.kinds import KINDS
from playground.experiments.session import Session
from playground.hosting.access import Access
from playground.hosting.page_head import PageHead, QuietBlocks
from playground.hosting.request_filter import RequestFilter, SizeLimits
from playground.models.store import ModelStore
from playground.presets import Pair, Prompt
from playground.progress import Progress
from playground.ui import panels, past, rooms, serve
from playground.ui.compare import api, tab
from playground.ui.compare.controls import group_headings
from playground.ui.compare.handlers import BackendFor, Decoding, Elsewhere, Handlers
from playground.ui.experiments import api as experiments_api
from playground.ui.experiments import best
from playground.ui.experiments import tab as experiment_tab
from playground.ui.experiments.controls import Models
from playground.ui.experiments.service import Experiments
from playground.ui.preload import Fits, Preload
from playground.ui.serve import LOOKUP, PLAIN, StartedServers
from playground.views import scripts

TAGLINE = "A small model guesses the next words; the big one checks them all at once. Same answer, fewer steps."
SHORT = 8  # concurrent calls of each handler that does not run models
MORE_EVENTS = 64  # events in progress besides the runs; also runs beyond the limit, which are refused with a sentence
# How often Gradio checks for waiting events. Its default of 0.001 s takes time from the cores that decode.
POLL_S = 0.02
DAY_S = 86_400

# fmt: off
TEXT = gr.themes.Size(name="text", xxs="12px", xs="12px", sm="12px", md="14px", lg="16px", xl="20px", xxl="20px")
BLUE = gr.themes.Color(
    "#eef6fc", "#d6eaf7", "#aed6ef", "#7fbde4", "#4aa0d5", "#1d85c2", "#0072b2", "#005f95", "#064d78", "#0a3f62",
    "#082a42",
)  # shades of Okabe and Ito's blue, light to dark
# fmt: on


def build(
    store: ModelStore,
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
    """Builds the page over a model store.

    Args:
        default: the pair that begins to load in the background.
        problems: sentences that are shown at the top.
        backend_for: replaces the local backend, for tests.
        elsewhere: decodes in other processes.
        access: what visitors may do.
        history: stores long experiments; by default they last as long as the page.
    """
    limits = access.limits
    decoding = Decoding(backend_for or (lambda pair: LocalBackend(store, pair)), store.fit, elsewhere)
    bounds = limits.history_s, limits.history_each, limits.history_each_bytes, limits.history
    history = history or History(None, *bounds)
    session = Session(history, decoding)
    events = Handlers(pairs, decoding, session, access)
    visible = past.VisibleHistory(history, access)
    own_servers = StartedServers()
    experiments = Experiments(session, access)
    waiting = {"concurrency_id": "device", "concurrency_limit": limits.runs + MORE_EVENTS // 2}
    fits = Fits(pairs, store.fit)

    def load(progress: Callable[[Progress], None]) -> None:
        store.get(default, drafter=default.drafter, progress=progress)
        fits.find(default.name)  # downloaded by now

    preload = Preload(load)
    with (
        _no_server_yet(),
        QuietBlocks(title=rooms.TITLE, analytics_enabled=False, delete_cache=(DAY_S, DAY_S)) as page,
    ):
        page.queue(api_open=False, max_size=2 * limits.runs, default_concurrency_limit=SHORT)
        page.without_secrets, page.linked = access.without_secrets, partial(visible.linked, "")
        model = _head(problems or [], access)
        parts = tab.lay_out(pairs, default, examples, fits, access) | {"model": model}
        loaded = tab.LoadedModels(parts, store, pairs, preload, fits, own_servers, access)
        tab.wire(page, parts, events, visible, pairs, default, waiting, loaded)
        api.publish(page, events, visible, pairs, waiting)
        api.publish_view(page, visible)
        experiments_api.publish(page, experiments, pairs)
        models = Models(pairs, default, fits)
        started = {"baseline_server": lambda: own_servers.url(PLAIN), "server": lambda: own_servers.url(LOOKUP)}
        _begin(page, rooms.BEST_PAGE, access)
        best.build(page, experiments, models)
        for kind in (kind for kind in KINDS.values() if not kind.shared):
            _begin(page, kind.page, access)
            experiment_tab.build(page, kind, experiments, models, started)
        _begin(page, "servers", access)
        serve.build(page, access, own_servers, events.turns)
        _begin(page, "history", access)
        past.build(page, visible, access)
        _begin(page, rooms.RECORDS_PAGE, access)
        past.build_records(page, access)
        _begin(page, rooms.DOCS, access)
        rooms.build(page)
    page._queue.sleep_when_free = page._queue.progress_update_sleep_when_free = POLL_S
    return page


@contextmanager
def _no_server_yet() -> Iterator[None]:
    """Leaves the server to `launch`. Gradio would make a whole one, each in up to half a second, when a page begins,
    when its queue is set and when it ends."""
    made = App.create_app
    setattr(App, "create_app", staticmethod(lambda blocks, **more: None))  # noqa: B010  # a method, to mypy
    try:
        yield
    finally:
        setattr(App, "create_app", staticmethod(made))  # noqa: B010


def _head(problems: Sequence[str], access: Access) -> gr.HTML:
    """Lays out the top of the first page. Returns where the state of the model is shown."""
    rooms.lay_out(rooms.HOME, public=access.public)
    with gr.Row(elem_id="header"):
        gr.HTML(f"<p>{TAGLINE}</p>")
        model = gr.HTML(elem_id="model", apply_default_css=False)
    for problem in problems:
        gr.HTML(panels.status(access.without_secrets(problem), "error"), apply_default_css=False)
    return model


def _begin(page: gr.Blocks, path: str, access: Access) -> None:
    """Begins a further page at this address, under the links to the rooms. What is laid out next belongs to it.
    Gradio's `route` would build the whole server anew at the end of each page."""
    page.pages.append((path, path, False))
    page.current_page = path
    rooms.lay_out(path, public=access.public)


def bounds(access: Access) -> dict[str, Any]:
    """Returns the bounds of the server as arguments for `launch`. Each waiting run is an event in progress."""
    limits = access.limits
    return {
        "max_threads": limits.runs + MORE_EVENTS,
        "max_file_size": limits.upload,
        "state_session_capacity": limits.sessions,
        "run_history": not access.public,
    }


def look(access: Access = Access()) -> dict[str, Any]:  # noqa: B008  # frozen
    """Returns the theme, style sheet and script of the page as arguments for `launch`."""
    return {
        "theme": gr.themes.Default(
            primary_hue=BLUE,
            secondary_hue=BLUE,
            neutral_hue=gr.themes.colors.gray,
            spacing_size=gr.themes.sizes.spacing_sm,
            radius_size=gr.themes.sizes.radius_sm,
            text_size=TEXT,
            font=("ui-sans-serif", "system-ui", "sans-serif"),
            font_mono=("ui-monospace", "monospace"),
        ).set(
            button_primary_background_fill="*primary_600",
            button_primary_background_fill_hover="*primary_700",
            body_text_color_subdued="#4a525b",
            checkbox_border_color_dark="*neutral_500",
            body_text_color_subdued_dark="#b1b8c0",
        ),
        "css": group_headings(),
        "css_paths": scripts.styles(),
        "js": f"() => {scripts.bundle('page.js')}.page()",
        "footer_links": ["api", "settings"],
        # Otherwise Gradio requests the page from its own server and gives up after 3 s, which a busy machine may take.
        "_frontend": False,
        "app_kwargs": {
            "middleware": [
                Middleware(SizeLimits, limits=access.limits),
                Middleware(RequestFilter, access=access),
                Middleware(PageHead, titles=rooms.titles(), moved=rooms.MOVED, description=TAGLINE),
            ]
        },
    }
