// The page Records: filters and sorts the rows that Python wrote, in which all words are escaped.

const NUMBERS = ["speedup", "length"]; // with the largest first, as are dates
const FIRST = 10; // rows that are shown until more are asked for

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
  const list = element.querySelector(".list");
  if (!list) return;
  const rows = /** @type {HTMLElement[]} */ ([...list.querySelectorAll(".record")]);
  const chosen = [...element.querySelectorAll("select")];
  const found = /** @type {HTMLElement} */ (element.querySelector(".found"));
  const more = /** @type {HTMLButtonElement} */ (element.querySelector(".more"));
  let most = FIRST;

  function show() {
    const filters = chosen.filter((select) => select.name !== "sort" && select.value);
    const by = chosen.find((select) => select.name === "sort")?.value ?? "speedup";
    const of = (/** @type {HTMLElement} */ row) => row.dataset[by] ?? "";
    const number = NUMBERS.includes(by);
    const up = (/** @type {HTMLElement} */ a, /** @type {HTMLElement} */ b) =>
      number ? Number(of(b)) - Number(of(a)) : of(a).localeCompare(of(b));
    const fits = rows.filter((row) => filters.every((select) => row.dataset[select.name] === select.value));
    fits.sort(by === "created" ? (a, b) => up(b, a) : up);
    list?.replaceChildren(...fits.slice(0, most));
    found.textContent = `${fits.length} of ${rows.length} rows`;
    more.textContent = `Show all ${fits.length}`;
    more.hidden = fits.length <= most;
  }

  more.addEventListener("click", () => {
    most = Infinity;
    show();
    list.querySelectorAll("summary")[FIRST].focus();
  });
  for (const select of chosen) select.addEventListener("change", show);
  show();
}
