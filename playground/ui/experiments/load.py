"""Load: two servers at several numbers of users, or rates, to see where speculation stops paying."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from playground.backends.connect import Servers
from playground.errors import check
from playground.experiments import load
from playground.experiments.work import Load
from playground.metrics.load import Level, Limits
from playground.results import LoadResult
from playground.ui.experiments import prompts, tab
from playground.ui.experiments.service import Experiments
from playground.ui.servers.started import LOOKUP, PLAIN, StartedServers
from playground.views import load as view
from playground.views.table import Table

INTRO = (
    "Speculation pays while a server has few users, and can slow it down at high concurrency. A load test sends the "
    "prompts of a suite to two servers, level by level, to find where that turns."
)
USERS, RATES = "users", "rates"
LEVELS = {USERS: "1, 2, 4, 8", RATES: "0.5, 1, 2"}
WAYS = [("Users", USERS), ("Requests a second", RATES)]


def _tables(result: LoadResult) -> list[Table]:
    return [view.by_level(result.points), view.definitions(result.limits)]


KIND = tab.Kind(
    "load",
    "Start both servers, as on the tab Servers, then press Run. Give llama-server as many --slots as users.",
    view.findings,
    lambda result: [view.speedup(result), view.pareto(result)],
    _tables,
    so_far=lambda done: view.by_level(done[-1].points),
)


def build(page: gr.Blocks, experiments: Experiments, own: StartedServers) -> None:
    gr.HTML(f"<h1>Load</h1><p>{INTRO}</p>", elem_classes="intro")
    with gr.Row(elem_classes="controls"):
        controls: dict[str, Any] = {
            "baseline": _address("Standard server", 8081, "without speculation, or empty"),
            "server": _address("Assisted server", 8082, "the same model with speculation"),
            "model": gr.Textbox(label="Model", info="if a server has several", max_lines=1),
            "way": gr.Dropdown(WAYS, value=USERS, label="Load", info="closed loop, or open loop"),
            "levels": gr.Textbox(LEVELS[USERS], label="Levels", info="with commas between them"),
            **prompts.suite_controls(),
        }
    with gr.Accordion("Advanced: requests, length, latency limits for goodput", open=False, elem_id="advanced"):
        controls |= prompts.repeat_controls("per_category", "max_new_tokens", "temperature")
        with gr.Row(elem_classes="controls"):
            controls |= {
                "requests": gr.Number(16, label="Requests", info="of each level, at least one a user", precision=0,
                                      minimum=1, maximum=100_000),
                "ttft": gr.Number(1.0, label="TTFT limit", info="seconds, for goodput", minimum=0.001),
                "tpot": gr.Number(0.1, label="TPOT limit", info="seconds, for goodput", minimum=0.001),
                "seed": gr.Number(0, label="Moments", info="seed of the arrival times", precision=0, minimum=0),
            }  # fmt: skip
    panel = tab.panel(KIND, *tab.buttons())

    def work(*values: Any) -> tuple[Load, str]:
        return asked_for(dict(zip(controls, values, strict=True)))

    tab.wire(page, KIND, panel, experiments, list(controls.values()), work)
    quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    controls["way"].input(lambda way: LEVELS[way], controls["way"], controls["levels"], **quiet)
    addresses = [controls["baseline"], controls["server"]]
    page.load(lambda: [own.url(kind) or gr.skip() for kind in (PLAIN, LOOKUP)], None, addresses, **quiet)


def asked_for(asked: Mapping[str, Any]) -> tuple[Load, str]:
    """The load test that these values ask for, and its title.

    Raises:
        PlaygroundError: a value cannot be used.
    """
    name, questions = prompts.asked_questions(asked)
    server, baseline = asked["server"].strip(), asked["baseline"].strip()
    check(bool(server), "Give the address of the server to measure.")
    plan = load.Plan(_levels(asked["way"], asked["levels"]), int(asked["requests"] or 1), int(asked["seed"] or 0))
    limits = Limits(float(asked["ttft"] or 0), float(asked["tpot"] or 0))
    work = Load(Servers(server, baseline, asked["model"].strip()), tuple(questions), plan, limits)
    return work, work.title(name)


def _levels(way: str, text: str) -> tuple[Level, ...]:
    """Raises:
    PlaygroundError: they are not numbers of users, or rates.
    """
    try:
        numbers = [*dict.fromkeys(float(word) for word in text.replace(",", " ").split())]
    except ValueError:
        numbers = []
    whole, kind = ("whole ", "users") if way == USERS else ("", "requests a second")
    check(
        bool(numbers) and all(0 < n <= load.MOST and (not whole or n.is_integer()) for n in numbers),
        f"{text!r} are not numbers of {kind}. Give {whole}numbers up to {load.MOST}, such as {LEVELS[way]}.",
    )
    return tuple(Level(concurrency=int(n)) if whole else Level(rate=n) for n in numbers)


def _address(label: str, port: int, info: str) -> gr.Textbox:
    return gr.Textbox(label=label, placeholder=f"http://127.0.0.1:{port}", info=info, max_lines=1)
