// Highlights what a figure or a step counts once it is pressed, and fades the rest of the timeline and the text. Buttons name
// it in `data-lights`, and views/why.py names the steps of the waterfall likewise.

import { within } from "./core.js";

/**
 * A press on such a button lights its stage, or the page's where it is outside of one.
 * @param {Event} event
 */
export function lightPressed(event) {
  const button = within(event, "button[data-lights]");
  if (button) light(button.getAttribute("aria-pressed") === "true" ? "" : (button.dataset.lights ?? ""), button);
}

/**
 * Lights what a name counts, and brings the timeline into view; "": nothing.
 * @param {string} name
 * @param {Element} [by] what asked for it
 */
export function light(name, by = document.body) {
  const stage = /** @type {HTMLElement | null} */ (by.closest(".stage") ?? document.querySelector(".stage"));
  if (!stage) return;
  stage.dataset.lit = name;
  for (const each of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("button[data-lights]")))
    each.setAttribute("aria-pressed", String(each.dataset.lights === name));
  if (name) stage.querySelector(".timeline")?.scrollIntoView({ block: "nearest" });
}
