"""The token panel's log: one JSON object a round, a line each, in an append-only text that `assets/stage` draws.

The log only grows while a lane runs, so each update sends and draws only the new rounds. What is unknown, false or at
its default is left out, because the browser holds the whole log.

A round is {"drafted": [token, …], "own": token, "tree": true, "otherwise": n, "times": {"start", "draft", "verify",
"end"}}, times in seconds; `otherwise` is how many draft tokens the other exact rule would have kept. A token is {"id",
"text", "kind", "p", "q", "margin", "special", "position", "parent", "rank", "draw", "bound",
"forced"}: `kind` is its decision or
reason, `position` its position in the draft or its depth in the tree, `rank` that of the target's own choice among the
drafter's, also on the rejected token it replaces, `draw` the uniform number that decided, `bound` what it is compared
with, `forced` whether a grammar forced it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from playground import metrics
from playground.trace import DraftToken, Round, TargetToken


def line(round_: Round) -> str:
    """A round as one line of JSON, in ASCII, ended by a newline."""
    own = round_.target
    drafted = [
        _token(
            token,
            token.decision,
            q=_rounded(token.q),
            position=position,
            parent=token.parent,
            draw=_rounded(token.draw),
            forced=token.forced or None,
            bound=_rounded(token.bound),
        )
        for token, position in zip(round_.drafted, metrics.positions(round_.drafted), strict=True)
    ]
    if own:
        last = max((i for i, token in enumerate(round_.drafted) if token.decision == "accepted"), default=-1)
        for i, token in enumerate(round_.drafted):
            parent = i - 1 if token.parent is None else token.parent
            if token.decision == "rejected" and parent == last and own.rank is not None:
                drafted[i]["rank"] = own.rank
    data = {
        "drafted": drafted,
        **({"own": _token(own, own.reason, rank=own.rank)} if own else {}),
        **({"tree": True} if round_.is_tree else {}),
        **({} if round_.kept_otherwise is None else {"otherwise": round_.kept_otherwise}),
        "times": _times(round_),
    }
    return json.dumps(data, separators=(",", ":")) + "\n"


def log(rounds: Iterable[Round]) -> str:
    """The whole log of a lane: the same as streaming its rounds gives."""
    return "".join(line(round_) for round_ in rounds)


def _token(token: DraftToken | TargetToken, kind: str, **more: Any) -> dict[str, Any]:
    known = {"id": token.id, "p": _rounded(token.p), "margin": _rounded(token.margin), **more}
    special = {"special": True} if token.special else {}
    return {"text": token.text, "kind": kind, **special} | {k: v for k, v in known.items() if v is not None}


def _times(round_: Round) -> dict[str, float]:
    """To the microsecond."""
    times = {"start": round_.start_s, "draft": round_.draft_s, "verify": round_.verify_s, "end": round_.end_s}
    return {name: round(time, 6) for name, time in times.items() if time is not None}


def _rounded(value: float | None) -> float | None:
    """Four digits: one more than the page shows, so that a small probability is not a 0."""
    return None if value is None else float(f"{value:.4g}")
