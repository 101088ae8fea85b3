"""axe-core over a page."""

from __future__ import annotations

import pytest

from tests.browser.conftest import pause

GRADIOS = ["image-redundant-alt"]  # the pictures in the links of Gradio's footer repeat the links' text
BUT_COLOURS = {"rules": {rule: {"enabled": False} for rule in ("color-contrast", *GRADIOS)}}
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
RUN = "async ([within, options]) => (await axe.run(within ?? document, options)).violations"


def violations(page, coloured: str | None = "body") -> list[str]:
    """What axe finds, one line an element. `coloured`: the part of the page whose contrasts are measured, which takes
    two thirds of the time; None where a test before measured them."""
    base = pytest.importorskip("axe_playwright_python.base")
    if not page.get_by_role("dialog").is_visible():
        page.evaluate("scrollTo(0, 0)")  # or axe takes what sticks for the ground of what lies below it
    if not page.evaluate("'axe' in window"):
        page.evaluate(base.AXE_SCRIPT)
    runs = [(None, BUT_COLOURS)]
    if coloured:
        pause(page, 800)  # colours of buttons fade
        page.wait_for_function("document.getAnimations().every((it) => !(it instanceof CSSTransition))")
        runs.append((coloured, COLOURS))
    plain = {"resultTypes": ["violations"], "preload": False}
    found = [it for within, options in runs for it in page.evaluate(RUN, [within, plain | options])]
    return [f"{it['id']}: {node['target']} {node['failureSummary']}" for it in found for node in it["nodes"]]
