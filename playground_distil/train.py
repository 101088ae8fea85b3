"""The training loop of all drafters: a cosine schedule, held-out acceptance at intervals, checkpoints to resume from.

Muon steps the matrices between hidden states, AdamW norms and embeddings. Muon (Jordan et al. 2024,
kellerjordan.github.io/posts/muon) moves a matrix equally far in each of its directions. Scaled as in Liu et al. 2025
(arXiv 2502.16982) it takes AdamW's learning rate.
"""

from __future__ import annotations

import html
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import nn
from tqdm import tqdm

from playground import metrics
from playground.errors import PlaygroundError
from playground.format import duration
from playground.models.device import has_bfloat16
from playground.models.fetch.files import replacing
from playground_distil.answers import Answer
from playground_distil.data import batches
from playground_distil.students import Student

WARM_UP = 0.03  # share of the steps over which the learning rate rises
HELD_OUT_TOKENS = 40_000


@dataclass(frozen=True)
class Plan:
    """The settings of a run. `tokens`: tokens to learn from in all, where an answer that is seen again counts again; 0
    only evaluates the initial weights. `batch`: tokens of a step."""

    tokens: int
    batch: int = 1024
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    evaluations: int = 10
    seed: int = 0


class HeldOut(TypedDict):
    """Figures on held-out answers, drafted greedily. `accepted`: for each position, the share of drafts that are
    accepted up to it. `mean_accepted_length`: tokens per target pass at this lookahead, bonus token included. Both are
    over all positions, which serves to compare trainings of one drafter; decoding starts its rounds at some of them
    only, and gives less."""

    accepted: list[float]
    mean_accepted_length: float


class Figures(HeldOut):
    """One evaluation, with the tokens and seconds of training before it."""

    tokens: int
    seconds: float


def train(
    student: Student,
    answers: Sequence[Answer],
    held_out: Sequence[Answer],
    plan: Plan,
    checkpoint: Path,
) -> list[Figures]:
    """Trains in place; continues from the checkpoint where there is one. Returns the figures of each evaluation. The
    run can be watched in a page next to the checkpoint, of the same name with .html.

    A checkpoint has no draft vocabulary: a run continues with that of the current answers.
    """
    device = next(student.module.parameters()).device
    weights = [parameter for parameter in student.module.parameters() if parameter.requires_grad]
    optimizer = MuonAndAdamW(student.module, plan.learning_rate, plan.weight_decay)
    done = 0
    log: list[Figures] = []
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        with torch.no_grad():
            for name, weight in student.module.named_parameters():
                weight.copy_(state["weights"][name])
        optimizer.load_state_dict(state["optimizer"])
        done, log = state["done"], json.loads(state["log"])
    seconds = log[-1]["seconds"] if log else 0.0
    started = time.monotonic()
    if not log and done >= plan.tokens:
        log.append({"tokens": done, "seconds": seconds, **evaluate(student, held_out)})
        print(describe(log[-1]))
    next_look = done + plan.tokens // plan.evaluations
    torch.manual_seed(plan.seed)
    report = TrainingReport(checkpoint.with_suffix(".html"), checkpoint.stem, plan.tokens, done)
    with tqdm(total=plan.tokens, initial=done, unit="token", desc="Training", smoothing=0.05) as bar:
        while done < plan.tokens:
            for batch in batches(answers, plan.batch, random.Random(f"{plan.seed}-{done}")):
                optimizer.set_learning_rate(plan.learning_rate * _shape(done / plan.tokens))
                with _products(device):
                    lesson = student.lesson(batch.to(device), done / plan.tokens)
                optimizer.zero_grad()
                lesson.loss.backward()
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                learned = int(batch.counts.sum())
                done += learned
                bar.update(learned)
                bar.set_postfix(loss=f"{lesson.loss.item():.3f}", refresh=False)
                if done >= next_look or done >= plan.tokens:
                    next_look += plan.tokens // plan.evaluations
                    log.append(
                        {"tokens": done, "seconds": seconds + time.monotonic() - started, **evaluate(student, held_out)}
                    )
                    bar.write(describe(log[-1]))
                    state = {
                        "weights": dict(student.module.named_parameters()),
                        "optimizer": optimizer.state_dict(),
                        "done": done,
                        "log": json.dumps(log),
                    }
                    with replacing(checkpoint) as part:  # an interrupted write leaves the last checkpoint intact
                        torch.save(state, part)
                report.step(done, lesson.loss.item(), log)
                if done >= plan.tokens:
                    break
    return log


