"""Whether anyone still reads what a handler sends. Gradio itself stops a generator only after its next yield, and the
endpoint never."""

from __future__ import annotations

import asyncio
import time

import gradio as gr
from gradio.context import LocalContext

ARRIVES_S = 5.0  # within which a page reads what it asked for
PATIENCE = 6  # looks, of which a run takes two or three a second


class Reader:
    """Who reads the event that is being handled; made inside its handler."""

    def __init__(self) -> None:
        blocks, event_id = LocalContext.blocks.get(None), LocalContext.event_id.get(None)
        self._queue = blocks._queue if blocks else None
        self._event = None if self._queue is None else self._queue.event_ids_to_events.get(event_id or "")
        self._oldest, self._in_vain = None, 0

    def left(self) -> bool:
        """Whether the connection was closed, or the last looks all found the same message untaken. Counted and not
        timed: while a model loads, the server may serve nobody for seconds."""
        if self._queue is None or self._event is None:  # not called through Gradio's queue
            return False
        messages = self._queue.pending_messages_per_session.get(self._event.session_hash)
        oldest = messages._queue[0] if messages and messages.qsize() else None
        self._in_vain = self._in_vain + 1 if oldest is not None and oldest is self._oldest else 0
        self._oldest = oldest
        return not self._event.alive or self._in_vain > PATIENCE

    async def comes(self) -> bool:
        """Whether somebody takes what the session was sent so far, within ARRIVES_S. Gradio keeps all that nobody
        takes."""
        deadline = time.monotonic() + ARRIVES_S
        while self._queue is not None and self._event is not None:
            messages = self._queue.pending_messages_per_session.get(self._event.session_hash)
            if messages is not None and messages.qsize() == 0:
                break
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True


def address_of(request: gr.Request) -> str:
    """The client's IP address, or its nearest proxy's; "" if unknown."""
    return request.client.host if request.client else ""
