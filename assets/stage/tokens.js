// Token panels. A lane's log is append-only, one JSON line a round; each new line becomes spans. What the panel shows is
// the output; what was drafted and not kept folds into a caret, which opens the round's draft (popover.js).
// All text enters through textContent: what a model writes is never markup.

import { codeReader } from "./cells.js";
import { hear, tell } from "./core.js";
import { asCode, differs, roundOf, spellOut, write } from "./nodes.js";
import { panelKeysOn, panelPointerOn } from "./panel_input.js";
import { closeRound, opened } from "./popover.js";
import { hideTip, showTip } from "./tip.js";
import { SEGMENTS } from "./words.js";

/** @import { Difference, Round, RoundNode, Segment, TokenNode } from "../types.d.ts" */

const NEAR = 40; // pixels from the end within which a panel follows what is new

/** The token panel of one lane: what it shows of the output, and which round and token are marked. */
export class TokenPanel {
  /** @type {RoundNode[]} */
  rounds = [];
  /** @type {TokenNode[]} */
  #output = [];
  #shown = Infinity;
  /** @type {RoundNode | null} */
  #selected = null;
  /** @type {TokenNode | null} */
  #lit = null;
  #marked = "null";
  #parted = "[]";
  #isCode = codeReader();
  #scroll;

  /**
   * @param {HTMLElement} panel
   * @param {number} lane its index
   */
  constructor(panel, lane) {
    this.panel = panel;
    this.lane = lane;
    this.#scroll = new PanelScroll(panel, lane, this.#output);
    panelPointerOn(this);
    panelKeysOn(this);
    // Token n lights up in every lane.
    hear("hover", ({ token }) => {
      this.#lit?.classList.remove("lit");
      this.#lit = this.#output[token] ?? null;
      this.#lit?.classList.add("lit");
    });
    document.addEventListener("show-space", () =>
      /** @type {NodeListOf<TokenNode>} */ (panel.querySelectorAll(".tok")).forEach(write),
    );
    document.addEventListener("show-rejected", () => {
      panel.querySelectorAll("del").forEach((token) => token.remove());
      this.rounds.forEach(spellOut);
    });
  }

