"""The controls over the panels, and what their values ask for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields

import gradio as gr
from gradio.components import Component

from playground.drafting_methods import METHODS, help_for
from playground.errors import PlaygroundError
from playground.lane import Lane, Request, assisted_lane
from playground.presets import DRAFTERS, Pair, Prompt, custom_pair, kind_of

OWN = "own"
POLICIES = {
    "constant": "constant",
    "heuristic": "heuristic (+2 / −1)",
    "confidence": "confidence threshold",
    "cost": "cost model (as measured)",
}
MAX_LOOKAHEAD = 16
MAX_NODES = 64
PRESET = ("lookahead", "policy", "confidence_threshold", "nodes")  # the settings that a pair comes with
Controls = dict[str, Component]  # by the fields of `Asked`


@dataclass(frozen=True)
class Asked:
    """The controls' values; also the arguments of the endpoint. None: the pair's."""

    prompt: str
    pair: str = "starter"
    target: str = ""
    assistant: str = ""
    drafter: str | None = None
    lookahead: int | None = None
    policy: str | None = None
    confidence_threshold: float | None = None
    nodes: int | None = None
    keep_free_gb: float = 0.0
    max_new_tokens: int = Request.max_new_tokens
    temperature: float = Request.temperature
    top_p: float = Request.top_p
    top_k: int = Request.top_k
    repetition_penalty: float = Request.repetition_penalty
    seed: int = Request.seed
    system: str = Request.system
    chat_template: bool = Request.chat_template

    def resolve(self, pairs: dict[str, Pair]) -> tuple[Pair, Lane, Request]:
        """What to run.

        Raises:
            PlaygroundError: an unknown pair, or values that cannot be.
        """
        values = {field.name: _value(field.name, field.type, getattr(self, field.name)) for field in fields(self)}
        if self.pair == OWN:
            pair = custom_pair(self.target, self.assistant, self.drafter)
        elif self.pair in pairs:
            pair = pairs[self.pair]
        else:
            raise PlaygroundError(f"There is no pair {self.pair!r}. Choose one of {', '.join([*pairs, OWN])}.")
        lane = assisted_lane(pair, **{name: values[name] for name in ("drafter", *PRESET, "keep_free_gb")})
        return pair, lane, Request(**{field.name: values[field.name] for field in fields(Request)})


KINDS = {
    "str": (str, "text", lambda value: isinstance(value, str)),
    "int": (int, "a whole number", lambda value: _is_number(value) and value % 1 == 0),
    "float": (float, "a number", lambda value: _is_number(value)),
    "bool": (bool, "true or false", lambda value: isinstance(value, bool)),
}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _value(name: str, kind: str, value: object) -> object:
    """The endpoint takes what anyone sends, and a number's box on the page can be empty."""
    if value is None and kind.endswith("None"):
        return None
    make, wanted, fits = KINDS[kind.removesuffix(" | None")]
    with suppress(OverflowError):  # of a whole number beyond every float
        if fits(value):
            return make(value)
    given = "empty" if value is None else f"{value!r:.40}"
    raise PlaygroundError(f"{name.replace('_', ' ').capitalize()} must be {wanted}; it is {given}.")


