"""Makes the README's pictures: `python -m docs.pictures [TRACE]`; with `--rounds` it records rounds instead.

Writes assets/screenshot.png, the first view with both lanes, and assets/replay.gif, the replay of both lanes on one
clock. They show the run that comes with the page, or the run in the trace file. Needs tests/requirements.txt and a
Chromium; loads no model.

The run that comes with the page is that of its first example, with the default drafter, on a quiet machine:

    python -m playground compare --pair starter --dtype bfloat16 --json assets/recorded.json \\
        --prompt "Write a Python function that returns the first n Fibonacci numbers as a list."
    python -m playground record make assets/recorded.json -o records/starter-recorded.json \\
        --suite "one prompt, the run with which the page opens" --note "one prompt chosen as an example: no suite"

The rounds are of the starter's drafters, one each, for *How this drafter works*: assets/rounds.json. They need the
starter.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import playground
from benchmarks.page import CHROMIUMS, FLAGS
from playground.models.fit import Fit
from playground.presets import Pair, load_pairs, load_suites
from playground.trace import Round, Trace
from playground.ui import page
from playground.views import stage
from playground.views.scripts import ASSETS

SHOT = {"width": 1280, "height": 1000}
FILM = {"width": 1120, "height": 900}
FRAMES = 72
FRAME_MS = 110
HOLD_MS = 2500  # the last frame
COLOURS = 48
TEXT = 230  # pixels of the texts that the film shows
LARGEST = 2_000_000  # bytes of the animation
BEFORE = 60  # characters of the text before a recorded round
ASKED: dict[str, Any] = {"lookahead": 4, "nodes": 8, "policy": "constant", "max_new_tokens": 96}
PROMPT = "Write a Python function that returns the first n Fibonacci numbers as a list."
AS_JSON: dict[str, Any] = {
    "prompt": "Describe a cat as JSON.",
    "json_schema": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "legs": {"type": "integer"}},
        "required": ["name", "legs"],
    },
}

SEEK = """(slider, share) => {
  slider.value = share * slider.max;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""


class NoModels:
    """Stands for the store of models: nothing is decoded here."""

    current: Pair | None = None

    def get(self, pair: Pair, **options: object) -> None:
        self.current = pair

    def fit(self, pair: object) -> Fit:
        return Fit("ready", 0, 0, 0, "")

    def sampling_defaults(self, name: str) -> dict[str, float]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the pictures of the README.")
    parser.add_argument("trace", nargs="?", help="a saved trace; the recorded run if absent")
    parser.add_argument("--rounds", action="store_true", help="record rounds instead")
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder to write to")
    options = parser.parse_args()
    pairs, _ = load_pairs()
    if options.rounds:
        record_rounds(pairs["starter"], options.out / "rounds.json")
        return
    suites, _ = load_suites()
    blocks = page.build(NoModels(), pairs, pairs["starter"], suites["first"].prompts)
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **page.look())
    with sync_playwright() as playwright:
        path = next(found for name in CHROMIUMS if (found := shutil.which(name)))
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        options.out.mkdir(parents=True, exist_ok=True)
        screenshot(visit(browser, address, options.trace, SHOT, scale=2), options.out / "screenshot.png")
        film(visit(browser, address, options.trace, FILM), options.out / "replay.gif")
        browser.close()
    blocks.close()


def record_rounds(pair: Pair, path: Path) -> None:
    """A round of each drafter, in the form that the stage draws, after the end of the text before it."""
    found = {}
    for drafter in (*pair.drafters, "grammar"):
        asked = AS_JSON if drafter == "grammar" else {"prompt": PROMPT}
        trace = playground.compare(pair=pair.name, drafter=drafter, **ASKED, **asked).others[0]
        at = max(range(len(trace.rounds)), key=lambda at: telling(trace.rounds[at]))
        found[drafter] = {
            "title": trace.lane.name,
            "after": text_before(trace, at)[-BEFORE:],
            "round": json.loads(stage.line(trace.rounds[at])),
        }
    path.write_text(json.dumps(found, indent=1) + "\n")


def telling(round_: Round) -> tuple[bool, bool, bool, int]:
    """Whether guesses were kept, others were rejected, and branches grew; and how many guesses were kept."""
    decisions = [token.decision for token in round_.drafted]
    forks = len({token.parent for token in round_.drafted}) < len(round_.drafted) and round_.is_tree
    rejected = "rejected" in decisions and round_.target is not None
    return "accepted" in decisions, rejected, forks, decisions.count("accepted")


def text_before(trace: Trace, at: int) -> str:
    return "".join(token.text for round_ in trace.rounds[:at] for token in round_.tokens)


def visit(browser: Any, address: str, trace: str | None, size: dict, scale: int = 1) -> Page:
    """The page at rest, with the run on its stage."""
    shown = browser.new_page(viewport=size, device_scale_factor=scale, reduced_motion="reduce")
    shown.goto(f"{address}?__theme=light")
    shown.locator("#model", has_text="is ready").wait_for()
    if trace:
        shown.locator("input[type=file]").set_input_files(trace)
        shown.locator("#banner", has_text="Opened from a file").wait_for()
    shown.locator(".tokens .tok").first.wait_for()
    return shown


def screenshot(shown: Page, path: Path) -> None:
    picture = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
    picture.quantize(256).save(path, optimize=True)
    print(f"{path}: {picture.width} x {picture.height}, {path.stat().st_size:,} bytes")


def film(shown: Page, path: Path) -> None:
    """The stage from the headline to the first lines of the texts, from the first round to the last."""
    slider = shown.get_by_label("Time of the replay")
    slider.scroll_into_view_if_needed()
    boxes = [shown.locator(part).bounding_box() for part in (".stage > .head", ".replay")]
    top, bottom = boxes[0]["y"], boxes[1]["y"] + boxes[1]["height"] + TEXT
    shown.evaluate("by => scrollBy(0, by)", min(0, top))
    top, bottom = top - min(0, top), bottom - min(0, top)
    clip = {"x": boxes[0]["x"], "y": top, "width": boxes[0]["width"], "height": bottom - top}
    frames = []
    for i in range(FRAMES):
        slider.evaluate(SEEK, i / (FRAMES - 1))
        frames.append(Image.open(io.BytesIO(shown.screenshot(clip=clip))).convert("RGB"))
    palette = frames[-1].quantize(COLOURS)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    times = [FRAME_MS] * (FRAMES - 1) + [HOLD_MS]
    first.save(path, save_all=True, append_images=others, duration=times, loop=0, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {first.width} x {first.height}, {len(frames)} frames, {size:,} bytes")
    if size > LARGEST:
        raise SystemExit(f"{path} is larger than {LARGEST:,} bytes: take fewer frames or colours.")


if __name__ == "__main__":
    main()
