"""ZeroGPU's rules without a GPU: a stand-in for the package `spaces`, and a backend that needs CUDA."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradio as gr
import pytest
import torch
from gradio.context import LocalContext

from tests.ui import fakes

FORK = multiprocessing.get_context("fork")


class Spaces:
    """Decorates generators as `spaces` 0.51 does on ZeroGPU: each call forks a process, in which alone CUDA can be
    used, and pickles its arguments and what it yields. `asked`: the seconds of each call. `refusal`: why the visitor
    gets no GPU; "" gives one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self.refusal = ""
        patch.setattr(torch.cuda, "_lazy_init", _refuse)

    def GPU(self, *, duration: Callable[..., int]) -> Callable:
        def decorate(task: Callable[..., Iterator]) -> Callable[..., Iterator]:
            def call(*args: Any) -> Iterator:
                nobody = "" if LocalContext.request.get(None) else "Space app has reached its GPU limit."
                if why := self.refusal or nobody:
                    raise gr.Error(why, title="ZeroGPU quota exceeded")
                self.asked.append(duration(*args))
                yield from _forked(task, args)

            return call

        return decorate


def _forked(task: Callable[..., Iterator], args: tuple) -> Iterator:
    asked, results, closed = FORK.SimpleQueue(), FORK.SimpleQueue(), FORK.Event()
    process = FORK.Process(target=_serve, args=(task, asked, results, closed), daemon=True)
    process.start()
    asked.put(args)
    try:
        while (result := results.get())[0] == "yielded":
            yield result[1]
        if result[0] == "raised":
            raise gr.Error(result[1], title="ZeroGPU worker error", print_exception=False)
    except GeneratorExit:
        closed.set()
        while results.get()[0] == "yielded":
            pass
        raise
    finally:
        process.join(10)


def _serve(task: Callable[..., Iterator], asked: Any, results: Any, closed: Any) -> None:
    torch.cuda._lazy_init = lambda: None
    torch.set_num_threads(1)  # OpenMP's threads are not forked

    def iterate(args: tuple) -> None:
        batches = task(*args)
        for batch in batches:
            if closed.is_set():
                batches.close()
                break
            results.put(("yielded", batch))

    with ThreadPoolExecutor() as executor:
        error = executor.submit(iterate, asked.get()).exception()
    results.put(("raised", type(error).__name__) if error else ("ended", None))


def _refuse() -> None:
    raise RuntimeError("Low-level CUDA init reached.")


class Backend(fakes.Backend):
    """Needs CUDA for everything."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("load", "run", "warm_up", "describe"):
            torch.cuda.init()
        return super().__getattribute__(name)


def in_a_request(act: Callable[[], Any]) -> Any:
    """What it returns, called as in one of Gradio's event handlers."""
    token = LocalContext.request.set(gr.Request())
    try:
        return act()
    finally:
        LocalContext.request.reset(token)
