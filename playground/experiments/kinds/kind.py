"""What makes one kind of experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from playground.experiments.kinds.options import Options
from playground.experiments.work import Experiment


@dataclass(frozen=True)
class Kind:
    """One kind of experiment.

    Args:
        name: of its page, command, endpoint and entries in the history.
        label: what links to its page say.
        does: what it finds out, in a sentence.
        intro: why one runs it, on the page.
        hint: what an empty page says.
        exits: what the terminal's exit codes 0 and 1 mean.
        options: a dataclass of `Option`s.
        work: what is to be run, from the options and the `Decoders` (None without a pair), and its title.
        experiment: the class of what is to be run, which the history keeps as JSON.
        pair: whether a pair decodes; else the options name servers.
        servers: whether two servers can decode in place of the pair.
        varies: the setting of the lanes whose values are compared; "" for none.
        room: the room of the page that links to it; "" for one that is reached from a result.
    """

    name: str
    label: str
    does: str
    intro: str
    hint: str
    exits: str
    options: type[Options]
    work: Callable[[Any, Any], tuple[Experiment, str]]
    experiment: type[Experiment]
    pair: bool = True
    servers: bool = False
    varies: Callable[[Any], str] = lambda options: ""
    room: str = "Best drafter"