def build(pairs: dict[str, Pair], default: Pair, examples: Sequence[Prompt]) -> Controls:
    """Lays the controls out, with `default` chosen and the first example typed in."""
    made: Controls = {}
    text, system_text = (examples[0].text, examples[0].system) if examples else ("", "")
    with gr.Row(elem_classes="controls"):
        made["pair"] = gr.Dropdown(
            [(_title(pair), name) for name, pair in pairs.items()] + [("Your own models …", OWN)],
            value=default.name,
            label="Pair",
            info=default.note or "the target, and what may draft for it",
            elem_id="pair",
        )
        made["drafter"] = gr.Dropdown(
            drafter_choices(default),
            value=default.drafter,
            label="Drafter",
            info="what guesses tokens ahead of the target",
            elem_id="drafter",
        )
        made["lookahead"] = _slider(
            1, MAX_LOOKAHEAD, default.lookahead, step=1, label="Lookahead", info="tokens drafted per round"
        )
        made["policy"] = gr.Dropdown(
            [(label, name) for name, label in POLICIES.items()],
            value=default.policy,
            label="Lookahead policy",
            info="how the lookahead changes from round to round",
            elem_id="policy",
        )
        made["max_new_tokens"] = _slider(8, 2048, 128, step=8, label="Max new tokens", info="where the answer is cut")
        made["temperature"] = _slider(
            0, 2, 0, step=0.05, label="Temperature", info="0 is greedy; above 0 tokens are sampled"
        )
    with gr.Accordion("About this way of drafting", open=False, elem_id="about"):
        about = gr.Markdown(help_for(default.drafter))
    with gr.Row(visible=False, elem_id="own-models") as own:
        made["target"] = gr.Textbox(
            "",
            label="Target",
            placeholder="owner/name or a folder",
            info="an id on the Hugging Face hub, or a folder here",
        )
        made["assistant"] = gr.Textbox(
            "",
            label="What drafts for it",
            placeholder="optional",
            info="id or folder of what drafts, of the kind that Drafter names; for an early exit the number of layers",
        )
    made["prompt"] = gr.Textbox(
        text,
        label="Prompt",
        info="both lanes are asked the same; Ctrl+Enter runs",
        lines=3,
        max_lines=12,
        placeholder="What both lanes are asked",
        elem_id="prompt",
    )
    with gr.Accordion("More settings: sampling, drafts, memory, system prompt, chat", open=False, elem_id="more"):
        with gr.Row(elem_classes="controls"):
            made["top_p"] = _slider(
                0.05, 1, 1, step=0.05, label="Top-p", info="sample from the likeliest tokens of this mass"
            )
            made["top_k"] = _slider(0, 200, 0, step=1, label="Top-k", info="sample from this many; 0 is all")
            made["repetition_penalty"] = _slider(
                1, 2, 1, step=0.05, label="Repetition penalty", info="1 is none; works in greedy too"
            )
            made["seed"] = gr.Number(0, precision=0, label="Seed", info="the same seed, the same draws")
            made["confidence_threshold"] = _slider(
                0,
                1,
                default.confidence_threshold,
                step=0.05,
                label="Threshold",
                info="the policy confidence threshold stops below this q; a tree, below this chance to get there",
            )
            made["nodes"] = _slider(
                1, MAX_NODES, default.nodes, step=1, label="Tree size", info="the most tokens of a draft tree"
            )
            made["keep_free_gb"] = gr.Number(
                0, label="Keep free", info="GB of the device's memory: drafts shrink to keep it; 0 is no cap"
            )
        made["system"] = gr.Textbox(
            system_text,
            label="System prompt",
            lines=1,
            info="given to the chat template; may stay empty",
        )
        made["chat_template"] = gr.Checkbox(
            True, label="Chat template", info="wrap the prompt as the model's chats are; off continues the bare text"
        )
    made["drafter"].change(
        help_for, made["drafter"], about, queue=False, show_progress="hidden", api_visibility="private"
    )
    made["pair"].input(
        lambda name: _chosen(pairs, name),
        inputs=made["pair"],
        outputs=[*(made[name] for name in ("pair", "drafter", *PRESET)), own],
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )
    gr.on(
        [made["assistant"].blur, made["assistant"].submit],
        _drafter_for,
        inputs=[made["assistant"], made["drafter"]],
        outputs=made["drafter"],
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )
    return made


def inputs(controls: Controls) -> list[Component]:
    """In the order of `Asked`."""
    return [controls[field.name] for field in fields(Asked)]


def examples_for(controls: Controls, examples: Sequence[Prompt]) -> gr.Examples:
    """The prompts as buttons that fill in prompt and system prompt."""
    return gr.Examples(
        [[prompt.text, prompt.system] for prompt in examples],
        [controls["prompt"], controls["system"]],
        example_labels=[prompt.title for prompt in examples],
        label="Examples",
        cache_examples=False,
        api_visibility="private",
        elem_id="examples",
    )


def drafter_choices(pair: Pair | None) -> list[tuple[str, str]]:
    """The drafters of a pair, and of models yet to be named (None), with their labels."""
    names = (*(pair.drafters if pair else DRAFTERS), "none")
    return [(METHODS[name].label, name) for name in names]


def _slider(low: float, high: float, value: float, *, step: float, label: str, info: str) -> gr.Slider:
    return gr.Slider(low, high, value, step=step, label=label, info=info, buttons=[])


def _title(pair: Pair) -> str:
    return f"{pair.title} (gated)" if pair.gated else pair.title


def _drafter_for(name: str, drafter: str) -> object:
    """The drafter that a typed folder was made for, where the chosen one makes no use of it."""
    kind = kind_of(name.strip())
    return gr.skip() if kind is None or kind in METHODS[drafter].drafts_with else kind


def _chosen(pairs: dict[str, Pair], name: str) -> tuple[dict, ...]:
    """What the other controls become when a pair is chosen."""
    pair = pairs.get(name)
    return (
        gr.update(info=pair.note or "the target, and what may draft for it" if pair else "ids or folders below"),
        gr.update(choices=drafter_choices(pair), value=pair.drafter if pair else "ngram"),
        *(gr.update(value=getattr(pair, name)) if pair else gr.skip() for name in PRESET),
        gr.update(visible=pair is None),
    )
