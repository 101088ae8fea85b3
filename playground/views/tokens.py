"""The token panel's log: one JSON line a round, in an append-only text that `assets/tokens.js` draws.

The text only ever grows while a lane runs, so that each update sends and draws the new rounds alone. Lines are lean,
because the browser holds the whole log: a round is [draft tokens, target token or null] and, where the draft is a tree,
the list of its parents; a token is [id, text, kind, p, q, margin, special], a correction with its rank behind that. The
kind is the decision or the reason; how it looks is the script's affair.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from playground.trace import DraftToken, Round, TargetToken


def line(round_: Round) -> str:
    """A round as one line of JSON, in ASCII, ended by a newline."""
    drafted = [_token(token, token.decision, token.q) for token in round_.drafted]
    target = _token(round_.target, round_.target.reason, None) if round_.target else None
    if target and round_.target.rank is not None:
        target.append(round_.target.rank)
    tree = [[token.parent for token in round_.drafted]] if round_.is_tree else []
    return json.dumps([drafted, target, *tree], separators=(",", ":")) + "\n"


def log(rounds: Iterable[Round]) -> str:
    """The whole log of a lane: what streaming the rounds would have left."""
    return "".join(line(round_) for round_ in rounds)


def _token(token: DraftToken | TargetToken, kind: str, q: float | None) -> list:
    return [token.id, token.text, kind, _rounded(token.p), _rounded(q), _rounded(token.margin), int(token.special)]


def _rounded(value: float | None) -> float | None:
    """Four digits: one more than the page shows, so that a small probability is not a 0."""
    return None if value is None else float(f"{value:.4g}")
