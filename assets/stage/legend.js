// What the marks in the text mean, above the text, with switches for more of them. The switches are classes on the body,
// so that both panels follow and a new run keeps them.

import { make } from "./core.js";
import { SEGMENTS } from "./words.js";

/** @import { Rounds } from "./log.js" */
/** @import { LaneValue, Round } from "../types.d.ts" */

const HINT =
  "Hover over a token, or focus it and use the arrow keys, to see its round and its probabilities; Enter opens the round's draft.";

export function legendPart() {
  const details = labelled("show-details", "Details");
  const rejected = labelled("show-rejected", "Show rejected drafts");
  const space = labelled("show-space", "Show white space and special tokens");
  const bars = Object.entries(SEGMENTS).map(segment);
  const gutter = list("the gutter", "gutter", bars);
  const grammar = list("the grammar", "by-grammar", [
    mark("accepted forced", "forced", "the grammar leaves no choice"),
  ]);
  const node = make(
    "div",
    "legend",
    list("the token marks", "", [
      mark("accepted", "accepted", "guessed right"),
      mark("plain", "plain", "the model's own"),
      cell(),
      caret(),
    ]),
    gutter,
    list("the details", "marks", [
      mark("correction", "correction", "replaces a rejected token"),
      mark("bonus", "bonus", "follows a draft that was all accepted"),
    ]),
    grammar,
    list("the rejected drafts", "dropped", [
      dropped("rejected", "rejected", "discarded"),
      dropped("unverified", "unverified", "after a rejection, not checked"),
    ]),
    make("div", "switches", details, rejected, space),
  );
  node.title = HINT;

  /**
   * Only what is in the text. Not by :has() in the style sheet, which would search the text at every update of a run.
   * @param {LaneValue[]} lanes @param {Rounds[]} rounds
   */
  function show(lanes, rounds) {
    /** @type {Set<string>} */
    const found = new Set(lanes.flatMap(({ segments }) => segments.map(([name]) => name)));
    Object.keys(SEGMENTS).forEach((name, i) => (bars[i].hidden = !found.has(name)));
    gutter.hidden = !found.size;
    const forced = (/** @type {Round} */ { drafted, own }) => own?.forced || drafted.some((token) => token.forced);
    grammar.hidden = !rounds.some(({ all }) => all.some(forced));
  }
  return { node, show };
}

/** @param {string} of @param {string} className @param {Node[]} marks */
function list(of, className, marks) {
  const node = make("ul", className, ...marks);
  node.ariaLabel = `Legend of ${of}`;
  return node;
}

/** @param {string} kind @param {string} name @param {string} meaning */
const mark = (kind, name, meaning) => make("li", "", make("span", `tok ${kind}`, name), ` ${meaning}`);

/** @param {string} kind @param {string} name @param {string} meaning */
const dropped = (kind, name, meaning) => make("li", "", make("del", `tok ${kind}`, name), ` ${meaning}`);

/** @param {[string, string]} of */
function segment([name, letter]) {
  const bar = make("span", "bar");
  Object.assign(bar.dataset, { segment: name, begins: letter });
  return make("li", "", bar, ` ${name}`);
}

const cell = () => make("li", "", make("span", "cell", "between two lines"), " one pass");

function caret() {
  const dot = make("span", "caret");
  dot.dataset.count = "7";
  return make("li", "", dot, " guesses dropped (press)");
}

/** @param {string} name @param {string} label */
function labelled(name, label) {
  const box = make("input");
  Object.assign(box, { type: "checkbox", name, checked: document.body.classList.contains(name) });
  box.addEventListener("change", () => {
    document.body.classList.toggle(name, box.checked);
    document.dispatchEvent(new Event(name));
  });
  return make("label", "", box, ` ${label}`);
}
