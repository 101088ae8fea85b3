"""What the chat template of the loaded model reads, below the box for its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from playground.decoding import template
from playground.errors import PlaygroundError
from playground.models.store import Store
from playground.presets import Pair
from playground.settings import SETTINGS
from playground.ui.wiring import UNBOUNDED, Gathered

SAYS = SETTINGS["template"].help


def wire(parts: Mapping[str, Any], pairs: Mapping[str, Pair], store: Store) -> None:
    """Reads the template when Advanced is unfolded: the process that does so takes seconds to start."""

    models = Gathered([parts["pair"], parts["target"]])

    def describe(gathered: Any) -> Any:
        pair, target = map(str, models.read(gathered))
        return gr.update(info=sentence(store, pairs[pair].target if pair in pairs else target.strip()))

    models.after(parts["more"].expand).then(describe, models.input, parts["template"], **UNBOUNDED)


def sentence(store: Store, target: str) -> str:
    tokenizer = store.tokenizer(target)
    if tokenizer is None:
        return f"{SAYS}. Which it names is said here once the model is loaded"
    try:
        names = template.names(tokenizer)
    except PlaygroundError as problem:
        return f"{SAYS}. {problem}"
    if not names:
        return f"{SAYS}. This model's reads none: it has no thinking to switch"
    return f"{SAYS}. This model's reads {', '.join(names)}"
