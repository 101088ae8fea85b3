// A round's draft, opened beside its tokens: one for the page. It follows the pointer (hover opens, leaving closes) until
// a click, a tap or Enter keeps it open; Escape, or pressing or focusing anything else, closes it.

import { make } from "./core.js";
import { acceptedOf } from "./log.js";
import { hideTip, only, putBeside } from "./tip.js";
import { draftPicture } from "./tree.js";
import { draftSentences } from "./words.js";

/** @import { RoundNode } from "../types.d.ts" */

/** `seconds`: the baseline's median pass, if known; set by stage.js. */
export const plainPass = { seconds: /** @type {number | null} */ (null) };

export const popover = only("round-popover", "dialog");
popover.tabIndex = 0; // it may have to be scrolled

/** @typedef {{ round: RoundNode | null, origin: HTMLElement | null, kept: boolean }} Opened */

export const opened = /** @type {Opened} */ ({ round: null, origin: null, kept: false });
/** @type {ReturnType<typeof setTimeout> | undefined} */
let opening;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let closing;

/**
 * Opens it for a round's element.
 * @param {RoundNode} round
 * @param {HTMLElement} origin the token or caret that asked for it
 * @param {boolean} kept whether it stays open
 */
export function openRound(round, origin, kept) {
  if (opened.round !== round) {
    closeRound();
    drawRound(round, false);
  }
  stopTimers();
  Object.assign(opened, { round, origin, kept });
  round.caret?.setAttribute("aria-expanded", "true");
  hideTip();
}

/** @param {RoundNode} round @param {boolean} unfolded */
function drawRound(round, unfolded) {
  const { drafted } = round.log;
  const title = `Round ${round.dataset.round}: ${acceptedOf(round.log).length} of ${drafted.length} drafted tokens accepted`;
  popover.setAttribute("aria-label", title);
  popover.replaceChildren(
    make("p", "title", title),
    draftPicture(round.log, unfolded, () => {
      drawRound(round, true);
      opened.kept = true;
      popover.focus();
    }),
    ...draftSentences(round.log, plainPass.seconds).map((sentence) => make("p", "", sentence)),
    make("p", "key", "Width of a link: q, the drafter's probability. Ringed: the model's own token."),
  );
  popover.hidden = false;
  putBeside(popover, round);
}

export function closeRound() {
  stopTimers();
  if (!opened.round) return;
  opened.round.caret?.setAttribute("aria-expanded", "false");
  opened.round = null;
  popover.hidden = true;
}

/** @param {HTMLElement} caret */
export function openSoon(caret) {
  stopTimers();
  const round = /** @type {RoundNode} */ (caret.parentNode);
  opening = setTimeout(() => openRound(round, caret, opened.kept && opened.origin === caret), 120);
}

/** Not at once: the pointer may be on its way from the caret to the popover. */
export function closeSoon() {
  clearTimeout(opening);
  if (opened.round && !opened.kept && !closing) closing = setTimeout(closeRound, 300);
}

function stopTimers() {
  clearTimeout(opening);
  clearTimeout(closing);
  closing = undefined;
}

popover.addEventListener("pointerenter", stopTimers);
popover.addEventListener("pointerleave", closeSoon);
popover.addEventListener("keydown", (event) => {
  const last = [...popover.querySelectorAll("button")].at(-1) ?? popover;
  if (event.key === "Escape" || (event.key === "Tab" && !event.shiftKey && document.activeElement === last)) {
    opened.origin?.focus(); // Tab then goes on from there
    closeRound();
  }
});
popover.addEventListener("focusout", ({ relatedTarget }) => {
  if (relatedTarget instanceof Node && !popover.contains(relatedTarget)) closeRound();
});
document.addEventListener("pointerdown", ({ target }) => {
  const onCaret = target instanceof Element && target.closest(".caret");
  if (opened.round && !popover.contains(/** @type {Node} */ (target)) && !onCaret) closeRound();
});
// It goes along with its round, as long as the round is in view.
document.addEventListener(
  "scroll",
  ({ target }) => {
    const { round } = opened;
    if (!round || !(/** @type {Node} */ (target).contains(round))) return;
    const panel = /** @type {Element} */ (round.parentNode).getBoundingClientRect();
    const { top, bottom } = round.getBoundingClientRect();
    const seen = bottom > Math.max(panel.top, 0) && top < Math.min(panel.bottom, innerHeight);
    if (seen) putBeside(popover, round);
    else closeRound();
  },
  true,
);
