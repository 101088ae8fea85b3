// The list of the history. `props.value` is its HTML, in which Python escaped all words. What is chosen and what has the
// focus stay so when the list changes.

import { foldedList } from "./fold.js";

/** @import { Component } from "./types.d.ts" */

/** @param {Component<string>} component */
export function history({ element, props, watch, trigger }) {
  const list = /** @type {HTMLElement} */ (element.querySelector(".listed"));
  const boxes = () => [...list.querySelectorAll("input")];
  /** @type {string[]} */
  let chosen = [];
  const fold = foldedList(list, 12);

  function tell() {
    const ids = boxes()
      .filter((box) => box.checked)
      .map((box) => box.value);
    if (String(ids) === String(chosen)) return;
    chosen = ids;
    trigger("select");
  }

  function show() {
    const active = document.activeElement;
    const focused = active && list.contains(active) ? active.id : "";
    list.innerHTML = props.value;
    for (const box of boxes()) box.checked = chosen.includes(box.value);
    fold([...list.querySelectorAll("li")]);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    tell();
  }

  list.addEventListener("change", tell);
  watch("value", show);
  show();
}
