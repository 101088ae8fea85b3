// The line of figures over a lane. A figure's name is a button that says what the figure means: to the pointer, to a tap
// and to the keyboard. One tab stop a line; the arrow keys go from figure to figure.

import { make, say, within } from "./core.js";
import { only, putBeside } from "./tip.js";

/** @import { Figure } from "../types.d.ts" */

/** @typedef {HTMLButtonElement & { meaning: string }} Name */

const tip = only("figure-tip", "tooltip");

export function figuresPart() {
  const node = make("dl", "figures");
  /** @type {ReturnType<typeof figure>[]} */
  let cells = [];
  let drawn = "";

  /**
   * Values change in place: a run must not take the focus from a name.
   * @param {Figure[]} values
   */
  function show(values) {
    const names = JSON.stringify(values.map(({ label, meaning }) => [label, meaning]));
    if (names !== drawn) {
      drawn = names;
      cells = values.map(figure);
      node.replaceChildren(...cells.map(({ cell }) => cell));
      if (cells.length) cells[0].name.tabIndex = 0;
    }
    values.forEach(({ value, unit }, index) => {
      const { number, small } = cells[index];
      if (number.data !== value) number.data = value;
      say(small, unit);
    });
  }

  /** @param {Event} event */
  const named = (event) => /** @type {Name | null | undefined} */ (within(event, "div")?.querySelector("button"));
  for (const event of ["pointerover", "focusin", "click"]) {
    node.addEventListener(event, (it) => {
      const name = named(it);
      if (name) showMeaning(name);
    });
  }
  const hide = () => (tip.hidden = true);
  node.addEventListener("pointerleave", hide);
  node.addEventListener("focusout", hide);
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = cells.findIndex(({ name }) => name === event.target);
    const next = cells[(at + step + cells.length) % cells.length].name;
    cells.forEach(({ name }) => (name.tabIndex = name === next ? 0 : -1));
    next.focus();
  });
  return { node, show };
}

/** @param {Figure} figure */
function figure({ label, meaning }) {
  const name = Object.assign(make("button", "", label), { meaning });
  name.type = "button";
  name.tabIndex = -1;
  const number = document.createTextNode("");
  const small = make("small");
  return { cell: make("div", "", make("dt", "", name), make("dd", "", number, small)), name, number, small };
}

/** @param {Name} name */
function showMeaning(name) {
  tip.textContent = name.meaning;
  tip.hidden = false;
  name.setAttribute("aria-describedby", tip.id);
  putBeside(tip, /** @type {HTMLElement} */ (name.closest("div")));
}