@torch.no_grad()
def evaluate(student: Student, held_out: Sequence[Answer]) -> HeldOut:
    agreed, tokens = [], 0
    device = next(student.module.parameters()).device
    for batch in batches(held_out, 4096, random.Random(0)):
        with _products(device):
            agreed.append(student.lesson(batch.to(device)).agreed)
        tokens += int(batch.counts.sum())
        if tokens >= HELD_OUT_TOKENS:
            break
    accepted = metrics.accepted_up_to(torch.cat(agreed).cpu().numpy())
    return {
        "accepted": [round(share, 4) for share in accepted],
        "mean_accepted_length": round(metrics.expected_length(accepted), 3),
    }


def describe(figures: Figures) -> str:
    accepted = " ".join(f"{x:.3f}" for x in figures["accepted"])
    return (
        f"{figures['tokens']:>12,} tokens {figures['seconds']:>7.0f} s   accepted up to each position: {accepted}"
        f"   {figures['mean_accepted_length']:.2f} tokens a pass, over all positions"
    )


def _products(device: torch.device) -> torch.autocast:
    """Returns a context in which matrix products are in bfloat16 where the device computes in it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=has_bfloat16(device))


def _shape(done: float) -> float:
    """Returns the learning rate's factor: a linear rise, then half a cosine down to a tenth. `done`: from 0 to 1."""
    if done < WARM_UP:
        return max(done / WARM_UP, 0.02)
    return 0.55 + 0.45 * float(torch.cos(torch.tensor((done - WARM_UP) / (1 - WARM_UP) * torch.pi)))


class MuonAndAdamW:
    """Muon for matrices and AdamW for other weights, which step together.

    Raises:
        PlaygroundError: torch is older than 2.9 and has no Muon.
    """

    def __init__(self, module: nn.Module, learning_rate: float, weight_decay: float) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise PlaygroundError(f"Training takes torch 2.9 or newer, for its Muon; this is {torch.__version__}.")
        embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        matrices = [weight for weight in trained if weight.ndim == 2 and id(weight) not in embeddings]
        others = [weight for weight in trained if weight.ndim != 2 or id(weight) in embeddings]
        self._both = [
            torch.optim.Muon(matrices, learning_rate, weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay),
        ]

    def set_learning_rate(self, rate: float) -> None:
        for optimizer in self._both:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def zero_grad(self) -> None:
        for optimizer in self._both:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self._both:
            optimizer.step()

    def state_dict(self) -> list[dict]:
        return [optimizer.state_dict() for optimizer in self._both]

    def load_state_dict(self, states: list[dict]) -> None:
        for optimizer, state in zip(self._both, states, strict=True):
            optimizer.load_state_dict(state)


# --- a page that shows the run: loss, held-out acceptance by position, time left ---

EVERY = 5.0  # seconds between two versions of the page
POINTS = 200  # the most points of the loss curve: each is the mean of several steps
WIDTH, HEIGHT, LEFT, BELOW = 640, 220, 46, 24
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6100")  # Okabe and Ito; by position

Line = Sequence[tuple[float, float]]


