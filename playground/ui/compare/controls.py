"""The controls above the panels, and the lanes and the request that their values describe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.components import Component

from playground.backends.connect import Servers, programs
from playground.drafting_methods import GROUPS, METHODS, help_for
from playground.hosting.access import Access
from playground.lane import Lane, Request, lanes_of, read_request
from playground.presets import BESIDE, OWN, Pair, Prompt, drafters, kind_of, pair_of
from playground.settings import ANSWER, DRAFTING, PRESET, SETTINGS
from playground.ui.preload import Fits
from playground.ui.wiring import QUIET, picked
from playground.views import scripts

if TYPE_CHECKING:  # importing torch would double the memory of the process that opens traces
    from playground.models.fit import Fit

FIRST = ("lookahead", "temperature", "max_new_tokens")  # in the drawer
Controls = dict[str, Any]  # Gradio components by their names, those of SETTINGS and SERVERS among them
OF_A_PAIR = ("drafter", *PRESET)  # controls whose defaults depend on the pair
DEFAULTS = {name: None if name in OF_A_PAIR else setting.default for name, setting in SETTINGS.items()}
AFTER = """(text) => {
  let count = "";
  try {
    const data = JSON.parse(text);
    count = `${(data.messages ?? data).length} `;
  } catch { /* Run says what is wrong with it */ }
  const value = `The prompt comes after ${count}earlier messages. Start anew`;
  return {__type__: "update", visible: Boolean(text.trim()), value};
}"""  # a button that clears the conversation
SERVERS = ("server", "baseline_server", "model")  # the boxes of `Servers`; an address cannot fill them


@dataclass(frozen=True)
class CompareOptions:
    """The controls' values by the settings' names, which are also the arguments of the endpoint. A missing value means
    the setting's default; None, where it is allowed, means the preset's value."""

    values: Mapping[str, Any]

    def resolve(
        self, pairs: Mapping[str, Pair], *, every: bool = False, typed: Callable[[str], str] = str
    ) -> tuple[Pair, list[Lane], Request]:
        """Returns what to run: the pair, the standard lane and the drafter's lane, and the request.

        Args:
            every: whether to run a lane for each drafter of the pair.
            typed: turns the name of a model that was typed into the one that is loaded.

        Raises:
            PlaygroundError: a value has the wrong type or is out of bounds, the pair is unknown, or the models do not
                fit.
        """
        asked = {name: read(name, value) for name, value in {**DEFAULTS, **self.values}.items()}
        target, assistant = (typed(asked[name]) if asked["pair"] == OWN else "" for name in ("target", "assistant"))
        how = {name: asked[name] for name in ("compiled", "dtype")}
        pair = pair_of(pairs, asked["pair"], target, assistant, asked["drafter"], **how)
        request = read_request(asked["prompt"], asked["messages"], {name: asked[name] for name in ANSWER})
        return pair, lanes_of(pair, asked, every=every), request


def defaults_of(pair: Pair | None) -> dict[str, Any]:
    """Returns the values of OF_A_PAIR for a pair, or where the user names the models (None)."""
    return pair.defaults if pair else {"drafter": "ngram", **{name: SETTINGS[name].default for name in PRESET}}


def read(name: str, value: Any) -> Any:
    """Converts a value to its setting's type. Programs send anything, and a number box on the page can be empty.

    Raises:
        PlaygroundError: the setting does not accept the value.
    """
    return None if value is None and name in OF_A_PAIR else SETTINGS[name].read(value)


def build(
    pairs: dict[str, Pair], default: Pair, prompt: str, examples: Sequence[Prompt], fits: Fits, access: Access
) -> Controls:
    """Lays the controls out, with `default` chosen and `prompt` filled in, and the buttons Run and Stop. What everybody
    needs is at the top, the rest is under Settings. Choices that visitors may not make are left out where a control can
    tell."""
    made: Controls = {}
    made["system"] = gr.Textbox("", lines=1, render=False, **words("system"))
    made["messages"] = gr.Textbox("", render=False, **_of_text("messages"))
    _prompt(made, prompt)
    with gr.Row(elem_id="models"):
        made["pair"] = gr.Dropdown(
            pair_choices(fits, access), value=default.name, label=SETTINGS["pair"].label, show_label=False,
            elem_id="pair", scale=0, min_width=270,
        )  # fmt: skip
        made["drafter"] = gr.Dropdown(
            drafter_choices(default), value=default.drafter, label=SETTINGS["drafter"].label, show_label=False,
            elem_id="drafter", scale=0, min_width=220,
        )  # fmt: skip
        with gr.Accordion("Settings", open=False, elem_id="more") as made["more"]:
            _advanced(made, default, access)
            with gr.Accordion("How this drafter works", open=False, elem_id="about"):
                picture = gr.HTML(
                    pictured(default.drafter), html_template='<figure class="pictured"></figure>',
                    js_on_load=scripts.component("stage/pictured.js", "pictured"), apply_default_css=False,
                )  # fmt: skip
                about = gr.Markdown(_about(pairs, default.name, default.drafter))
        _examples(made, examples)
    with gr.Row(visible=False, elem_id="own-models") as own:
        typing = {"info": access.typing} if access.typing else {}
        for name, hint in (("target", "owner/name or folder"), ("assistant", "optional")):
            made[name] = gr.Textbox("", placeholder=hint, interactive=access.models != (), **{**words(name), **typing})
    after = gr.Button(visible=False, size="sm", elem_id="after", min_width=80)
    _follow(made, pairs, fits, own, about, picture)
    made["messages"].change(None, made["messages"], after, js=AFTER, **QUIET)
    after.click(None, None, made["messages"], js="() => ''", **QUIET)
    if not access.public:  # it looks into the folder whose path was typed
        typed = [made["assistant"].blur, made["assistant"].submit]
        gr.on(typed, _drafter_for, [made["assistant"], made["drafter"]], made["drafter"], **QUIET)
    return made


def _prompt(made: Controls, text: str) -> None:
    with gr.Row(elem_id="ask"):
        made["prompt"] = gr.Textbox(
            text,
            label=SETTINGS["prompt"].label,
            show_label=False,
            lines=1,
            max_lines=12,
            placeholder="Ask the model something; Ctrl+Enter runs it",
            elem_id="prompt",
        )
        with gr.Column(elem_id="go", scale=0, min_width=96):
            made["run"] = gr.Button("Run", variant="primary", elem_id="run", min_width=80)
            made["stop"] = gr.Button("Stop", interactive=False, elem_id="stop", min_width=80)


def _advanced(made: Controls, default: Pair, access: Access) -> None:
    most = {"max_new_tokens": access.limits.new_tokens}
    with gr.Row(elem_classes="controls"):
        for name in dict.fromkeys((*FIRST, *ANSWER, *DRAFTING, "compiled", "dtype")):
            if not SETTINGS[name].text and name not in ("prompt", "drafter", "chat_template"):
                made[name] = control(name, default.defaults.get(name), most.get(name, float("inf")))
    made["prefix_cache"].visible = not access.public  # strangers share none, see `Access.alone`
    made["system"].render()
    made["chat_template"] = control("chat_template")
    with gr.Row(elem_classes="controls"):
        made["messages"].render()
        for name in (name for name in ANSWER if SETTINGS[name].text and name != "system"):
            made[name] = control(name)
    with gr.Row(elem_classes="controls", visible=not access.public):
        address: dict[str, Any] = {"choices": [], "value": "", "allow_custom_value": True}
        made["server"] = gr.Dropdown(
            label="Server", elem_id="server", **address,
            info=f"address of a {programs()}; Run adds its lane. The room Serve starts one",
        )  # fmt: skip
        made["baseline_server"] = gr.Dropdown(
            label="Baseline server", elem_id="baseline-server", **address,
            info="what to compare with instead of the standard lane; with both, only the servers run",
        )  # fmt: skip
        made["model"] = gr.Textbox(
            label="Server's model", max_lines=1, elem_id="server-model", info="its name, where a server has several"
        )


def _follow(
    made: Controls, pairs: dict[str, Pair], fits: Fits, own_models: gr.Row, about: gr.Markdown, picture: gr.HTML
) -> None:
    """Updates controls when another control that they depend on changes."""
    gr.on(
        [made["pair"].change, made["drafter"].change],
        lambda pair, drafter: (_about(pairs, pair, drafter), pictured(drafter)),
        [made["pair"], made["drafter"]],
        [about, picture],
        **QUIET,
    )
    picked(made["pair"], lambda name: _chosen(pairs, name), [made[name] for name in OF_A_PAIR])
    made["pair"].change(  # also after an address or a trace set the value
        lambda name: _described(pairs.get(name), fits.of(name)), made["pair"], [made["pair"], own_models], **QUIET
    )


def inputs(controls: Controls) -> list[Component]:
    """Returns the components in the order of SETTINGS."""
    return [controls[name] for name in SETTINGS]


def typed(values: Sequence[Any]) -> tuple[CompareOptions, Servers]:
    """Reads the values of `inputs` and then those of SERVERS: the options of a comparison, and its servers."""
    server, baseline, model = (str(value or "").strip() for value in values[len(SETTINGS) :])
    return CompareOptions(dict(zip(SETTINGS, values, strict=False))), Servers(server, baseline, model)


def pair_choices(fits: Fits, access: Access) -> list[tuple[str, str]]:
    """Returns labels and names of the pairs; each label says whether the pair can run here."""
    return [*fits.choices(), *([] if access.models == () else [("Your own models …", OWN)])]


def drafter_choices(pair: Pair | None) -> list[tuple[str, str]]:
    """Returns labels and names of a pair's drafters, or of all drafters where the user names the models (None), by
    groups. The last one is the control run."""
    names = (*(pair.drafters if pair else drafters()), *BESIDE)
    return [(METHODS[name].described, name) for name in sorted(names, key=lambda it: GROUPS.index(METHODS[it].group))]


def group_headings() -> str:
    """Returns a style sheet that puts its heading above the first drafter of each group in the menu: Gradio's has no
    groups."""
    rules = []
    for heading in GROUPS:
        labels = [it.described.partition(",")[0] for it in METHODS.values() if it.group == heading]
        # Gradio splits selectors at commas, also within a text.
        ours = f":is({', '.join(f'li[aria-label^={json.dumps(label)}]' for label in labels)})"
        rules.append(f"#drafter {ours}:not({ours} ~ *)::before {{ content: {json.dumps(heading)}; }}")
    return "\n".join(rules)


def _examples(made: Controls, examples: Sequence[Prompt]) -> None:
    """Lays out a button for each example. It fills in the prompt and its system prompt, and clears the conversation."""
    filled = [made[name] for name in ("prompt", "system", "messages")]
    with gr.Row(elem_id="examples"):
        for example in examples:
            chip = gr.Button(example.title, size="sm", min_width=40)
            texts = json.dumps([example.text, example.system, ""])
            chip.click(None, None, filled, js=f"() => {texts}", **QUIET)


def words(name: str) -> dict[str, Any]:
    """Returns label and help of a setting as arguments of its control."""
    return {"label": SETTINGS[name].label, "info": SETTINGS[name].help}


def control(name: str, value: Any = None, most: float = float("inf")) -> Component:
    """Returns the control of a setting, which starts at the value, or at the setting's default. `most`: a slider's
    upper end."""
    setting = SETTINGS[name]
    value = setting.default if value is None else value
    if setting.choices:
        choices = [(label, choice) for choice, label in setting.choices.items()]
        return gr.Dropdown(choices, value=value, elem_id=name, **words(name))
    if setting.slider:
        low, high, step = setting.slider
        return gr.Slider(low, min(high, most), value, step=step, buttons=[], **words(name))
    if isinstance(setting.default, bool):
        return gr.Checkbox(value, **words(name))
    if isinstance(setting.default, str):
        return gr.Textbox(value, **_of_text(name))
    return gr.Number(value, precision=0 if isinstance(setting.default, int) else None, **words(name))


def _of_text(name: str) -> dict[str, Any]:
    """Returns the arguments of a text setting's control. page.js takes files that are dropped on it."""
    more = {"max_lines": 12, "elem_id": name, **words(name)}
    if not SETTINGS[name].file:
        return {"lines": 1, **more}
    return {
        "lines": 3,
        **more,
        "info": f"{SETTINGS[name].help}; a file can be dropped here",
        "elem_classes": "takes-files",
    }


