// The tooltip that says what a token is, and boxes that lie over the page: one of each for the page.

import { make } from "./core.js";
import { KINDS, rowsOf } from "./words.js";

/** @import { TokenNode } from "../types.d.ts" */

/**
 * The element of the page with this id, made anew: an earlier copy of these scripts may have left one.
 * @param {string} id
 * @param {string} role
 */
export function only(id, role) {
  document.getElementById(id)?.remove();
  const node = make("div");
  node.id = id;
  node.setAttribute("role", role);
  node.hidden = true;
  document.body.append(node);
  return node;
}

const tip = only("token-tip", "tooltip");

/** @param {TokenNode} span */
export function showTip(span) {
  const list = make("dl");
  for (const [name, value] of rowsOf(span.token)) {
    const fact = make("dd", "", value);
    fact.dir = "auto";
    list.append(make("dt", "", name), fact);
  }
  tip.replaceChildren(make("p", "", KINDS[span.token.kind]), list);
  tip.hidden = false;
  document.querySelectorAll(".tok[aria-describedby]").forEach((other) => other.removeAttribute("aria-describedby"));
  span.setAttribute("aria-describedby", tip.id);
  putBeside(tip, span);
}

export function hideTip() {
  tip.hidden = true;
}

/**
 * Puts a fixed box below `node`, or above it where there is more room, never over it, and wholly in the window, above the
 * panel of a round.
 * @param {HTMLElement} box
 * @param {Element} node
 */
export function putBeside(box, node) {
  const gap = 8;
  const rects = [...node.getClientRects()];
  const top = Math.min(...rects.map((rect) => rect.top));
  const bottom = Math.max(...rects.map((rect) => rect.bottom));
  const panel = document.querySelector(".round-panel:not([hidden])");
  const floor = Math.min(innerHeight, panel?.getBoundingClientRect().top ?? innerHeight);
  const below = floor - bottom - 2 * gap;
  const above = top - 2 * gap;
  box.style.maxHeight = "";
  const under = box.offsetHeight <= below || below >= above;
  box.style.maxHeight = `${Math.max(under ? below : above, 120)}px`;
  const wide = document.documentElement.clientWidth - box.offsetWidth - gap;
  box.style.left = `${Math.max(gap, Math.min(rects[rects.length - 1].left, wide))}px`;
  box.style.top = `${under ? Math.min(bottom + gap, floor - 120 - gap) : Math.max(gap, top - gap - box.offsetHeight)}px`;
}