  /**
   * Appends new rounds, or starts again.
   * @param {Round[]} fresh
   * @param {boolean} restarted
   * @param {boolean} runs whether more will come
   */
  draw(fresh, restarted, runs) {
    if (restarted) this.#clear();
    if (!fresh.length) return;
    const first = !this.rounds.length;
    const nodes = fresh.map((log, i) => roundOf(log, this.rounds.length + i + 1, this.#output));
    nodes
      .flatMap(({ spans }) => spans)
      .filter(({ token }) => this.#isCode(token.text))
      .forEach(asCode);
    nodes.forEach((node, i) => node.classList.toggle("future", this.rounds.length + i >= this.#shown));
    this.rounds.push(...nodes);
    this.panel.append(...nodes);
    if (first) /** @type {HTMLElement} */ (this.panel.querySelector(".tok")).tabIndex = 0;
    this.#scroll.follow(runs);
  }

  #clear() {
    this.panel.replaceChildren();
    this.rounds.length = this.#output.length = 0;
    this.#isCode = codeReader();
    this.#shown = Infinity;
    this.#selected = this.#lit = null;
    this.#marked = "null";
    this.#parted = "[]";
    this.#scroll.reset();
    hideTip();
    closeRound();
  }

  /**
   * Shows where the outputs of the lanes differ.
   * @param {Difference | null} difference
   */
  mark(difference) {
    const text = JSON.stringify(difference);
    if (text === this.#marked) return;
    this.#marked = text;
    this.panel.querySelector(".differs")?.remove();
    this.panel.querySelector(".parts")?.classList.remove("parts");
    if (!difference) return;
    const token = this.#output[difference.index];
    token.before(differs(difference));
    token.parentElement?.classList.toggle("parts", !difference.expected);
  }

  /**
   * Shows in the gutter what each line is part of. The bars are out of the flow, so that no line moves.
   * @param {[Segment, number][]} segments
   */
  part(segments) {
    const text = JSON.stringify(segments);
    if (text === this.#parted) return;
    this.#parted = text;
    let at = 0;
    for (const [segment, count] of segments) {
      const spans = this.#output.slice(at, (at += count));
      for (const span of spans) span.dataset.segment = span.token.segment = segment;
      const first = spans.find(({ token }) => !token.special && token.text.trim());
      if (first) first.dataset.begins = SEGMENTS[segment];
    }
  }

  /**
   * Shows the first n rounds and keeps the room of the others.
   * @param {number} n
   */
  show(n) {
    const before = Math.min(this.#shown, this.rounds.length);
    const now = Math.min(n, this.rounds.length);
    for (let i = Math.min(before, now); i < Math.max(before, now); i++)
      this.rounds[i].classList.toggle("future", i >= now);
    this.#shown = n;
    if (now) this.panel.removeAttribute("tabindex");
    else this.panel.tabIndex = 0; // so that it can be scrolled by keyboard while no token of it is shown
    if (now === before || !now) return;
    if (now === this.rounds.length)
      this.#scroll.to(this.panel.scrollHeight); // both lanes end level
    else this.#scroll.reveal(this.rounds[now - 1]);
  }

  /**
   * Outlines a round, counted from 1, and brings it into view; 0: none.
   * @param {number} round
   */
  select(round) {
    const node = this.rounds[round - 1] ?? null;
    if (node === this.#selected) return;
    this.#selected?.classList.remove("selected");
    this.#selected = node;
    if (!node) return;
    node.classList.add("selected");
    this.#scroll.reveal(node);
  }

  /** What has ended is read from its beginning; the text that was here before may have been scrolled. */
  begin() {
    this.#scroll.begin();
  }

  /** Brings the panel to where the other lane was scrolled while this one was hidden. */
  align() {
    this.#scroll.align();
  }

  /**
   * Explains a token, and lights it in every lane.
   * @param {TokenNode} span
   */
  point(span) {
    if (!opened.round) showTip(span);
    if (span.token.at !== undefined) tell("hover", { lane: this.lane, token: span.token.at });
  }

  leave() {
    hideTip();
    tell("hover", { lane: this.lane, token: -1 });
  }

  /**
   * Makes a token or caret the panel's one tab stop, and focuses it.
   * @param {HTMLElement} span
   */
  moveTo(span) {
    const stops = /** @type {NodeListOf<HTMLElement>} */ (this.panel.querySelectorAll("[tabindex='0']"));
    stops.forEach((other) => (other.tabIndex = -1));
    span.tabIndex = 0;
    span.focus({ preventScroll: true });
    this.#scroll.reveal(span);
  }

  /**
   * Selects the round of a token or caret everywhere, and returns it.
   * @param {HTMLElement} span
   */
  choose(span) {
    const round = /** @type {RoundNode} */ (span.closest(".round"));
    tell("select", { lane: this.lane, round: Number(round.dataset.round) });
    return round;
  }
}

/** The scrolling of a panel: it follows what is new until the user scrolls, and the lanes keep the same token on top. */
class PanelScroll {
  #following = true;
  #placed = 0; // where a script last scrolled to
  #request = 0;
  /** @type {{ token: number, ahead: number } | null} */
  #place = null; // what the lanes have on top, once someone scrolled

  /**
   * @param {HTMLElement} panel
   * @param {number} lane
   * @param {TokenNode[]} output
   */
  constructor(panel, lane, output) {
    this.#panel = panel;
    this.#output = output;
    panel.addEventListener("scroll", () => {
      hideTip();
      if (Math.abs(panel.scrollTop - this.#placed) < 1) return; // a script's, not the user's
      this.#placed = NaN;
      this.#following = this.#nearEnd;
      const token = this.#first();
      if (output.length) tell("scroll", { lane, token, ahead: panel.scrollTop - output[token].offsetTop });
    });
    hear("scroll", ({ lane: other, token, ahead }) => {
      this.#place = { token, ahead };
      if (other !== lane) this.align();
    });
  }

  #panel;
  #output;

  get #nearEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#panel;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  /** The index of the first token in view. */
  #first() {
    let low = 0;
    let high = this.#output.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#output[middle].offsetTop < this.#panel.scrollTop) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  reset() {
    this.#following = true;
    this.#place = null;
  }

  /** @param {boolean} runs */
  follow(runs) {
    cancelAnimationFrame(this.#request);
    // With the frame: to measure the panel here would lay out the page once more, before the timeline has changed.
    if (this.#following && runs)
      this.#request = requestAnimationFrame(() => this.#following && this.to(this.#panel.scrollHeight));
  }

  /** @param {number} top */
  to(top) {
    cancelAnimationFrame(this.#request);
    this.#panel.scrollTop = top;
    this.#placed = this.#panel.scrollTop;
  }

  /** @param {HTMLElement} node */
  reveal(node) {
    const { scrollTop, clientHeight } = this.#panel;
    const top = node.offsetTop - 8;
    const bottom = node.offsetTop + node.offsetHeight + 8;
    if (top < scrollTop) this.to(top);
    else if (bottom > scrollTop + clientHeight) this.to(bottom - clientHeight);
  }

  begin() {
    this.#place = null;
    this.to(0);
  }

  align() {
    const output = this.#output;
    if (!this.#panel.offsetHeight || !output.length) return;
    if (this.#place) this.to(output[Math.min(this.#place.token, output.length - 1)].offsetTop + this.#place.ahead);
    else if (this.#following) this.to(this.#panel.scrollHeight);
    this.#following = this.#nearEnd;
  }
}
