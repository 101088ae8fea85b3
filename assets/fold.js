// A long list begins with its first rows, and a button below it shows all of them.

import { button, say } from "./stage/core.js";

/**
 * Returns what shows the first of these rows; all of them once the button was pressed. One that is chosen always shows.
 * @param {HTMLElement} list
 * @param {number} first how many
 * @returns {(rows: HTMLElement[]) => void}
 */
export function foldedList(list, first) {
  const more = button("more", "", () => {
    whole = true;
    show(all);
    /** @type {HTMLElement | null} */ (all[first].querySelector("input, summary"))?.focus();
  });
  let whole = false;
  /** @type {HTMLElement[]} */
  let all = [];

  /** @param {HTMLElement[]} rows */
  function show(rows) {
    all = rows;
    rows.forEach((row, at) => (row.hidden = !whole && at >= first && !row.querySelector("input:checked")));
    say(more, `Show all ${rows.length}`);
    more.hidden = whole || rows.length <= first;
  }

  list.after(more);
  return show;
}
