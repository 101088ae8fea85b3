// The headline: speed-up = tokens per pass ÷ cost of a round, with a bar for each side, and whether to trust it. A press
// on a term lights what it counts in the timeline and the text. Buttons lead on: measure again, why, is it the same?
// Another part is the line that runs it in an engine.

import { copyText, REFUSED } from "../clipboard.js";
import { kept } from "../rooms.js";
import { make, within } from "./core.js";
import { number, partsOf } from "./words.js";

/** @type {Record<string, string>} */
const WORDS = { gain: "tokens a pass", verify: "checking", draft: "guessing", other: "rest" };

/** @import { Deploy, Press, Terms, Verdict } from "../types.d.ts" */

/** @param {Press | null} press */
export function verdictPart(press) {
  const large = make("output", "figure");
  const meaning = make("span", "meaning");
  const range = make("span", "range");
  const terms = make("div", "terms");
  const bars = make("div", "bars");
  const badges = make("ul", "badges");
  const facts = make("div", "facts");
  const sentences = make("div", "sentences");
  const why = leads("Why?", "why");
  const test = make("a", "leads", "Test this");
  test.title = "Samples thousands of tokens with and without the drafter, and says whether they differ";
  test.addEventListener("click", () => (test.href = `lossless?drafters=${kept("settings", { drafter: "" }).drafter}`));
  const again = make("button", "again", "Measure again, 3 times");
  again.type = "button";
  again.title = "Runs the lanes three times more, in turn, and shows the median and the range";
  again.addEventListener("click", () => press?.("retry"));
  facts.append(sentences, test, why, again);
  const doubt = make("div", "doubt", badges);
  const node = make("section", "verdict", make("div", "equation", large, meaning, range), bars, terms, facts, doubt);
  node.id = "verdict";
  node.setAttribute("aria-label", "Result");
  let drawn = "";

  terms.addEventListener("click", (event) => {
    const term = /** @type {HTMLButtonElement | null} */ (within(event, "button"));
    const stage = /** @type {HTMLElement | null} */ (node.closest(".stage"));
    if (!term || !stage) return;
    const lit = term.getAttribute("aria-pressed") === "true" ? "" : term.name;
    stage.dataset.lit = lit;
    for (const each of terms.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each.name === lit));
  });

  /** @param {Verdict} verdict */
  function show(verdict) {
    const text = JSON.stringify(verdict);
    if (text === drawn) return;
    drawn = text;
    const { figure, terms: told, repeatable, badges: doubts, sentences: said, trust } = verdict;
    delete /** @type {HTMLElement | null} */ (node.closest(".stage"))?.dataset.lit;
    why.hidden = test.hidden = !told || !press;
    test.href = "lossless";
    again.hidden = !repeatable || !press;
    doubt.hidden = !doubts.length;
    large.textContent = figure;
    node.className = `verdict ${trust}`;
    meaning.textContent = verdict.meaning;
    range.textContent = verdict.runs && `(${verdict.runs})`;
    terms.replaceChildren(...(told ? equation(told) : []));
    bars.replaceChildren(...(told ? [bar("gain", "tokens a pass", told.tokens_per_pass, [["gain", told.tokens_per_pass]], told), bar("cost", "cost of a round", told.cost, partsOf(told), told)] : []));
    badges.replaceChildren(...doubts.map((why) => make("li", "", why)));
    sentences.replaceChildren(...said.map((fact) => make("p", "", fact)));
  }

  return { node, show };
}

/**
 * The equation as elements; its first is the equals sign.
 * @param {Terms} told
 */
export function equation(told) {
  const parts = partsOf(told).filter(([name, size]) => name !== "other" || size >= 0.005);
  const known = told.verify === null ? [] : parts;
  return [
    make("span", "equals", `${number(told.speedup)} = `),
    term("gain", make("b", "gain", number(told.tokens_per_pass)), " tokens a pass"),
    make("span", "", " ÷ "),
    make("b", "cost", number(told.cost)),
    make("span", "", " normal passes a round"),
    ...known.flatMap(([name, size], i) => [
      make("span", "", i ? " + " : " ("),
      name === "other" ? make("span", "", `${WORDS.other} ${number(size)}`) : term(name, `${WORDS[name]} ${number(size)}`),
    ]),
    ...(known.length ? [make("span", "", ")")] : []),
  ];
}

/** A part of the equation that can be lit. @param {string} name @param {(Node | string)[]} words */
function term(name, ...words) {
  const button = make("button", "term", ...words);
  Object.assign(button, { type: "button", name, title: "Shows what it counts" });
  button.setAttribute("aria-pressed", "false");
  return button;
}

/** A button that unfolds a section of the page and goes there. @param {string} label @param {string} name */
function leads(label, name) {
  const button = make("button", "leads", label);
  button.type = "button";
  button.addEventListener("click", () => {
    const section = document.getElementById(name);
    const fold = /** @type {HTMLElement | null | undefined} */ (section?.querySelector(".label-wrap:not(.open)"));
    fold?.click();
    section?.scrollIntoView({ block: "start" });
  });
  return button;
}

/**
 * @param {string} kind
 * @param {string} label
 * @param {number} value
 * @param {[string, number][]} pieces
 * @param {Terms} told
 */
function bar(kind, label, value, pieces, told) {
  const scale = 100 / Math.max(told.tokens_per_pass, told.cost);
  const track = make("div", "track", ...pieces.map(([name, size]) => {
    const piece = make("i", name);
    piece.style.width = `${size * scale}%`;
    piece.title = `${WORDS[name]} ${number(size)}`;
    return piece;
  }));
  return make("div", `bar ${kind}`, make("span", "", label), track, make("span", "value", number(value)));
}

/** What to run of the lane in an engine: one line, and a button that copies all of it. */
export function deployPart() {
  const engine = make("b");
  const command = make("code");
  const copy = make("button", "copy-command", "Copy");
  const said = make("span", "said");
  const note = make("p");
  const node = make("div", "nearest", engine, command, copy, said, note);
  copy.type = "button";
  said.setAttribute("role", "status");
  let text = "";
  copy.addEventListener("click", async () => {
    said.textContent = (await copyText(text)) ? "Copied." : REFUSED;
    setTimeout(() => (said.textContent = ""), 4000);
  });

  /** @param {Deploy | null} value */
  function show(value) {
    node.hidden = !value;
    if (!value) return;
    text = value.text;
    engine.textContent = `In ${value.engine}:`;
    copy.setAttribute("aria-label", `Copy the command for ${value.engine}`);
    command.textContent = text;
    note.textContent = value.note;
  }
  node.hidden = true;
  return { node, show };
}
