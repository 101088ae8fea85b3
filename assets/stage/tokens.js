// Token panels. A lane's log is append-only, one JSON line a round; each new line becomes spans. What the panel shows is
// the output, and a press on a token opens its round (round.js).
// All text enters through textContent: what a model writes is never markup.

import { codeReader } from "./cells.js";
import { hear, tell } from "./core.js";
import { asCode, differs, guessesOf, roundOf, spellOut, write } from "./nodes.js";
import { panelInputOn } from "./panel_input.js";
import { hideTip, showTip } from "./tip.js";

/** @import { Difference, Round, RoundNode, Segment, TokenNode } from "../types.d.ts" */

// A round that plays slowly: until when its guesses come in, and from when they are judged, as shares of its time.
export const GUESSED = 0.4;
export const JUDGED = 0.7;

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
  /** @type {RoundNode | null} */
  #guessing = null;

  /**
   * @param {HTMLElement} panel
   * @param {number} lane its index
   */
  constructor(panel, lane) {
    this.panel = panel;
    this.lane = lane;
    panelInputOn(this);
    // Token n lights up in every lane.
    hear("hover", ({ token }) => {
      this.#lit?.classList.remove("lit");
      this.#lit = this.#output[token] ?? null;
      this.#lit?.classList.add("lit");
    });
    document.addEventListener("show-guesses", () => {
      panel.querySelectorAll("del").forEach((token) => token.remove());
      this.rounds.forEach(spellOut);
      /** @type {NodeListOf<TokenNode>} */ (panel.querySelectorAll(".tok")).forEach(write);
    });
  }

  /**
   * Appends new rounds, or starts again.
   * @param {Round[]} fresh
   * @param {boolean} restarted
   */
  draw(fresh, restarted) {
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
  }

  #clear() {
    this.panel.replaceChildren();
    this.rounds.length = this.#output.length = 0;
    this.#isCode = codeReader();
    this.#shown = Infinity;
    this.#selected = this.#lit = this.#guessing = null;
    this.#marked = "null";
    this.#parted = "[]";
    hideTip();
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
      for (const span of this.#output.slice(at, (at += count))) span.dataset.segment = span.token.segment = segment;
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
  }

  /**
   * Shows how the first round that is not shown yet comes about: its guesses fly in, are judged, and then are kept or
   * not. They take no room that the text does not have.
   * @param {number} share of the round's time that has passed; 0: no round is shown so
   */
  guess(share) {
    const node = share ? (this.rounds[this.#shown] ?? null) : null;
    if (this.#guessing !== node) {
      this.#guessing?.classList.remove("guessing", "judged");
      this.#guessing?.querySelector(".guesses")?.remove();
      this.#guessing?.spans.forEach((span) => span.classList.remove("in"));
      this.#guessing = node;
      if (node) guessesOf(node);
    }
    if (!node) return;
    const guesses = [...node.querySelectorAll(".tok.accepted, .guesses > span")];
    guesses.forEach((span, i) => span.classList.toggle("in", share * guesses.length >= i * GUESSED));
    node.classList.toggle("judged", share >= JUDGED);
  }

  /**
   * Outlines a round, counted from 1; 0: none.
   * @param {number} round
   */
  select(round) {
    const node = this.rounds[round - 1] ?? null;
    if (node === this.#selected) return;
    this.#selected?.classList.remove("selected");
    this.#selected = node;
    node?.classList.add("selected");
  }

  /**
   * Explains a token, and lights it in every lane.
   * @param {TokenNode} span
   */
  point(span) {
    showTip(span);
    if (span.token.at !== undefined) tell("hover", { lane: this.lane, token: span.token.at });
  }

  leave() {
    hideTip();
    tell("hover", { lane: this.lane, token: -1 });
  }

  /**
   * Makes a token the panel's one tab stop, and focuses it.
   * @param {HTMLElement} span
   */
  moveTo(span) {
    const stops = /** @type {NodeListOf<HTMLElement>} */ (this.panel.querySelectorAll("[tabindex='0']"));
    stops.forEach((other) => (other.tabIndex = -1));
    span.tabIndex = 0;
    span.focus();
  }

  /**
   * Selects the round of a token everywhere.
   * @param {HTMLElement} span
   */
  choose(span) {
    const round = /** @type {RoundNode} */ (span.closest(".round"));
    tell("select", { lane: this.lane, round: Number(round.dataset.round) });
    span.scrollIntoView({ block: "nearest" }); // not below the panel of the round
  }
}
