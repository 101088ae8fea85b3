"""axe-core over a page."""

from __future__ import annotations

import pytest

GRADIOS = ["image-redundant-alt"]  # the pictures in the links of Gradio's footer repeat the links' text


def violations(page) -> list[str]:
    """What axe finds, one line an element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    if not page.get_by_role("dialog").is_visible():
        page.evaluate("scrollTo(0, 0)")  # or axe takes what sticks for the ground of what lies below it
    page.wait_for_timeout(800)  # colours of buttons fade
    page.wait_for_function("document.getAnimations().every((it) => !(it instanceof CSSTransition))")
    options = {"resultTypes": ["violations"], "rules": {rule: {"enabled": False} for rule in GRADIOS}}
    found = axe.Axe().run(page, options=options).response["violations"]
    return [f"{it['id']}: {node['target']} {node['failureSummary']}" for it in found for node in it["nodes"]]