class TrainingReport:
    """Writes one HTML file without scripts that reloads itself, at most every EVERY seconds.

    Args:
        path: the page's file.
        total: tokens to learn from in all.
        done: tokens that were learned before this process.
    """

    def __init__(self, path: Path, title: str, total: int, done: int = 0) -> None:
        self._path, self._title, self._total = path, title, total
        self._first, self._began, self._written = done, time.monotonic(), float("-inf")
        self._losses: list[tuple[float, float]] = []

    def step(self, done: int, loss: float, log: Sequence[Mapping[str, Any]]) -> None:
        """Records a step. `done`: tokens learned so far; `log`: the held-out figures so far."""
        self._losses.append((done, loss))
        if time.monotonic() - self._written > EVERY or done >= self._total:
            self._path.write_text(self._page(done, log), encoding="utf-8")
            self._written = time.monotonic()

    def _page(self, done: int, log: Sequence[Mapping[str, Any]]) -> str:
        ended = done >= self._total
        learned = max(1, done - self._first)
        left = (time.monotonic() - self._began) / learned * max(0, self._total - done)
        state = "Done." if ended else f"About {duration(left)} left."
        positions = len(log[-1]["accepted"]) if log else 0
        held_out = [[(figures["tokens"], figures["accepted"][i]) for figures in log] for i in range(positions)]
        latest = f"{log[-1]['mean_accepted_length']:.2f} tokens per check, over all positions" if log else "none yet"
        again = "" if ended else '<meta http-equiv="refresh" content="5">'
        return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">{again}
<meta name="viewport" content="width=device-width"><title>{html.escape(self._title)}</title>
<style>body {{ font: 14px/1.5 system-ui, sans-serif; max-width: 680px; margin: 24px auto; padding: 0 12px;
color-scheme: light dark; font-variant-numeric: tabular-nums }} svg {{ width: 100%; height: auto }}
text {{ font-size: 11px; fill: currentColor }} h2 {{ font-size: 15px; margin: 20px 0 4px }}</style></head><body>
<h1 style="font-size:18px">{html.escape(self._title)}</h1>
<p>{done:,} of {self._total:,} tokens. {state} Held out: {latest}.</p>
<h2>Loss</h2>{_chart([_means(self._losses)], ["mean of steps"], self._total)}
<h2>Held-out drafts accepted up to each position</h2>
{_chart(held_out, [f"position {i + 1}" for i in range(positions)], self._total, top=1.0)}
</body></html>
"""


def _means(line: Line) -> Line:
    size = -(-len(line) // POINTS)
    groups = [line[i : i + size] for i in range(0, len(line), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _chart(lines: Sequence[Line], names: Sequence[str], right: float, top: float | None = None) -> str:
    """Returns an SVG of lines over tokens, from 0 to `right` and to `top`, or the highest value; each line is labelled
    at its end."""
    high = top or max((y for line in lines for _, y in line), default=1.0) or 1.0

    def at(x: float, y: float) -> str:
        return f"{LEFT + x / right * (WIDTH - LEFT - 90):.1f},{(1 - y / high) * (HEIGHT - BELOW) + 8:.1f}"

    parts = []
    for share in (0, 0.5, 1):
        x, y = at(0, share * high).split(",")
        parts.append(f'<text x="{LEFT - 6}" y="{float(y) + 4}" text-anchor="end">{share * high:.2f}</text>')
        parts.append(f'<path d="M{x},{y} H{WIDTH - 90}" stroke="currentColor" stroke-opacity=".2"/>')
    parts.append(f'<text x="{WIDTH - 90}" y="{HEIGHT + 2}" text-anchor="end">{right:,.0f} tokens</text>')
    for i, (line, name) in enumerate(zip(lines, names, strict=True)):
        if line:
            points, colour = [at(x, y) for x, y in line], COLOURS[i % len(COLOURS)]
            x, y = points[-1].split(",")
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
            parts.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>')
            label = f"{html.escape(name)} {line[-1][1]:.2f}"
            parts.append(f'<text x="{float(x) + 6}" y="{float(y) + 4}">{label}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 8}" role="img">{"".join(parts)}</svg>'
