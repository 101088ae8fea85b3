// The page Records: filters and sorts the rows that Python wrote, in which all words are escaped.

import { foldedList } from "./fold.js";

const NUMBERS = ["speedup", "length"]; // with the largest first, as are dates

/** @import { Component } from "./types.d.ts" */

/** @param {Component<string>} component */
export function room({ element, props, watch }) {
  const show = () => {
    /** @type {HTMLElement} */ (element.firstElementChild).innerHTML = props.value;
    records({ element });
  };
  watch("value", show);
  show();
}

/** @param {{ element: HTMLElement }} page */
export function records({ element }) {
  const list = /** @type {HTMLElement | null} */ (element.querySelector(".list"));
  if (!list) return;
  const rows = /** @type {HTMLElement[]} */ ([...list.querySelectorAll(".record")]);
  const chosen = [...element.querySelectorAll("select")];
  const found = /** @type {HTMLElement} */ (element.querySelector(".found"));
  const fold = foldedList(list, 10);

  function show() {
    const filters = chosen.filter((select) => select.name !== "sort" && select.value);
    const by = chosen.find((select) => select.name === "sort")?.value ?? "speedup";
    const of = (/** @type {HTMLElement} */ row) => row.dataset[by] ?? "";
    const number = NUMBERS.includes(by);
    const up = (/** @type {HTMLElement} */ a, /** @type {HTMLElement} */ b) =>
      number ? Number(of(b)) - Number(of(a)) : of(a).localeCompare(of(b));
    const fits = rows.filter((row) => filters.every((select) => row.dataset[select.name] === select.value));
    fits.sort(by === "created" ? (a, b) => up(b, a) : up);
    list?.replaceChildren(...fits);
    fold(fits);
    found.textContent = `${fits.length} of ${rows.length} rows`;
  }

  for (const select of chosen) select.addEventListener("change", show);
  show();
}
