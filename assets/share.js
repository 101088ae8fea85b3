// The Share menu. `props.value` is the comparison as Markdown, in a list that is empty without one. The picture is drawn by stage/card.js.

import { copyText, REFUSED } from "./clipboard.js";

/** @import { Component } from "./types.d.ts" */

/**
 * A line of HTML that shows the replay at an address in another page.
 * @param {string} url
 */
function frameOf(url) {
  const frame = document.createElement("iframe");
  Object.assign(frame, { src: `${url}&embed`, title: "Speculative decoding, replayed", width: "100%", height: "900" });
  frame.style.border = "0";
  return frame.outerHTML;
}

/** @param {Component<string[]>} component */
export function share({ element, props, watch, trigger }) {
  const part = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (element.querySelector(selector));
  const opens = /** @type {HTMLButtonElement} */ (part(".opens"));
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

  let framed = false; // whether the link that was asked for is to be an <iframe>

  /** @param {boolean} inFrame */
  function keep(inFrame) {
    framed = inFrame;
    trigger("keep"); // address.js answers it with "copy-link", as it does "copy"
  }

  /** @type {Record<string, () => void>} */
  const acts = {
    run: () => keep(false),
    frame: () => keep(true),
    link: () => trigger("copy"),
    animation: () => {
      say("Drawing …");
      trigger("download", { form: "gif" });
    },
    markdown: () => copy(props.value[0], "Markdown copied."),
    picture: () => document.dispatchEvent(new Event("save-picture")),
    file: () => trigger("download", { form: "html" }),
  };

  document.addEventListener("copy-link", (event) => {
    const { url, short } = /** @type {CustomEvent<{ url: string, short: boolean }>} */ (event).detail;
    if (framed) copy(frameOf(url), "<iframe> copied.");
    else copy(url, short ? "Link copied without the prompt, which is too long for an address." : "Link copied.");
    framed = false;
  });
  menu.addEventListener("click", (event) => {
    const button = /** @type {Element} */ (event.target).closest("button");
    if (!button) return;
    menu.hidePopover();
    acts[button.name]();
  });
  menu.addEventListener("beforetoggle", () => {
    const { top, bottom, right } = opens.getBoundingClientRect();
    const up = bottom > innerHeight / 2;
    menu.style.top = up ? "auto" : `${scrollY + bottom + 4}px`;
    menu.style.bottom = up ? `${document.documentElement.clientHeight - scrollY - top + 4}px` : "auto";
    menu.style.right = `${Math.max(8, document.documentElement.clientWidth - right)}px`;
  });

  function show() {
    opens.disabled = !props.value.length;
    if (opens.disabled) menu.hidePopover();
  }
  watch("value", show);
  show();
}
