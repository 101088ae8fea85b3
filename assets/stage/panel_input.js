// A token panel by pointer and keyboard.

import { within } from "./core.js";
import { nearest } from "./nodes.js";
import { closeRound, closeSoon, opened, openRound, openSoon, popover } from "./popover.js";
import { hideTip } from "./tip.js";

/** @import { TokenPanel } from "./tokens.js" */
/** @import { RoundNode, TokenNode } from "../types.d.ts" */

const STOPS = ".tok, .caret";
/** @type {Record<string, number>} */
const STEPS = { ArrowRight: 1, ArrowDown: 1, Home: 1, ArrowLeft: -1, ArrowUp: -1, End: -1 };

/**
 * Hover explains a token, or opens the draft of a caret; a press selects the round.
 * @param {TokenPanel} tokens
 */
export function panelPointerOn(tokens) {
  const { panel } = tokens;
  panel.addEventListener("pointerover", (event) => {
    const span = within(event, STOPS);
    const caret = span?.classList.contains("caret");
    if (span && caret && event.pointerType === "mouse") {
      hideTip();
      openSoon(span);
    } else {
      closeSoon();
      if (span && !caret) tokens.point(/** @type {TokenNode} */ (span));
    }
  });
  panel.addEventListener("pointerleave", () => {
    tokens.leave();
    closeSoon();
  });
  panel.addEventListener("click", (event) => {
    const under = within(event, STOPS);
    const span = under?.classList.contains("caret") && event.detail ? nearest(tokens.rounds, event) : under;
    if (!span) return;
    const again = opened.round === span.closest(".round") && opened.kept;
    tokens.moveTo(span);
    const round = tokens.choose(span);
    if (!span.classList.contains("caret")) return;
    if (again) closeRound();
    else openRound(round, span, true);
  });
}

/**
 * One tab stop a panel; arrow keys move from token to token, Enter opens the round's draft.
 * @param {TokenPanel} tokens
 */
export function panelKeysOn(tokens) {
  const { panel } = tokens;
  panel.addEventListener("focusin", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.classList.contains("tok")) tokens.point(/** @type {TokenNode} */ (target));
  });
  panel.addEventListener("focusout", ({ relatedTarget }) => {
    tokens.leave();
    if (relatedTarget instanceof Node && !popover.contains(relatedTarget)) closeRound();
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      hideTip();
      return closeRound();
    }
    const here = /** @type {HTMLElement | null | undefined} */ (document.activeElement?.closest(STOPS));
    if (!here || !panel.contains(here)) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const round = tokens.choose(here);
      if (!round.log.drafted.length) return;
      openRound(round, here, true);
      return popover.focus();
    }
    const next = nextStop(panel, here, event.key);
    if (next === undefined) return;
    event.preventDefault();
    if (!next) return;
    closeRound();
    tokens.moveTo(next);
  });
}

/**
 * Where a key leads: null past the first or last token; undefined for keys that lead nowhere.
 * @param {HTMLElement} panel
 * @param {HTMLElement} here
 * @param {string} key
 */
function nextStop(panel, here, key) {
  const step = STEPS[key];
  if (!step) return undefined;
  const stops = [.../** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll(STOPS))];
  let at = key === "Home" ? 0 : key === "End" ? stops.length - 1 : stops.indexOf(here) + step;
  while (stops[at] && !stops[at].checkVisibility({ visibilityProperty: true })) at += step;
  return stops[at] ?? null;
}
