"""Under a run, folded: why it is as fast as it is, what a token costs, and what to write into a server's settings. Made
when unfolded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr

from playground import theory
from playground.lane import preset_of
from playground.presets import Pair
from playground.ui import deploy, panels
from playground.ui.events import Shown
from playground.ui.tabs import markup
from playground.views import cost, engines, why

NOTHING = "Run a comparison first."


def wire(shown: gr.State, pairs: Mapping[str, Pair], others: Sequence[Any]) -> None:
    """Lays it out here. `others`: events after which another run is shown; it folds then."""
    with gr.Accordion("Why this speed-up?", open=False, elem_id="why") as reasons:
        words = gr.HTML(apply_default_css=False)
        plot = panels.empty_plot()
    with gr.Accordion("What does a token cost?", open=False, elem_id="cost") as priced:
        rate = gr.Number(
            label="Hourly rate",
            info="of the machine, in your currency",
            minimum=0,
            elem_id="hourly-rate",
            scale=0,
        )
        costs = gr.HTML(apply_default_css=False)
    with gr.Accordion("Settings to deploy", open=False, elem_id="deploy") as unfolded:
        settings = gr.HTML(apply_default_css=False)
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    reasons.expand(_why, shown, [words, plot], **quiet)
    priced.expand(_cost, [shown, rate], costs, **quiet)
    rate.change(_cost, [shown, rate], costs, trigger_mode="always_last", **quiet)
    unfolded.expand(lambda shown: _settings(shown, pairs), shown, settings, **quiet)
    folded = [gr.update(open=False)] * 3
    gr.on(list(others), lambda: folded, None, [reasons, priced, unfolded], queue=False, **quiet)


def _why(shown: Shown | None) -> tuple[str, Any]:
    if shown is None:
        return f"<p>{NOTHING}</p>", gr.update(visible=False)
    comparison = shown.comparison.beside(shown.chosen)
    other = comparison.others[0]
    figure = why.waterfall(comparison, other)
    if figure is None:
        return "<p>This lane has too few rounds with a draft to explain.</p>", gr.update(visible=False)
    sentences = [why.paragraph(comparison, other)]
    if found := theory.what_if(comparison.standard, other):
        sentences.append(why.lookahead(found, other))
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return text, gr.update(value=panels.plot(figure, "why"), visible=True)


def _cost(shown: Shown | None, rate: float | None) -> str:
    if shown is None:
        return f"<p>{NOTHING}</p>"
    comparison = shown.comparison
    said = cost.ENERGY if cost.measured(comparison) else cost.NO_COUNTER
    return f"{markup.table(cost.table(comparison, rate))}<p>{said}</p>"


def _settings(shown: Shown | None, pairs: Mapping[str, Pair]) -> str:
    if shown is None:
        return f"<p>{NOTHING}</p>"
    lane = shown.comparison.beside(shown.chosen).others[0].lane
    if lane.drafter == "none":
        return "<p>Nothing drafts in this lane.</p>"
    pair = shown.pair or preset_of(lane, pairs.values())
    method = pair.drafts_by(lane.drafter) if pair and lane.drafter in pair.drafters else None
    return deploy.blocks(engines.settings(lane, method))
