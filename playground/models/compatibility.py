"""Whether an assistant can draft for a target: every token id must mean the same to both."""

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
