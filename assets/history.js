// The list of the history. `props.value` is its HTML, in which Python escaped all words. What is chosen and what has the
// focus stay so when the list changes.

/** @import { Component } from "./types.d.ts" */

const FIRST = 12; // entries that are shown until more are asked for

/** @param {Component<string>} component */
export function history({ element, props, watch, trigger }) {
  const list = /** @type {HTMLElement} */ (element.querySelector(".listed"));
  const boxes = () => [...list.querySelectorAll("input")];
  /** @type {string[]} */
  let chosen = [];
  const more = document.createElement("button");
  let whole = false;
  more.type = "button";
  more.className = "more";

  function tell() {
    const ids = boxes()
      .filter((box) => box.checked)
      .map((box) => box.value);
    if (String(ids) === String(chosen)) return;
    chosen = ids;
    trigger("select", { ids });
  }

  function show() {
    const active = document.activeElement;
    const focused = active && list.contains(active) ? active.id : "";
    list.innerHTML = props.value;
    for (const box of boxes()) box.checked = chosen.includes(box.value);
    fold();
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    tell();
  }

  /** What is chosen is never out of sight. */
  function fold() {
    const all = boxes();
    all.forEach((box, at) => {
      const row = box.closest("li");
      if (row) row.hidden = !whole && at >= FIRST && !box.checked;
    });
    more.textContent = `Show all ${all.length}`;
    if (whole || all.length <= FIRST) more.remove();
    else list.append(more);
  }

  more.addEventListener("click", () => {
    whole = true;
    fold();
    boxes()[FIRST].focus();
  });
  list.addEventListener("change", tell);
  watch("value", show);
  show();
}
