// Token panels. A lane's log is append-only, one JSON line a round; each new line becomes spans. What the panel shows is
// the output; what was drafted and not kept folds into a caret, which opens the round's draft (popover.js).
// All text enters through textContent: what a model writes is never markup.

import { codeReader } from "./cells.js";
import { hear, tell, within } from "./core.js";
import { asCode, differs, nearest, roundOf, spellOut, write } from "./nodes.js";
import { closeRound, closeSoon, opened, openRound, openSoon, popover } from "./popover.js";
import { hideTip, showTip } from "./tip.js";
import { SEGMENTS } from "./words.js";

/** @import { Difference, Round, RoundNode, Segment, TokenNode } from "../types.d.ts" */

/**
 * Makes `panel` the token panel of the lane with this index.
 * @param {HTMLElement} panel
 * @param {number} lane
 */
export function tokenPanel(panel, lane) {
  /** @type {RoundNode[]} */
  const rounds = [];
  /** @type {TokenNode[]} */
  const output = [];
  let shown = Infinity;
  /** @type {RoundNode | null} */
  let selected = null;
  /** @type {TokenNode | null} */
  let lit = null;
  let marked = "null";
  let parted = "[]";
  let isCode = codeReader();
  let following = true; // new rounds are scrolled into view
  let placed = 0; // where a script last scrolled to
  let scroll = 0; // a request to do so
  /** @type {{ token: number, ahead: number } | null} */
  let place = null; // what the lanes have at the top, once someone scrolled

  /**
   * Appends new rounds, or starts again.
   * @param {Round[]} fresh
   * @param {boolean} restarted
   * @param {boolean} runs whether more will come
   */
  function draw(fresh, restarted, runs) {
    if (restarted) {
      panel.replaceChildren();
      rounds.length = output.length = 0;
      isCode = codeReader();
      shown = Infinity;
      selected = lit = null;
      marked = "null";
      parted = "[]";
      following = true;
      place = null;
      hideTip();
      closeRound();
    }
    if (!fresh.length) return;
    const first = !rounds.length;
    const nodes = fresh.map((log, i) => roundOf(log, rounds.length + i + 1, output));
    nodes.flatMap(({ spans }) => spans).filter(({ token }) => isCode(token.text)).forEach(asCode);
    nodes.forEach((node, i) => node.classList.toggle("future", rounds.length + i >= shown));
    rounds.push(...nodes);
    panel.append(...nodes);
    if (first) /** @type {HTMLElement} */ (panel.querySelector(".tok")).tabIndex = 0;
    cancelAnimationFrame(scroll);
    // With the frame: to measure the panel here would lay out the page once more, before the timeline has changed.
    if (following && runs) scroll = requestAnimationFrame(() => following && scrollTo(panel.scrollHeight));
  }

  /**
   * Shows where the outputs of the lanes differ.
   * @param {Difference | null} difference
   */
  function mark(difference) {
    const text = JSON.stringify(difference);
    if (text === marked) return;
    marked = text;
    panel.querySelector(".differs")?.remove();
    panel.querySelector(".parts")?.classList.remove("parts");
    if (!difference) return;
    const token = output[difference.index];
    token.before(differs(difference));
    token.parentElement?.classList.toggle("parts", !difference.expected);
  }

  /**
   * Shows in the gutter what each line is part of. The bars are out of the flow, so that no line moves.
   * @param {[Segment, number][]} segments
   */
  function part(segments) {
    const text = JSON.stringify(segments);
    if (text === parted) return;
    parted = text;
    let at = 0;
    for (const [segment, count] of segments) {
      const spans = output.slice(at, (at += count));
      for (const span of spans) span.dataset.segment = span.token.segment = segment;
      const first = spans.find(({ token }) => !token.special && token.text.trim());
      if (first) first.dataset.begins = SEGMENTS[segment];
    }
  }

  /**
   * Shows the first n rounds and keeps the room of the others.
   * @param {number} n
   */
  function show(n) {
    const before = Math.min(shown, rounds.length);
    const now = Math.min(n, rounds.length);
    for (let i = Math.min(before, now); i < Math.max(before, now); i++) rounds[i].classList.toggle("future", i >= now);
    shown = n;
    if (now) panel.removeAttribute("tabindex");
    else panel.tabIndex = 0; // so that it can be scrolled by keyboard while no token of it is shown
    if (now === before || !now) return;
    if (now === rounds.length) scrollTo(panel.scrollHeight); // both lanes end level
    else reveal(rounds[now - 1]);
  }

  /**
   * Outlines a round, counted from 1, and brings it into view; 0: none.
   * @param {number} round
   */
  function select(round) {
    const node = rounds[round - 1] ?? null;
    if (node === selected) return;
    selected?.classList.remove("selected");
    selected = node;
    if (!node) return;
    node.classList.add("selected");
    reveal(node);
  }

  /** @param {HTMLElement} node */
  function reveal(node) {
    const top = node.offsetTop - 8;
    const bottom = node.offsetTop + node.offsetHeight + 8;
    if (top < panel.scrollTop) scrollTo(top);
    else if (bottom > panel.scrollTop + panel.clientHeight) scrollTo(bottom - panel.clientHeight);
  }

  // --- scrolling: the lanes keep the same token at the top ---

  /** @param {number} top */
  function scrollTo(top) {
    cancelAnimationFrame(scroll);
    panel.scrollTop = top;
    placed = panel.scrollTop;
  }

  panel.addEventListener("scroll", () => {
    hideTip();
    if (Math.abs(panel.scrollTop - placed) < 1) return; // a script's, not the user's
    placed = NaN;
    following = panel.scrollHeight - panel.scrollTop - panel.clientHeight < 40;
    let low = 0, high = output.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (output[middle].offsetTop < panel.scrollTop) low = middle + 1;
      else high = middle;
    }
    if (output.length) tell("scroll", { lane, token: low, ahead: panel.scrollTop - output[low].offsetTop });
  });
  hear("scroll", ({ lane: other, token, ahead }) => {
    place = { token, ahead };
    if (other !== lane) align();
  });

  /** What has ended is read from its beginning; the text that was here before may have been scrolled. */
  function begin() {
    place = null;
    scrollTo(0);
  }

  /** Brings the panel to where the other lane was scrolled while this one was hidden. */
  function align() {
    if (!panel.offsetHeight || !output.length) return;
    if (place) scrollTo(output[Math.min(place.token, output.length - 1)].offsetTop + place.ahead);
    else if (following) scrollTo(panel.scrollHeight);
    following = panel.scrollHeight - panel.scrollTop - panel.clientHeight < 40;
  }

  // --- pointing: token n lights up in every lane ---

  /** @param {TokenNode} span */
  function point(span) {
    if (!opened.round) showTip(span);
    if (span.token.at !== undefined) tell("hover", { lane, token: span.token.at });
  }

  function leave() {
    hideTip();
    tell("hover", { lane, token: -1 });
  }

  hear("hover", ({ token }) => {
    lit?.classList.remove("lit");
    lit = output[token] ?? null;
    lit?.classList.add("lit");
  });

  panel.addEventListener("pointerover", (event) => {
    const span = within(event, ".tok, .caret");
    const caret = span?.classList.contains("caret");
    if (span && caret && event.pointerType === "mouse") {
      hideTip();
      openSoon(span);
    } else {
      closeSoon();
      if (span && !caret) point(/** @type {TokenNode} */ (span));
    }
  });
  panel.addEventListener("pointerleave", () => {
    leave();
    closeSoon();
  });
  panel.addEventListener("click", (event) => {
    const under = within(event, ".tok, .caret");
    const span = under?.classList.contains("caret") && event.detail ? nearest(rounds, event) : under;
    if (!span) return;
    const round = /** @type {RoundNode} */ (span.closest(".round"));
    const again = opened.round === round && opened.kept;
    moveTo(span);
    tell("select", { lane, round: Number(round.dataset.round) });
    if (!span.classList.contains("caret")) return;
    if (again) closeRound();
    else openRound(round, span, true);
  });

  // --- the keyboard: one tab stop a panel; arrow keys move from token to token ---

  /** @param {HTMLElement} span */
  function moveTo(span) {
    const stops = /** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll("[tabindex='0']"));
    stops.forEach((other) => (other.tabIndex = -1));
    span.tabIndex = 0;
    span.focus({ preventScroll: true });
    reveal(span);
  }

  panel.addEventListener("focusin", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.classList.contains("tok")) point(/** @type {TokenNode} */ (target));
  });
  panel.addEventListener("focusout", ({ relatedTarget }) => {
    leave();
    if (relatedTarget instanceof Node && !popover.contains(relatedTarget)) closeRound();
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      hideTip();
      return closeRound();
    }
    const here = /** @type {HTMLElement | null | undefined} */ (document.activeElement?.closest(".tok, .caret"));
    if (!here || !panel.contains(here)) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const round = /** @type {RoundNode} */ (here.closest(".round"));
      tell("select", { lane, round: Number(round.dataset.round) });
      if (!round.log.drafted.length) return;
      openRound(round, here, true);
      return popover.focus();
    }
    const stops = [.../** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll(".tok, .caret"))];
    const step = { ArrowRight: 1, ArrowDown: 1, Home: 1, ArrowLeft: -1, ArrowUp: -1, End: -1 }[event.key];
    if (!step) return;
    let at = event.key === "Home" ? 0 : event.key === "End" ? stops.length - 1 : stops.indexOf(here) + step;
    while (stops[at] && !stops[at].checkVisibility({ visibilityProperty: true })) at += step;
    event.preventDefault();
    if (!stops[at]) return;
    closeRound();
    moveTo(stops[at]);
  });

  document.addEventListener("show-space", () =>
    /** @type {NodeListOf<TokenNode>} */ (panel.querySelectorAll(".tok")).forEach(write),
  );
  document.addEventListener("show-rejected", () => {
    panel.querySelectorAll("del").forEach((token) => token.remove());
    rounds.forEach(spellOut);
  });
  return { draw, mark, part, show, begin, align, select };
}
