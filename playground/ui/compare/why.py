"""The strip of sections under a run, one open at a time, each filled when it is opened.

They say why it is as fast as it is, which drafter is the fastest, what a server needs for it, what a token costs, and
the run's details.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground import metrics, theory
from playground.lane import LOCAL, Lane, preset_of
from playground.presets import Pair
from playground.theory.lookahead import asynchronous
from playground.ui import panels
from playground.ui.compare.shown import Shown
from playground.ui.wiring import PRIVATE, in_browser
from playground.views import charts, engines, facts, why

NOTHING = "There is no comparison yet."
NO_RATE = "Type what the machine costs an hour, and the price of a million tokens follows for each lane."
UNKNOWN = "This takes a lane that drafts, run by the playground itself, and target passes of several widths, timed."
PREDICTED = (
    "Predicted, not measured: from this run's acceptance and drafting, and the measured time of a pass by its width. A "
    "verify pass processes b times as many tokens at batch size b."
)
SIMULATED = (
    "Under load, simulated: Poisson arrivals at one replica that decodes all its requests in one batch, and prefills "
    "one more between two rounds. Memory limits and the network are not in it."
)

RENEW = """document.querySelectorAll(".renewed > button.open")
  .forEach((fold) => { fold.click(); fold.click(); })"""


def wire(
    shown: gr.State, pairs: Mapping[str, Pair], selections: Sequence[Any], every: gr.Button, details: gr.HTML
) -> dict[str, list[Any]]:
    """Lays the sections out here. Returns the changes that fold and empty them, as `in_browser` takes them: they would
    otherwise show the previous run until there is a result.

    Args:
        selections: events that show another run, which fold and empty all sections. Call this before other listeners of
            these events are added: Gradio calls an event's listeners one after another and waits for each answer of
            the server, so a later listener would fold what the user has unfolded by then.
        every: runs every drafter; laid out here, as are the details.
    """
    with gr.Row(elem_id="sections"):
        with gr.Accordion("Why", open=False, elem_id="why", elem_classes="renewed") as reasons:
            words = gr.HTML(apply_default_css=False)
            with gr.Row(elem_classes="charts"):
                plot, acceptance = panels.empty_plot(), panels.empty_plot()
            ahead = panels.empty_plot()
            with gr.Accordion(
                "In a batch and under load, predicted", open=False, elem_id="predicted", elem_classes="renewed"
            ) as predicted:
                said = gr.HTML(apply_default_css=False)
                with gr.Row(elem_classes="charts"):
                    batch, load = panels.empty_plot(), panels.empty_plot()
        with gr.Accordion("Which drafter", open=False, elem_id="which"):
            every.render()
            gr.HTML('<div id="all-drafters"></div>', apply_default_css=False)  # the stage's table moves in here
        with gr.Accordion("Deploy", open=False, elem_id="deploy", elem_classes="renewed") as unfolded:
            settings = gr.HTML(apply_default_css=False)
        with gr.Accordion("Cost", open=False, elem_id="cost", elem_classes="renewed") as priced:
            rate = gr.Number(
                label="Hourly rate", info="of the machine, in your currency", minimum=0, elem_id="hourly-rate", scale=0
            )
            costs = gr.HTML(apply_default_css=False)
        with gr.Accordion("Details", open=False, elem_id="all-details"):
            details.render()
    latest: dict[str, Any] = {"trigger_mode": "always_last", **PRIVATE}
    reasons.expand(_why, shown, [words, plot, acceptance, ahead], **latest)
    gr.on([priced.expand, rate.change], _cost, [shown, rate], costs, **latest)
    predicted.expand(_predicted, shown, [said, batch, load], **latest)
    unfolded.expand(lambda shown: _settings(shown, pairs), shown, settings, **latest)
    folded = {
        "open: false": [reasons, predicted, priced, unfolded],
        "value: ''": [words, said, costs, settings],
        "visible: false": [plot, acceptance, ahead, batch, load],
    }
    outputs, updates = in_browser(folded)
    gr.on(list(selections), None, None, outputs, js=f"() => {updates}", **PRIVATE)
    return folded


def renew(ends: Sequence[Dependency]) -> None:
    """Refills the unfolded sections by folding and unfolding them.

    Args:
        ends: events after which another run is shown.
    """
    for end in ends:
        end.then(None, None, None, js=f"() => {RENEW}", **PRIVATE)


def _why(shown: Shown | None) -> tuple[str, Any, Any, Any]:
    hidden = gr.update(visible=False)
    if shown is None:
        return f"<p>{NOTHING}</p>", hidden, hidden, hidden
    measured = metrics.measured(shown.comparison, shown.chosen)
    other = measured.ours
    figure = why.waterfall(measured)
    by_position = gr.update(value=panels.plot(charts.acceptance(other), "acceptance-by-position"), visible=True)
    if figure is None:
        return "<p>This lane has too few rounds with a draft to explain.</p>", hidden, by_position, hidden
    sentences = [why.paragraph(measured)]
    if found := theory.what_if(measured.base, other):
        sentences.append(why.lookahead(found, other))
    ahead = asynchronous(measured)
    if ahead:
        sentences.append(why.second_device(ahead))
        drawn = gr.update(value=panels.plot(why.overlapped(measured, ahead), "second-device"), visible=True)
    shows = "".join(
        f'<button type="button" data-lights="{name}" aria-pressed="false">{escape(label)}</button>'
        for label, name in why.lights(measured)
    )
    words = f'{_paragraphs(sentences)}<div class="steps">Show in the timeline and the text: {shows}</div>'
    shown_why = gr.update(value=panels.plot(figure, "why"), visible=True)
    return words, shown_why, by_position, drawn if ahead else hidden


def _predicted(shown: Shown | None) -> Iterator[tuple[str, Any, Any]]:
    """Yields the prediction for a batch first, because simulating the load takes seconds."""
    hidden = gr.update(visible=False)
    if shown is None:
        yield f"<p>{NOTHING}</p>", hidden, hidden
        return
    measured = metrics.measured(shown.comparison, shown.chosen)
    points = theory.batches_of(measured.base, measured.ours)
    if not points:
        yield f"<p>{UNKNOWN}</p>", hidden, hidden
        return
    said = [PREDICTED, why.batch_end(points)]
    batch = gr.update(value=panels.plot(charts.batches(points), "batch"), visible=True)
    # A chart does not change the width at which it was drawn, so the second one has its place from the start.
    yield _paragraphs(said), batch, gr.update(value=panels.plot(charts.load([]), "load"), visible=True)
    loads = theory.loads_of(measured.base, measured.ours)
    load = gr.update(value=panels.plot(charts.load(loads), "load"), visible=True)
    yield _paragraphs([*said, f"{SIMULATED} {why.load_end(loads)}"]), batch, load


def _paragraphs(sentences: Sequence[str]) -> str:
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _cost(shown: Shown | None, rate: float | None) -> str:
    if shown is None:
        return f"<p>{NOTHING}</p>"
    if not rate:
        return f"<p>{NO_RATE}</p>"
    return why.cost_table(metrics.shown(shown.comparison).lanes, rate).html()


def _settings(shown: Shown | None, pairs: Mapping[str, Pair]) -> str:
    if shown is None:
        return f"<p>{NOTHING}</p>"
    trace = metrics.measured(shown.comparison, shown.chosen).ours
    lane = trace.lane
    if lane.drafter == "none":
        return "<p>Nothing drafts in this lane.</p>"
    if metrics.out_of_context(trace.rounds):
        return f"<p>{escape(facts.out_of_context(trace))}</p>"
    pair = shown.pair or preset_of(lane, pairs.values())
    method = pair.drafts_by(lane.drafter) if pair and lane.drafter in pair.drafters else None
    return panels.blocks(engines.of_comparison(shown.comparison, lane, method)) or f"<p>{escape(_undeployed(lane))}</p>"


def _undeployed(lane: Lane) -> str:
    """Returns the reason why a drafting lane has no settings for engines."""
    if lane.backend != LOCAL:
        return f"{lane.program} decoded this lane: it is deployed already."
    return "This lane does not decode as an engine would: its verdicts were drawn, or are not exact."
