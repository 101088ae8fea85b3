"""The token panel's log: one JSON line a round, in an append-only text that `assets/tokens.js` draws.

The text only ever grows while a lane runs, so that each update sends and draws the new rounds alone. What a token looks
like is decided by its decision or reason in the script; this module knows no HTML.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from playground.trace import Round


def line(round_: Round) -> str:
    """A round as one line of JSON, in ASCII, ended by a newline."""
    return json.dumps(asdict(round_), separators=(",", ":")) + "\n"


def log(rounds: Iterable[Round]) -> str:
    """The whole log of a lane: what streaming the rounds would have left."""
    return "".join(line(round_) for round_ in rounds)
