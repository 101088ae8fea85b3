// The headline; and below the text the equation behind it: speed-up = tokens per check ÷ cost of a check × prefill, with a
// bar for the first two, and whether to trust it. A press on a term highlights what it counts in the timeline and the text.
// A link leads to the lossless check, and a button measures again. `deployPart` is the command that runs the lane in an engine.

import { copyText, REFUSED } from "../clipboard.js";
import { remembered } from "../rooms.js";
import { button, make } from "./core.js";
import { light } from "./lit.js";
import { count, number, partsOf } from "./words.js";

/** @type {Record<string, string>} */
const WORDS = { gain: "tokens per check", verify: "checking", draft: "guessing", other: "rest" };

/** @import { Deploy, Press, Terms, Verdict } from "../types.d.ts" */

/** @param {Press | null} press */
export function verdictPart(press) {
  const large = make("output", "figure");
  const meaning = make("span", "meaning");
  const range = make("span", "range");
  const node = make("section", "verdict", large, make("div", "says-it", meaning, " ", range));
  const terms = make("div", "terms");
  const bars = make("div", "bars");
  const badges = make("ul", "badges");
  const sentences = make("div", "sentences");
  const test = make("a", "leads", "Always the same?");
  test.title = "Samples thousands of tokens with and without the drafter, and says whether they differ";
  test.addEventListener(
    "click",
    () => (test.href = `lossless?drafters=${remembered("settings", { drafter: "" }).drafter}`),
  );
  const again = button("again", "Measure again, 3 times", () => press?.("retry"), {
    title: "Runs the lanes three times more, in turn: one speed-up of all runs, with a 95 % interval",
  });
  const on = make("div", "on", badges, test, again);
  const explained = make("section", "explained", terms, bars, sentences, on);
  node.id = "verdict";
  explained.id = "explained";
  node.setAttribute("aria-label", "Result");
  explained.setAttribute("aria-label", "The result explained");
  let drawn = "";

  // A badge has one line; a press shows all of it.
  badges.addEventListener("click", () => badges.classList.toggle("whole"));

  /** @param {Verdict} verdict */
  function show(verdict) {
    const text = JSON.stringify(verdict);
    if (text === drawn) return;
    drawn = text;
    const { figure, terms: known, repeatable, badges: doubts, sentences: said, trust } = verdict;
    if (node.isConnected) light("", node);
    test.hidden = !known || !press;
    test.href = "lossless";
    again.hidden = !repeatable || !press;
    large.setAttribute("aria-live", "polite");
    large.textContent = figure;
    node.className = `verdict ${trust}`;
    meaning.textContent = verdict.meaning;
    range.textContent = verdict.runs && `(${verdict.runs})`;
    terms.replaceChildren(...(known ? equation(known) : []));
    bars.replaceChildren(
      ...(known
        ? [
            bar("gain", "tokens per check", known.tokens_per_pass, [["gain", known.tokens_per_pass]], known),
            bar("cost", "cost of a check", known.cost, partsOf(known), known),
          ]
        : []),
    );
    badges.className = "badges";
    badges.replaceChildren(...doubts.map(badge));
    sentences.replaceChildren(...said.map((fact) => make("p", "", fact)));
  }

  /**
   * While lanes run: who leads, and by how much. Of lanes that take turns it is their true relative speed.
   * @param {string[]} names @param {number[]} tokens of each lane, at the time that both clocks have reached
   */
  function race(names, tokens) {
    const [base, ours] = tokens;
    if (!base || !ours) return;
    drawn = "";
    node.className = "verdict live";
    large.setAttribute("aria-live", "off");
    large.textContent = `${number(ours / base)}×`;
    const ahead = ours - base;
    const leader = names[ahead > 0 ? 1 : 0];
    meaning.textContent = ahead
      ? `so far, ${leader} is ${count(Math.abs(ahead), "token")} ahead`
      : "so far, side by side";
    range.textContent = "";
  }

  return { node, explained, show, race };
}

/**
 * The equation as elements; its first is the equals sign.
 * @param {Terms} terms
 */
export function equation(terms) {
  const parts = partsOf(terms).filter(([name, size]) => name !== "other" || size >= 0.005);
  const known = terms.verify === null ? [] : parts;
  return [
    make("span", "equals", `${number(terms.speedup)} = `),
    term("gain", make("b", "gain", number(terms.tokens_per_pass)), " tokens per check"),
    make("span", "", " ÷ "),
    term("cost", make("b", "cost", number(terms.cost)), " cost of a check, in standard steps"),
    ...known.flatMap(([name, size], i) => [
      make("span", "", i ? " + " : " ("),
      term(name, `${WORDS[name]} ${number(size)}`),
    ]),
    ...(known.length ? [make("span", "", ")")] : []),
    ...(number(terms.prefill) === "1.00"
      ? []
      : [make("span", "", " × "), term("first", `prefill ${number(terms.prefill)}`)]),
  ];
}

/** @param {string} why */
function badge(why) {
  const node = make("button", "", why);
  Object.assign(node, { type: "button", title: why });
  return make("li", "", node);
}

/** A part of the equation that can be lit. @param {string} name @param {(Node | string)[]} words */
function term(name, ...words) {
  const node = make("button", "term", ...words);
  Object.assign(node, { type: "button", title: "Shows what it counts", ariaPressed: "false" });
  node.dataset.lights = name;
  return node;
}

/**
 * @param {string} kind
 * @param {string} label
 * @param {number} value
 * @param {[string, number][]} pieces
 * @param {Terms} terms
 */
function bar(kind, label, value, pieces, terms) {
  const scale = 100 / Math.max(terms.tokens_per_pass, terms.cost);
  const track = make(
    "div",
    "track",
    ...pieces.map(([name, size]) => {
      const piece = make("i", name);
      piece.style.width = `${size * scale}%`;
      piece.title = `${WORDS[name]} ${number(size)}`;
      return piece;
    }),
  );
  return make("div", `bar ${kind}`, make("span", "", label), track, make("span", "value", number(value)));
}

/**
 * The command that runs the lane in an engine, and a button that copies it. Where the engine runs another drafter instead, a
 * second button measures that drafter here, or shows its lane if it has run.
 * @param {Press | null} press
 */
export function deployPart(press) {
  const engine = make("b");
  const command = make("code");
  const copy = button("copy-command", "Copy", async () => {
    said.textContent = (await copyText(text)) ? "Copied." : REFUSED;
    setTimeout(() => (said.textContent = ""), 4000);
  });
  const said = make("span", "said");
  const note = make("span");
  const measure = button("measure", "Measure it here", () =>
    lane ? press?.("select", { lane }) : press?.("option_select", { drafter, lookahead }),
  );
  const node = make("div", "nearest", make("div", "line", engine, command, copy, said), make("p", "", note, measure));
  let drafter = "";
  let lookahead = 0;
  let lane = "";
  let text = "";
  said.setAttribute("role", "status");

  /** @param {Deploy | null} value */
  function show(value) {
    node.classList.toggle("empty", !value); // it keeps its place
    if (!value) return;
    text = value.text;
    engine.textContent = `In ${value.engine}:`;
    copy.setAttribute("aria-label", `Copy the command for ${value.engine}`);
    command.textContent = text;
    note.textContent = value.note;
    ({ drafter, lookahead, lane } = value);
    measure.textContent = lane ? "Show it above" : "Measure it here";
    measure.hidden = !(drafter || lane) || !press;
  }
  return { node, show };
}
