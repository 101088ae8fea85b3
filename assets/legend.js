/** @import { Component } from "./types.d.ts" */

/**
 * The legend's switches: classes on the body, so that both panels follow and a new run keeps them.
 * @param {Pick<Component<unknown>, "element">} component
 */
export function legend({ element }) {
  for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (element.querySelectorAll("input[type=checkbox]"))) {
    box.checked = document.body.classList.contains(box.name);
    box.addEventListener("change", () => {
      document.body.classList.toggle(box.name, box.checked);
      document.dispatchEvent(new Event(box.name));
    });
  }
}
