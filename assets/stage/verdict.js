// The headline: speed-up = tokens per pass ÷ cost of a round, with a bar for each side, and whether to trust it; a
// button that repeats the run. Below stands what to run of it in an engine.

import { copyText, REFUSED } from "../clipboard.js";
import { make } from "./core.js";
import { number, partsOf } from "./words.js";

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
  const again = make("button", "again", "Measure again, 3 times");
  again.type = "button";
  again.title = "Runs the lanes three times more, in turn, and shows the median and the range";
  again.addEventListener("click", () => press?.("retry"));
  const doubt = make("div", "doubt", badges, again);
  const deploy = deployPart();
  const node = make("section", "verdict", make("div", "equation", large, meaning, range), bars, terms, facts, doubt, deploy.node);
  node.id = "verdict";
  node.setAttribute("aria-label", "Result");
  let drawn = "";

  /** @param {Verdict} verdict @param {Deploy | null} deployed */
  function show(verdict, deployed) {
    const text = JSON.stringify([verdict, deployed]);
    if (text === drawn) return;
    drawn = text;
    const { figure, terms: told, repeatable, badges: doubts, sentences, trust } = verdict;
    deploy.show(deployed);
    again.hidden = !repeatable || !press;
    doubt.hidden = again.hidden && !doubts.length;
    large.textContent = figure;
    node.className = `verdict ${trust}`;
    meaning.textContent = verdict.meaning;
    range.textContent = verdict.runs && `(${verdict.runs})`;
    terms.replaceChildren(...(told ? equation(told) : []));
    bars.replaceChildren(...(told ? [bar("gain", "tokens per pass", told.tokens_per_pass, [["gain", told.tokens_per_pass]], told), bar("cost", "cost of a round", told.cost, partsOf(told), told)] : []));
    badges.replaceChildren(...doubts.map((why) => make("li", "", why)));
    facts.replaceChildren(...sentences.map((fact) => make("p", "", fact)));
  }

  return { node, show };
}

/**
 * The equation as elements; its first is the equals sign.
 * @param {Terms} told
 */
export function equation(told) {
  const parts = partsOf(told).filter(([name, size]) => name !== "other" || size >= 0.005);
  const split = told.verify === null ? "" : ` (${parts.map(([name, size]) => `${name} ${number(size)}`).join(" + ")}, in plain passes)`;
  return [
    make("span", "equals", `${number(told.speedup)} = `),
    make("b", "gain", number(told.tokens_per_pass)),
    make("span", "", " tokens per pass ÷ "),
    make("b", "cost", number(told.cost)),
    make("span", "", ` cost of a round${split}`),
  ];
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
    piece.title = `${name} ${number(size)}`;
    return piece;
  }));
  return make("div", `bar ${kind}`, make("span", "", label), track, make("span", "value", number(value)));
}

/** What to run of the lane in an engine: one line, and a button that copies all of it. */
function deployPart() {
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
