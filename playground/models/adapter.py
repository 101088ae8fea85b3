"""An adapter, as peft saves it, merged into a model's weights by peft.

Merged, a pass costs what it cost before, so that two lanes differ by what they say alone.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedModel

from playground.errors import PlaygroundError, check, install_hint

FILES = ("adapter_config.json", "adapter_model.safetensors")


def merge(model: PreTrainedModel, folder: str) -> None:
    """Adds the adapter in `folder` to the model's weights, in place.

    Raises:
        PlaygroundError: peft is not installed; it is no adapter that can be merged, or made for another model.
    """
    check(find_spec("peft") is not None, f"An adapter needs the package peft. {install_hint('adapters')}")
    from peft import PeftConfig, PeftModel  # takes seconds

    path = Path(folder).expanduser()
    check(
        all((path / name).is_file() for name in FILES),
        f"{path.name} holds no adapter. Give a folder with {' and '.join(FILES)}, as peft saves them.",
    )
    try:
        config = PeftConfig.from_pretrained(str(path))
        config.inference_mode = True
        adapted = PeftModel(model, config)
        found = adapted.load_adapter(str(path), "default")
        other = [*found.missing_keys, *found.unexpected_keys]
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise PlaygroundError(
            f"The adapter {path.name} cannot be put on {model.config.model_type}: {str(error).splitlines()[0]} It was "
            "made for another model, is damaged, or the target's weights are quantised."
        ) from None
    check(
        not other,
        f"The adapter {path.name} was made for another model: {', '.join(other[:2])} is not what this one has. Choose "
        "its own model.",
    )
    check(
        not config.is_prompt_learning,
        f"The adapter {path.name} is of the kind {config.peft_type}, which adds to the prompt and cannot be merged.",
    )
    adapted.merge_and_unload()
