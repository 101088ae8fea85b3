"""A comparison as a file that replays it: an HTML page, or an animated GIF for places that show no page.

The page has the stage, the run's details and the trace itself. It opens without a server and without a network, which
its content security policy also forbids. So does the view of a run in a chat.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from string import Template

from PIL import Image, ImageDraw, ImageFont

from playground import export, metrics
from playground.format import beginning, number, percent
from playground.metrics import Measured
from playground.trace import Comparison, Trace
from playground.views import facts, headline, run_details, scripts, stage

TITLE = "Speculative Decoding Playground"


def build(comparison: Comparison, chosen: str = "", home: str = "") -> str:
    """Return the page's text. Names, prompts and tokens stay text, whatever they contain.

    Args:
        chosen: the name of the lane that is compared with the baseline; "" for the fastest.
        home: the public address of a page to which the file links; "" for none.
    """
    shown = stage.replaying(comparison, chosen)
    found = metrics.measured(comparison, shown.chosen)
    other = found.ours
    shown.banner = f"Run at {facts.run_at(other.environment)}."
    value = shown.value()
    body = _template("shared.html").substitute(
        home=f'<a href="{escape(home)}">{TITLE}</a>' if home else TITLE,
        prompt=escape(other.request.question),
        acceptance=_acceptance(other),
        details=run_details.html(comparison, shown.chosen),
        value=scripts.embedded(stage.packed(value)),
        trace=scripts.embedded(export.to_json(comparison)),
    )
    title = f"{value['verdict']['figure']} · {other.lane.name} · {other.lane.target} · {TITLE}"
    return framed(title, body, f"{scripts.bundle('shared.js')}.shared();")


def in_chat() -> str:
    """Return the page for clients of MCP Apps. It holds no run: it asks the client for one, by messages."""
    return framed(TITLE, _template("chat.html").template, f"{scripts.bundle('chat.js')}.chat();")


def framed(title: str, body: str, script: str) -> str:
    """Return a page that opens without a server. `body`: HTML. `script`: what runs at its end."""
    styles = "\n".join(path.read_text(encoding="utf-8") for path in scripts.styles())
    return _template("frame.html").substitute(title=escape(title), body=body, styles=styles, script=script)


def _template(name: str) -> Template:
    return Template((scripts.ASSETS / name).read_text(encoding="utf-8"))


def _acceptance(trace: Trace) -> str:
    """Return acceptance by position as a table with bars; "" if nothing was drafted."""
    rows = "".join(
        f'<tr><th scope="row">{at.position}</th><td>{at.drafted:,}</td><td>{at.reached:,}</td>'
        f"<td>{at.accepted:,}</td><td>{_percent(at.accepted, at.reached)}</td>"
        f"<td>{_percent(at.accepted, at.drafted)}</td>"
        f'<td><span class="share" style="width:{100 * at.accepted / at.drafted:.1f}%"></span></td></tr>'
        for at in metrics.acceptance_by_position(trace.rounds)
    )
    if not rows:
        return ""
    names = ("Position", "Drafted", "Reached", "Accepted", "If reached", "Of all drafts")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f"<table><caption>Acceptance by position</caption><tr>{head}<td></td></tr>{rows}</table>"


def _percent(part: int, whole: int) -> str:
    return percent(part / whole if whole else None)


# The GIF shows both lanes on one clock, each token at the time of its round. Pillow draws it.


SIZE = (800, 556)
MARGIN, GAP, BARS, HEAD, TOP = 28, 24, 106, 162, 196  # pixels: the bars on one clock, then the lanes and their text
CARD = 1.91  # width ÷ height of a link's picture
LINE, LINES = 19, 15  # of the text that fits into a lane
STEPS, STEP_MS, END_MS = 40, 120, 3000  # frames of the replay, the duration of each, and of the last
INK, QUIET, SHEET, RULE = "#1f2328", "#57606a", "#ffffff", "#d9dde2"
PLAIN = str.maketrans({"×": "x", "≈": "~"})  # characters that the font lacks
ACCEPTED, TINT, PASS = "#0072b2", "#cfe5f4", "#8b949e"


@dataclass(frozen=True)
class Cell:
    """A token's part in one line: its place, and the time at which it was decoded."""

    x: float
    y: float
    width: float
    text: str
    at_s: float
    accepted: bool


def build_gif(comparison: Comparison, chosen: str, address: str = "") -> bytes:
    """Return a GIF that loops.

    Args:
        chosen: the name of the lane that is compared with the baseline.
        address: of the page, which the picture shows; "" for none.
    """
    frames = list(_frames(metrics.measured(comparison, chosen), address, STEPS))
    colors = frames[-1].quantize(64)
    frames = [frame.quantize(palette=colors, dither=Image.Dither.NONE) for frame in frames]
    out = io.BytesIO()
    durations = [*[STEP_MS] * STEPS, END_MS]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return out.getvalue()


