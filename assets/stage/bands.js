// Parts of the timeline: one lane's blocks, the axis, the zoom buttons, and the tooltip of a round.

import { button, make, svg } from "./core.js";
import { gained, Rounds } from "./log.js";
import { BREAK } from "./scale.js";
import { only } from "./tip.js";
import { factsOf } from "./words.js";

/** @import { ticksOf } from "./scale.js" */
/** @import { Round } from "../types.d.ts" */

export const BAND = 44; // pixels of a lane's blocks; a lane that gains one token a round takes PLAIN
export const PLAIN = 16;
export const CAPTION = 18;
export const AXIS = 20;

/** One lane's blocks, drawn in seconds and tokens. */
export class Band {
  /** @param {number} index */
  constructor(index) {
    this.blocks = svg("g", { class: "blocks" });
    this.caption = svg("text", { class: "caption", x: 0 });
    this.flag = svg("text", { class: "flag" }); // where the lane ends, once the replay has come so far
    this.stub = svg("g", { class: "stub" });
    this.node = svg(
      "g",
      { class: "band", "data-lane": index },
      this.stub,
      svg("g", { "clip-path": "url(#timeline-clip)" }, this.blocks),
    );
    this.top = this.bottom = 0; // pixels
    this.rounds = new Rounds();
    this.all = this.rounds.all;
    this.drawn = 0; // rounds
    this.most = 1; // tokens that a round gained
    this.longest = 0; // seconds of a round after the first
    this.drafts = false;
  }

  /** @param {Round[]} all */
  clear(all) {
    this.blocks.replaceChildren();
    this.all = all;
    this.drawn = this.longest = 0;
    this.most = 1;
    this.drafts = false;
  }

  /**
   * Draws the rounds that are new: one path for each kind of block, however many rounds came. The model's own token is
   * as high as in the baseline; what was guessed right stands on it.
   * @param {Rounds} rounds
   */
  draw(rounds) {
    if (rounds.all !== this.all) this.clear(rounds.all);
    this.rounds = rounds;
    if (this.drawn === this.all.length) return false;
    /** @type {Record<string, string>} */
    const paths = {};
    for (const round of this.all.slice(this.drawn)) {
      const { start, draft, verify, end } = round.times;
      const height = gained(round);
      const base = round.own ? 1 : Math.min(1, height);
      const which = round === this.all[0] ? "first" : round.drafted.length ? "drafts" : "idle";
      /** @param {string} kind @param {number} from @param {number} to @param {number} low @param {number} high */
      const block = (kind, from, to, low, high) => {
        if (to > from && high > low)
          paths[`${kind} ${which}`] = `${paths[`${kind} ${which}`] ?? ""}M${from} ${low}H${to}V${high}H${from}Z`;
      };
      if (draft === undefined || verify === undefined) block("unknown", start, end, 0, base);
      else {
        block("draft", start, start + draft, 0, base);
        block("verify", start + draft, start + draft + verify, 0, base);
        block("other", start + draft + verify, end, 0, base);
      }
      block("gain", start, end, base, height);
      paths.edge = `${paths.edge ?? ""}M${start} 0V${height}`;
      this.most = Math.max(this.most, height);
      this.drafts ||= round.drafted.length > 0;
      if (round !== this.all[0]) this.longest = Math.max(this.longest, end - start);
    }
    this.drawn = this.all.length;
    const { edge, ...blocks } = paths;
    for (const [kind, d] of Object.entries({ ...blocks, edge })) this.blocks.append(svg("path", { class: kind, d }));
    return true;
  }

  /**
   * The prefill left of the axis, with a break, where it is cut short.
   * @param {boolean} needed
   * @param {number} unit pixels a token
   */
  drawBreak(needed, unit) {
    this.stub.replaceChildren();
    if (!needed) return;
    const [first] = this.all;
    const tall = gained(first) * unit;
    const reach = Math.max(8, tall) + 6;
    /** @param {number} x */
    const edge = (x) => [0, 1, 2, 3, 4].map((i) => `${x + (i % 2 ? 3 : -1)} ${this.bottom - (reach * i) / 4 + 3}`);
    const zigzag = [...edge(BREAK - 12), ...edge(BREAK - 8).reverse()].join("L");
    this.stub.append(
      svg("rect", { class: "verify", x: 0, y: this.bottom - tall, width: BREAK, height: tall }),
      svg("path", { class: "break", d: `M${zigzag}Z` }),
    );
  }

  /**
   * How many rounds had ended at a time.
   * @param {number} time
   */
  until(time) {
    return this.rounds.until(time);
  }

  get end() {
    return this.all.at(-1)?.times.end ?? 0;
  }
}

/**
 * The axis as lines with labels.
 * @param {ReturnType<typeof ticksOf>} ticks
 * @param {number} height
 */
export const drawTicks = (ticks, height) =>
  ticks.flatMap(({ x, anchor, text }) => [
    svg("line", { x1: x, x2: x, y1: CAPTION, y2: height - AXIS + 3 }),
    svg("text", { x, y: height - 4, "text-anchor": anchor }, text),
  ]);

/**
 * Buttons for zoom, seen where the timeline is pointed at or has the focus.
 * @param {[text: string, label: string, act: () => void][]} acts
 */
export function zoomButtons(acts) {
  const buttons = make("div", "zoom");
  buttons.setAttribute("role", "group");
  buttons.setAttribute("aria-label", "Zoom");
  for (const [text, label, act] of acts) buttons.append(button("", text, act, { title: label, ariaLabel: label }));
  return buttons;
}

// --- the tooltip: one for the page ---

export const roundTip = only("round-tip", "tooltip");

/**
 * @param {Round} round
 * @param {number} number
 * @param {{ x: number, y: number, height: number }} at its box in the picture
 * @param {DOMRect} box of the picture
 */
export function showRoundTip(round, number, at, box) {
  const rows = factsOf(round).flatMap(([name, fact]) => [make("dt", "", name), make("dd", "", fact)]);
  roundTip.replaceChildren(
    make("p", "", `Round ${number}${number === 1 ? ", with the prefill" : ""}`),
    make("dl", "", ...rows),
  );
  roundTip.hidden = box.bottom < 0 || box.top > innerHeight;
  const x = Math.min(Math.max(8, box.left + at.x), document.documentElement.clientWidth - roundTip.offsetWidth - 8);
  const below = box.top + at.y + at.height + 8;
  const fits = below + roundTip.offsetHeight < innerHeight;
  roundTip.style.left = `${x}px`;
  roundTip.style.top = `${fits ? below : box.top + at.y - roundTip.offsetHeight - 8}px`;
}
