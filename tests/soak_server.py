"""A page for strangers that decodes a fixed text, in a process of its own: `python -m tests.soak_server`."""

from __future__ import annotations

import dataclasses
import os
import sys

os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "200"

from playground.hosting.access import FOR_VISITORS, Access
from playground.ui import page
from tests.ui import fakes

fakes.PASS_S, fakes.DRAFT_S = 0.0005, 0.0001


def main() -> None:
    access = Access(public=True, models=(), limits=dataclasses.replace(FOR_VISITORS, run_s=5, sessions=100))
    blocks = page.build(
        fakes.Store(), {"fake": fakes.PAIR}, fakes.PAIR, fakes.EXAMPLES, backend_for=fakes.Backend, access=access
    )
    _, url, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **page.look(access), **page.bounds(access))
    print(url.rstrip("/"), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
