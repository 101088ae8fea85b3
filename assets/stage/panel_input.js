// A token panel by pointer and keyboard: hover explains a token, a press opens its round. One tab stop a panel; arrow keys
// move from token to token.

import { tell, within } from "./core.js";
import { hideTip } from "./tip.js";

/** @import { TokenPanel } from "./tokens.js" */
/** @import { TokenNode } from "../types.d.ts" */

/** @type {Record<string, number>} */
const STEPS = { ArrowRight: 1, ArrowDown: 1, Home: 1, ArrowLeft: -1, ArrowUp: -1, End: -1 };

/** @param {TokenPanel} tokens */
export function panelInputOn(tokens) {
  const { panel } = tokens;
  for (const event of ["pointerover", "focusin"]) {
    panel.addEventListener(event, (it) => {
      const span = within(it, ".tok");
      if (span) tokens.point(/** @type {TokenNode} */ (span));
    });
  }
  panel.addEventListener("pointerleave", () => tokens.leave());
  panel.addEventListener("focusout", () => tokens.leave());
  panel.addEventListener("click", (event) => {
    const span = within(event, ".tok");
    if (!span) return;
    tokens.moveTo(span);
    tokens.choose(span);
    tokens.point(/** @type {TokenNode} */ (span)); // again: the tip leaves room for the panel of its round
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      hideTip();
      return tell("select", { lane: tokens.lane, round: 0 });
    }
    const here = within(event, ".tok");
    if (!here) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return tokens.choose(here);
    }
    const next = nextStop(panel, here, event.key);
    if (next === undefined) return;
    event.preventDefault();
    if (next) tokens.moveTo(next);
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
  const stops = [.../** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll(".tok"))];
  let at = key === "Home" ? 0 : key === "End" ? stops.length - 1 : stops.indexOf(here) + step;
  while (stops[at] && !stops[at].checkVisibility({ visibilityProperty: true })) at += step;
  return stops[at] ?? null;
}
