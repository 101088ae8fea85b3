// The headline: speed-up = tokens per pass ÷ cost of a round, with a bar for each side, and whether to trust it; a
// button that repeats the run, after which the headline is the median, with the range.

import { make } from "./core.js";
import { number, partsOf } from "./words.js";

/** @import { Press, Repeats, Terms, Verdict } from "../types.d.ts" */

/** @param {Press | null} press */
export function verdictPart(press) {
  const large = make("output", "figure");
  const terms = make("div", "terms");
  const bars = make("div", "bars");
  const badges = make("ul", "badges");
  const facts = make("div", "facts");
  const again = make("button", "again", "Repeat 3x, interleaved");
  again.type = "button";
  again.title = "Runs the lanes three times more, in turn, and shows the median and the range";
  again.addEventListener("click", () => press?.("retry"));
  const doubt = make("div", "doubt", badges, again);
  const node = make("section", "verdict", make("div", "equation", large, terms), bars, doubt, facts);
  node.id = "verdict";
  node.setAttribute("aria-label", "Result");
  let drawn = "";

  /** @param {Verdict} verdict */
  function show(verdict) {
    const text = JSON.stringify(verdict);
    if (text === drawn) return;
    drawn = text;
    const { figure, meaning, terms: told, repeats, repeatable, badges: doubts, sentences, trust } = verdict;
    again.hidden = !repeatable || !press;
    doubt.hidden = again.hidden && !doubts.length;
    large.textContent = figure;
    node.className = `verdict ${trust}`;
    terms.replaceChildren(...(repeats ? [range(repeats)] : []), ...(told ? equation(told, repeats) : [make("span", "meaning", meaning)]));
    bars.replaceChildren(...(told ? [bar("gain", "tokens per pass", told.tokens_per_pass, [["gain", told.tokens_per_pass]], told), bar("cost", "cost of a round", told.cost, partsOf(told), told)] : []));
    badges.replaceChildren(...doubts.map((why) => make("li", "", why)));
    facts.replaceChildren(...sentences.map((fact) => make("p", "", fact)));
  }

  return { node, show };
}

/** @param {Repeats} repeats */
const range = ({ low, high, runs }) => make("div", "range", `median (${number(low)} to ${number(high)}, ${runs} runs)`);

/**
 * The equation as elements; its first is the equals sign.
 * @param {Terms} told
 * @param {Repeats | null} [repeats]
 */
export function equation(told, repeats) {
  const parts = partsOf(told).filter(([name, size]) => name !== "other" || size >= 0.005);
  const split = told.verify === null ? "" : ` (${parts.map(([name, size]) => `${name} ${number(size)}`).join(" + ")}, in plain passes)`;
  return [
    make("span", "equals", repeats ? `first run: ${number(told.speedup)} = ` : "= "),
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
