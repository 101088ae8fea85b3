// What the marks in the text and in the timeline mean, in a box beside the switch that shows what was guessed. The switch is
// a class on the body, so that both panels follow and a new run keeps it.

import { make } from "./core.js";

/** @import { Rounds } from "./log.js" */
/** @import { LaneValue, Round } from "../types.d.ts" */

const SEGMENTS = ["thinking", "tool call", "code", "answer"];
const SWITCH = "show-guesses";

export function legendPart() {
  const bars = SEGMENTS.map(segment);
  const gutter = list("the gutter", "gutter", bars);
  const grammar = list("the grammar", "by-grammar", [
    mark("accepted forced", "forced", "the grammar leaves no choice"),
  ]);
  const box = make(
    "div",
    "legend",
    list("the timeline", "keys", [
      key("verify", "a step of the model, as long as it took"),
      key("draft", "drafting"),
      key("gain", "accepted guesses (height = tokens)"),
    ]),
    list("the token marks", "", [
      mark("accepted", "accepted", "guessed right"),
      mark("plain", "plain", "the model's own"),
      cell(),
    ]),
    gutter,
    list("the guesses", "marks", [
      mark("correction", "correction", "replaces a rejected token"),
      mark("bonus", "bonus", "follows a draft that was all accepted"),
      dropped("rejected", "rejected", "discarded"),
      dropped("unverified", "unverified", "after a rejection, not checked"),
    ]),
    grammar,
    make("p", "", "Press a token or a block to see its round."),
  );
  const sample = make("span", "tok accepted sample", "guessed right");
  const node = make("div", "guessing-switch", sample, labelled(), box);

  /**
   * Only what is in the text. Not by :has() in the style sheet, which would search the text at every update of a run.
   * @param {LaneValue[]} lanes @param {Rounds[]} rounds
   */
  function show(lanes, rounds) {
    /** @type {Set<string>} */
    const found = new Set(lanes.flatMap(({ segments }) => segments.map(([name]) => name)));
    SEGMENTS.forEach((name, i) => (bars[i].hidden = !found.has(name)));
    gutter.hidden = !found.size;
    sample.hidden = !rounds.some(({ all }) =>
      all.some(({ drafted }) => drafted.some(({ kind }) => kind === "accepted")),
    );
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

/** @param {string} name */
function segment(name) {
  const bar = make("span", "bar");
  bar.dataset.segment = name;
  return make("li", "", bar, ` ${name}`);
}

const cell = () => make("li", "", make("span", "cell", "text between two bars"), " came from one step");

/** @param {string} kind @param {string} meaning */
const key = (kind, meaning) => make("li", kind, make("i"), meaning);

function labelled() {
  const box = make("input");
  Object.assign(box, { type: "checkbox", name: SWITCH, checked: document.body.classList.contains(SWITCH) });
  box.addEventListener("change", () => {
    document.body.classList.toggle(SWITCH, box.checked);
    document.dispatchEvent(new Event(SWITCH));
  });
  return make("label", "", box, " Show guesses");
}