def build_picture(comparison: Comparison) -> bytes:
    """Return the end of the replay of the fastest lane as a PNG, as wide as sites show the picture of a link."""
    *_, last = _frames(metrics.ranked(comparison)[0], "", 1)
    picture = Image.new("RGB", (round(CARD * last.height), last.height), SHEET)
    picture.paste(last, ((picture.width - last.width) // 2, 0))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _frames(measured: Measured, address: str, steps: int) -> Iterator[Image.Image]:
    """Iterate over the pictures of the replay, from its start to its end."""
    width = (SIZE[0] - 2 * MARGIN - GAP) / 2
    lanes = [
        (trace, MARGIN + i * (width + GAP), list(_cells(trace, MARGIN + i * (width + GAP), width)))
        for i, trace in enumerate((measured.base, measured.ours))
    ]
    total_s = max((trace.rounds[-1].end_s for trace, *_ in lanes if trace.rounds), default=0.0)
    image = _still(measured, address)
    pen = ImageDraw.Draw(image)
    for step in range(steps + 1):
        before, now = total_s * (step - 1) / steps, total_s * step / steps
        for index, (trace, left, cells) in enumerate(lanes):
            _draw_bar(pen, trace, BARS + 24 * index, before, now, total_s)
            _draw_lane(pen, trace, left, width, [cell for cell in cells if before < cell.at_s <= now], now)
        yield image.copy()


def _still(measured: Measured, address: str) -> Image.Image:
    """Draw the parts that do not move: the headline, the prompt, and the environment."""
    image = Image.new("RGB", SIZE, SHEET)
    pen = ImageDraw.Draw(image)
    other = measured.ours
    figure = headline.speedup(measured).translate(PLAIN)
    pen.text((MARGIN, 14), figure, INK, _font(34))
    pen.text((MARGIN + pen.textlength(figure, _font(34)) + 14, 31), headline.meaning(measured), QUIET, _font(15))
    if equation := measured.equation:
        said = (
            f"{number(equation.tokens_per_pass)} tokens per check at the cost of {number(equation.cost)} standard steps"
        )
        pen.text((MARGIN, 62), f"{said}. {facts.passes(measured)}", INK, _font(14))
    pen.text((MARGIN, 84), beginning(f"Prompt: {other.request.question}", 100), QUIET, _font(13))
    where = f"{other.lane.target} · {facts.environment_line(other.environment)}"
    pen.line((MARGIN, SIZE[1] - 32, SIZE[0] - MARGIN, SIZE[1] - 32), RULE)
    pen.text((MARGIN, SIZE[1] - 26), beginning(where, 70), QUIET, _font(12))
    home = address or "Speculative Decoding Playground"
    pen.text((SIZE[0] - MARGIN, SIZE[1] - 26), home, QUIET, _font(12), anchor="ra")
    return image


def _draw_bar(pen: ImageDraw.ImageDraw, trace: Trace, top: float, before: float, now: float, total_s: float) -> None:
    """Draw the rounds that ended since `before`, a block each, blue where guesses were accepted; and, where the lane
    ends before the other, by how much it is ahead `now`."""
    scale = (SIZE[0] - 2 * MARGIN) / total_s if total_s else 0.0
    for round_ in trace.rounds:
        if before < round_.end_s <= now:
            left, right = (MARGIN + scale * at for at in (round_.start_s, round_.end_s))
            pen.rectangle((left, top, max(left, right - 2), top + 15), ACCEPTED if round_.accepted else PASS)
    end = trace.rounds[-1].end_s if trace.rounds else total_s
    left = MARGIN + scale * end + 8
    if end < now and left + 90 < SIZE[0] - MARGIN:  # there is room for it
        pen.rectangle((left, top, SIZE[0] - MARGIN, top + 16), SHEET)
        pen.text((left, top), f"{round(now, 2) - round(end, 2):.2f} s ahead", ACCEPTED, _font(14))


def _draw_lane(
    pen: ImageDraw.ImageDraw, trace: Trace, left: float, width: float, cells: list[Cell], now: float
) -> None:
    """Draw a lane as it was `now` seconds after its start, over the frame before. `cells`: the new ones."""
    end = trace.rounds[-1].end_s if trace.rounds else 0.0
    passes = sum(round_.end_s <= now for round_ in trace.rounds)
    pen.rectangle((left, HEAD, left + width, HEAD + 23), SHEET)
    pen.text((left, HEAD + 2), stage.NAMES[trace.lane.drafter != "none"], INK, _font(15))
    said = f"{passes} steps · {min(now, end):.1f} s"
    pen.text((left + width, HEAD + 4), said, ACCEPTED if now >= end else QUIET, _font(13), anchor="ra")
    pen.line((left, HEAD + 24, left + width, HEAD + 24), RULE)
    for cell in cells:
        if cell.accepted:
            pen.rectangle((cell.x, cell.y, cell.x + cell.width - 1, cell.y + LINE - 3), TINT)
        pen.text((cell.x, cell.y), cell.text, INK, _font(14))


def _cells(trace: Trace, left: float, width: float) -> Iterator[Cell]:
    """Iterate over the tokens of a lane, broken into lines, as far as there is room."""
    x, line, font = left, 0, _font(14)
    for round_ in trace.rounds:
        drafted = len(round_.tokens) - (1 if round_.target else 0)
        for i, token in enumerate(round_.tokens):
            for n, part in enumerate(_shown("" if token.special else token.text).split("\n")):
                wide = font.getlength(part)
                if n or x + wide > left + width:
                    x, line, part = left, line + 1, part if n else part.lstrip()
                    wide = font.getlength(part)
                if line >= LINES:
                    return
                if part:
                    yield Cell(x, TOP + line * LINE, wide, part, round_.end_s, i < drafted)
                x += wide


def _shown(text: str) -> str:
    """Return a token's text with a dot for each character that the font lacks."""
    return "".join(char if char in "\n " or _has(char) else "·" for char in text)


@cache
def _has(char: str) -> bool:
    font = _font(14)
    return bytes(font.getmask(char)) != bytes(font.getmask("\U0010ffff"))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return Pillow's built-in font."""
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "with a size it is"
    return font
