"""Whether a model can draft for a target: every token id must mean the same to both."""

from __future__ import annotations

from playground.errors import PlaygroundError
from playground.models.load import LoadedModel


def check_same_tokenizer(target: LoadedModel, assistant: LoadedModel) -> None:
    """Compares the vocabularies, including added tokens. The embeddings may be padded to different sizes: ids beyond
    the vocabulary have no meaning to either model.

    Raises:
        PlaygroundError: the vocabularies differ; the message names the first difference.
    """
    if target.tokenizer is assistant.tokenizer:
        return
    ours, theirs = target.tokenizer.get_vocab(), assistant.tokenizer.get_vocab()
    if ours == theirs:
        return
    if len(ours) != len(theirs):
        what = f"the target's vocabulary has {len(ours):,} tokens and the assistant's {len(theirs):,}"
    else:
        token = min((token for token in ours if ours[token] != theirs.get(token)), key=ours.__getitem__)
        other = f"id {theirs[token]}" if token in theirs else "no id"
        what = f"the token {token!r} has id {ours[token]} in the target and {other} in the assistant"
    raise PlaygroundError(
        f"{assistant.name} cannot draft for {target.name}, because their tokenizers differ: {what}. "
        "Choose two models of one family, or the drafter universal, which works with any tokenizer."
    )


def check_pard(target: LoadedModel, model: LoadedModel) -> None:
    """Whether a PARD model can draft for a target.

    Raises:
        PlaygroundError: it is no PARD model, it is a kind of it that is not known, or its tokenizer is another.
    """
    check_same_tokenizer(target, model)
    config = model.model.config
    mask, kind = getattr(config, "pard_token", None), getattr(config, "spd_type", None) or "pard"
    if mask is None:
        raise PlaygroundError(
            f"{model.name} is no PARD model: its config.json names no pard_token. Choose the drafter assistant, for "
            "which any small model of the target's family will do."
        )
    if str(kind).lower() != "pard":
        raise PlaygroundError(
            f"{model.name} was trained as {kind}, which is not supported: only PARD models that read the text alone "
            "are. Choose another model."
        )
    if not 0 <= int(mask) < config.get_text_config(decoder=True).vocab_size:
        raise PlaygroundError(
            f"The files of {model.name} are damaged: its pard_token is {int(mask):,}, which is not in its vocabulary. "
            "Fetch it again, or choose another model."
        )
