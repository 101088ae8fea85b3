// The Share menu. `props.value` is the comparison as Markdown, "" without one. The picture is drawn by stage/card.js.

import { copyText, REFUSED } from "./clipboard.js";

/** @import { Component } from "./types.d.ts" */

/** @param {Component<string>} component */
export function share({ element, props, watch, trigger }) {
  const part = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (element.querySelector(selector));
  const opens = part(".opens");
  const menu = part("#share-menu");
  const said = part(".said");
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let fades;

  /** @param {string} sentence */
  function say(sentence) {
    said.textContent = sentence;
    clearTimeout(fades);
    fades = setTimeout(() => (said.textContent = ""), 4000);
  }

  /** @param {string} text @param {string} sentence */
  async function copy(text, sentence) {
    say((await copyText(text)) ? sentence : REFUSED);
  }

  /** @type {Record<string, () => void>} */
  const acts = {
    run: () => trigger("keep"), // address.js answers both with "copy-link"
    link: () => trigger("copy"),
    markdown: () => copy(props.value, "Markdown copied."),
    picture: () => document.dispatchEvent(new Event("save-picture")),
    file: () => document.getElementById("save-html")?.click(),
  };

  document.addEventListener("copy-link", (event) => {
    const { url, short } = /** @type {CustomEvent<{ url: string, short: boolean }>} */ (event).detail;
    copy(url, short ? "Link copied without the prompt, which is too long for an address." : "Link copied.");
  });
  menu.addEventListener("click", (event) => {
    const button = /** @type {Element} */ (event.target).closest("button");
    if (!button) return;
    menu.hidePopover();
    acts[button.name]();
  });
  menu.addEventListener("beforetoggle", () => {
    const { bottom, right } = opens.getBoundingClientRect();
    menu.style.top = `${scrollY + bottom + 4}px`;
    menu.style.right = `${Math.max(8, document.documentElement.clientWidth - right)}px`;
  });

  function show() {
    const needing = /** @type {NodeListOf<HTMLButtonElement>} */ (menu.querySelectorAll("button:not([name=link])"));
    for (const button of needing) button.disabled = !props.value;
  }
  watch("value", show);
  show();
}
