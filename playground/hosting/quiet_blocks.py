"""Gradio's page, whose log programs cannot fill: a value that no component takes leaves no traceback there, and a fault
leaves one, however often it is met. Errors for people reach them as they are."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr

from playground.errors import INTERNAL, PlaygroundError

logger = logging.getLogger(__name__)

NOT_TAKEN = "A value of this request cannot be taken by the control that it is for. Reload the page and try again."


class QuietBlocks(gr.Blocks):
    """`told`: makes of a sentence for people the one that this page's visitors may read, as `Access.told`."""

    told: Callable[[str], str] = staticmethod(str)

    async def preprocess_data(self, *arguments: Any, **more: Any) -> Any:
        """As Gradio's own.

        Raises:
            gr.Error: a value cannot be taken, in words.
        """
        try:
            return await super().preprocess_data(*arguments, **more)
        except Exception as problem:
            words = problem.message if isinstance(problem, gr.Error) else NOT_TAKEN
            raise gr.Error(words, print_exception=False) from None

    async def process_api(self, *arguments: Any, **more: Any) -> Any:
        """As Gradio's own.

        Raises:
            gr.Error: what a handler raised, errors for people as their sentence. Another exception is a fault of ours,
                and is logged the first time.
        """
        try:
            return await super().process_api(*arguments, **more)
        except gr.Error:
            raise
        except PlaygroundError as problem:
            raise gr.Error(escape(self.told(str(problem)), quote=False), print_exception=False) from None
        except Exception as problem:
            place = traceback.extract_tb(problem.__traceback__)[-1]
            if (fault := (place.filename, place.lineno, type(problem))) not in _logged:
                _logged.add(fault)
                logger.exception("a handler failed; it is logged once")
            raise gr.Error(INTERNAL, print_exception=False) from None


class _FirstLine(logging.Filter):
    """Cuts what the MCP library says of a malformed request, which is a hundred lines with parts of the request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Failed to validate request"):
            record.msg, record.args = record.getMessage().partition("\n")[0], ()
        return True


logging.getLogger().addFilter(_FirstLine())  # only for what is logged by no logger of its own, as this is

_logged: set[tuple[str, int | None, type[Exception]]] = set()
