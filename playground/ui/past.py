"""The history of past runs and its page, where entries are compared, saved and deleted; and the page of records.

On the user's own machine it shows everything; on a public link each browser sees its own comparisons.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground.errors import PlaygroundError, check
from playground.experiments import session
from playground.experiments.history import History
from playground.format import count
from playground.hosting.access import Access
from playground.hosting.request_filter import make_room
from playground.results import Result, record
from playground.results.record import Record
from playground.trace import Comparison
from playground.ui import panels
from playground.ui.compare.shown import Shown
from playground.ui.rooms import RECORDS_PAGE
from playground.ui.wiring import PRIVATE, QUIET, Filled, download, in_browser
from playground.views import compared, records, report, scripts

logger = logging.getLogger(__name__)

NO_LINK = "A run from a file has no link on this server. Save it as HTML: that file replays anywhere."
KEY = re.compile(r"[0-9a-f]{64}")


class VisibleHistory:
    """The history that a visitor may see. Every method takes the owner, which `owner` returns."""

    def __init__(self, history: History, access: Access) -> None:
        self.history, self._access = history, access

    def owner(self, key: object) -> str:
        """Returns the owner for a browser with this key: on the user's own machine one for everybody. A browser that
        stores no key gets an owner for as long as its page is open."""
        if not self._access.public:
            return ""
        return key if isinstance(key, str) and KEY.fullmatch(key) else secrets.token_hex(32)

    def client(self, visitor: str) -> str:
        """Returns the owner for a program. No browser lists its experiments."""
        return f"client {visitor}" if self._access.public else ""

    def keep(self, owner: str, shown: Shown | None) -> str | None:
        """Stores a comparison that has just ended and returns its id; a stopped one is not stored. A repeat replaces
        the earlier run."""
        if shown is None or not shown.repeatable or (self._access.public and not owner):
            return None
        try:
            return self._keep(owner, shown)
        except PlaygroundError as error:
            logger.warning("the history does not have comparison %s: %s", shown.id, error)
            return None

    def _keep(self, owner: str, shown: Shown) -> str:
        return session.keep(self.history, shown.comparison, shown.chosen, owner, shown.id)

    def share(self, owner: str, shown: Shown | None) -> str:
        """Stores a run for everybody who has its link, and returns the query of that link. On the user's own machine it
        is the run's id in the history. A visitor's run gets an unguessable name; such a link opens this run alone, for
        as long as the history has it.

        Raises:
            PlaygroundError: nothing is shown; or it is from a file of a visitor, who could say that it ran here.
        """
        check(shown is not None, "There is no run to share yet.")
        assert shown
        check(not (shown.from_file and self._access.public), NO_LINK)
        if shown.link:
            return shown.link
        name = self._keep(owner, shown)
        return f"shared={self.history.share(name, owner)}" if self._access.public else f"id={name}"

    def linked(self, owner: str, query: Mapping[str, str]) -> Comparison | None:
        """Returns the comparison that the page's address names; None if it names none.

        Raises:
            PlaygroundError: it is no longer stored, or another visitor's.
        """
        try:
            if name := query.get("shared"):
                entry = self.history.shared(name)
                return self.comparison(entry.owner, entry.id)
            return self.comparison(owner, name) if (name := query.get("id")) else None
        except PlaygroundError:
            raise PlaygroundError("This run is private or deleted. Ask for a share link.") from None

    def opened(self, owner: str, name: str) -> Result | Comparison:
        """Returns a result of the owner's.

        Raises:
            PlaygroundError: the owner has no such experiment, or it has no result yet.
        """
        return session.opened(self.history, name, owner)

    def comparison(self, owner: str, name: str) -> Comparison:
        """Returns a comparison of the owner's.

        Raises:
            PlaygroundError: the owner has no such comparison.
        """
        result = self.opened(owner, name)
        if not isinstance(result, Comparison):
            raise PlaygroundError(f"{name} is no comparison. History leads to it.")
        return result

    def saved(self, owner: str, name: str, form: str) -> dict[str, Any]:
        """Returns an update of a button that downloads the result as `report.file` writes it.

        Raises:
            PlaygroundError: see `opened`; or the result has no such form.
        """
        entry = self.history.entry(name, owner)
        text = report.file(self.opened(owner, name), form, entry.title)
        make_room(self._access.limits.files)
        return panels.saved(f"{entry.kind}-{name}{form}", text.encode())


def owner_of(after: Callable[..., Dependency], past: VisibleHistory) -> tuple[gr.State, Dependency]:
    """Returns a state with the page's owner, and the event that fills it. `after`: starts that event; it takes the
    arguments of `page.load`."""
    owner, key = gr.State(""), gr.JSON(visible=False)
    script = f"() => {scripts.bundle('owner.js')}.keyOfBrowser()"
    return owner, after(past.owner, key, owner, js=script, **PRIVATE)


INTRO = "Every experiment of this machine, the newest first. It is kept on this machine alone."
OFF = (
    "What was run since this server started, the newest first. The history is switched off: it is lost when the server "
    "stops."
)
CHOOSE = "Choose one to save or delete it, two to compare them."
TELL_CHOSEN = """() => {{
  const ids = [...document.querySelectorAll("#history input:checked")].map((box) => box.value);
  return [ids, ...{}];
}}"""
FORMS = {"JSON": ".json", "CSV": ".csv", "HTML": ".html"}


def build(page: gr.Blocks, past: VisibleHistory, access: Access) -> None:
    """Lays the history page out and wires it."""
    gr.HTML(f"<h1>History</h1><p>{_intro(past, access)} {CHOOSE}</p>", elem_classes="intro")
    with gr.Row(elem_id="act"):
        search = gr.Textbox(label="Search", info="words of its name, kind or state", elem_id="search", scale=1)
        delete_all = _delete_all()
    with gr.Row(elem_id="chosen"):
        compare = _button("Compare", "compare-entries")
        saves = {_button(f"Save {name}", f"history-{form[1:]}"): form for name, form in FORMS.items()}
        delete = _button("Delete", "delete-entries")
        undo = gr.Button("Undo", size="sm", visible=False, elem_id="undo-delete", min_width=90, scale=0)
        saved = panels.written()
    shown = gr.HTML(elem_id="side-by-side", apply_default_css=False)
    listed = _list()
    chosen, gone = gr.JSON([], visible=False), gr.State([])  # ids: the chosen entries, and those that Undo restores
    owner, known = owner_of(page.load, past)

    def rows(owner: str, text: str) -> str:
        try:
            return panels.history(past.history.entries(owner, text), searched=bool(text.strip()))
        except PlaygroundError as problem:
            return panels.status(str(problem), "error")

    def deleted(owner: str, text: str, ids: list[str], problem: str = "") -> Filled:
        """Says what was deleted, and that Undo restores it."""
        said = panels.status(f"{count(len(ids), 'run')} deleted.") if ids else ""
        said += panels.status(problem, "error")
        return {shown: said, listed: rows(owner, text), gone: ids, undo: gr.update(visible=bool(ids))}

    def delete_chosen(owner: str, text: str, ids: object) -> Filled:
        done, problem = _each(past.history.delete, owner, _ids(ids))
        return deleted(owner, text, done, problem)

    def bring_back(owner: str, text: str, ids: list[str]) -> Filled:
        _, problem = _each(past.history.restore, owner, ids)
        said = panels.status(problem, "error")
        return {shown: said, listed: rows(owner, text), gone: [], undo: gr.update(visible=False)}

    def save(form: str, owner: str, ids: object) -> Filled:
        try:
            return {saved: past.saved(owner, next(iter(_ids(ids)), ""), form), shown: ""}
        except PlaygroundError as problem:
            return {saved: None, shown: panels.status(str(problem), "error")}

    query = [owner, search]
    known.then(rows, query, listed, **PRIVATE)
    gr.Timer(3).tick(rows, query, listed, **PRIVATE)
    search.input(rows, query, listed, trigger_mode="always_last", **PRIVATE)
    after = [shown, listed, gone, undo]
    delete_all.click(lambda owner, text: deleted(owner, text, past.history.clear(owner)), query, after, **PRIVATE)
    able = {"interactive: ids.length === 2": [compare], "interactive: ids.length === 1": [*saves]}
    outputs, updates = in_browser({**able, "interactive: ids.length > 0": [delete]})
    listed.select(None, None, [chosen, *outputs], js=TELL_CHOSEN.format(updates), **QUIET)
    compare.click(lambda owner, ids: side_by_side(past, owner, _ids(ids)), [owner, chosen], shown, **PRIVATE)
    delete.click(delete_chosen, [*query, chosen], after, **PRIVATE)
    undo.click(bring_back, [*query, gone], after, **PRIVATE)
    for button, form in saves.items():
        download(button.click, partial(save, form), [owner, chosen], [saved, shown])


def _delete_all() -> gr.Button:
    """Lays out the button that deletes all runs, which asks first. Returns the one that says yes."""
    clear = gr.Button("Delete all …", size="sm", elem_id="delete-all", min_width=110, scale=0)
    with gr.Row(visible=False, elem_id="sure") as sure:
        gr.HTML("<p>Delete all finished runs?</p>", apply_default_css=False)
        really, keep = (gr.Button(label, size="sm", min_width=110, scale=0) for label in ("Delete them", "Keep them"))
    for button, shown, hidden in ((clear, sure, clear), (really, clear, sure), (keep, clear, sure)):
        outputs, updates = in_browser({"visible: false": [hidden], "visible: true": [shown]})
        button.click(None, None, outputs, js=f"() => {updates}", **QUIET)
    return really


def _ids(ids: object) -> list[str]:
    """Returns the ids of the entries that the browser says are chosen."""
    return [each for each in ids if isinstance(each, str)] if isinstance(ids, list) else []


def _each(act: Callable[[str, str], None], owner: str, ids: list[str]) -> tuple[list[str], str]:
    """Acts on each entry. Returns those that it was done to, and why it ended earlier; "" if it did not."""
    done: list[str] = []
    try:
        for name in ids:
            act(name, owner)
            done.append(name)
    except PlaygroundError as error:
        return done, str(error)
    return done, ""


def side_by_side(past: VisibleHistory, owner: str, names: list[str]) -> str:
    """Returns two entries as HTML, the older first; or why they cannot be compared."""
    try:
        entries = sorted((past.history.entry(name, owner) for name in names[:2]), key=lambda entry: entry.created)
        first, second = (past.opened(owner, entry.id) for entry in entries)
        sentences, table = compared.side_by_side(first, second)
    except PlaygroundError as problem:
        return panels.status(str(problem), "error")
    return panels.side_by_side(entries, sentences, table)


def _intro(past: VisibleHistory, access: Access) -> str:
    if not access.public:
        return INTRO if past.history.permanent else OFF
    limits = access.limits
    return (
        f"Your last {limits.history_each:.0f} comparisons on this server, the newest first. They are kept for "
        f"{limits.history_s / 3600:.0f} hours at most, and only this browser can read them."
    )


def _list() -> gr.HTML:
    return gr.HTML(
        "",
        html_template='<div class="listed"></div>',
        js_on_load=scripts.component("history.js", "history"),
        apply_default_css=False,
        elem_id="history",
    )


def _button(label: str, name: str) -> gr.Button:
    return gr.Button(label, size="sm", interactive=False, elem_id=name, min_width=90, scale=0)


def build_records(page: gr.Blocks, access: Access) -> None:
    """Lays the page of records out, which reads them from their folder whenever it is opened."""
    gr.HTML(f"<h1>Records</h1><p>{escape(records.INTRO)}</p>", elem_classes="intro")
    shown = gr.HTML(
        "",
        html_template="<div></div>",
        js_on_load=scripts.component("records.js", "room"),
        apply_default_css=False,
        elem_id="records",
    )

    def read(request: gr.Request) -> str:
        try:
            found, run = record.load(), request.query_params.get("run")
            if run:
                return _run_behind(found, run)
            return records.html(found, [name for name, it in found.items() if it.here])
        except PlaygroundError as problem:
            return panels.status(access.without_secrets(str(problem)), "error")

    page.load(read, None, shown, **PRIVATE)


def _run_behind(found: dict[str, Record], name: str) -> str:
    """Returns the run behind a record as HTML.

    Raises:
        PlaygroundError: there is no such record, or its run is not here.
    """
    check(name in found, f"There is no record {name}.")
    result = record.run_of(found[name])
    if result is None:
        raise PlaygroundError(f"The run behind {name} is not here.")
    it = report.of(result)
    head = f'<p><a href="{RECORDS_PAGE}">All records</a></p><h2>{escape(it.title)}</h2><p>{escape(it.setting)}</p>'
    return f'{head}{panels.findings(it.findings)}<div id="tables">{panels.tables([*it.tables, *it.folded])}</div>'