def pictured(drafter: str) -> dict[str, Any]:
    """Returns a recorded round of a drafter, for its picture; empty for one that was not recorded."""
    return _recorded_rounds().get(drafter, {})


@cache
def _recorded_rounds() -> dict[str, Any]:
    return json.loads((scripts.ASSETS / "rounds.json").read_text(encoding="utf-8"))


def _about(pairs: Mapping[str, Pair], pair: str, drafter: str) -> str:
    """Returns the drafter's help, with its heading one level down, and notes on the models."""
    note = pairs[pair].note if pair in pairs else ""
    return f"#{help_for(drafter)}" + (f"\n\n**These models.** {note}" if note else "")


def _drafter_for(name: str, drafter: str) -> object:
    """Returns an update to the drafter that a typed folder was made for, if the chosen drafter cannot use the
    folder."""
    kind = kind_of(name.strip())
    return gr.skip() if kind is None or kind in METHODS[drafter].drafts_with else kind


def _chosen(pairs: dict[str, Pair], name: str) -> tuple[dict, ...]:
    """Returns updates of the controls after a pair was chosen."""
    pair = pairs.get(name)
    usual = defaults_of(pair)
    return (
        gr.update(choices=drafter_choices(pair), value=usual["drafter"]),
        *(gr.update(value=usual[name]) if pair else gr.skip() for name in PRESET),
    )


def _described(pair: Pair | None, fit: Fit | None) -> tuple[dict, dict]:
    """Returns updates of the line that says why the pair cannot run, and of the boxes for models that the user names
    (where `pair` is None)."""
    return gr.update(info=None if fit is None or fit.runs else f"Cannot run here. {fit.sentence}"), gr.update(
        visible=pair is None
    )
