// The page by keyboard and with files, beyond what Gradio does, and what its charts say to a screen reader.

import { copyText, REFUSED } from "./clipboard.js";
import { leadBack } from "./rooms.js";
import { within } from "./stage/core.js";
import { light, lightPressed } from "./stage/lit.js";

/** @typedef {{ points: { customdata?: unknown }[] }} Clicked */
/** @typedef {Element & { layout: { meta: string }, on?: (name: string, act: (event: Clicked) => void) => void }} Plotted
 *   by Plotly */

export function page() {
  runByKeyboard();
  copyBlocks();
  closeLists();
  handFocusOn();
  describeCharts();
  lightSteps();
  leadBack();
  takeFiles();
  oneSection();
  if (new URLSearchParams(location.search).has("embed")) embed();
  customElements.define("local-time", LocalTime);
}

/** In another page's frame: the replay alone, under a link to the page that has all of it. */
function embed() {
  document.body.classList.add("embedded");
  const whole = new URL(location.href);
  whole.searchParams.delete("embed");
  const title = document.querySelector("#rooms h1");
  const link = document.createElement("a");
  Object.assign(link, {
    className: "brand",
    href: whole.href,
    target: "_blank",
    textContent: title?.textContent ?? "",
  });
  title?.replaceWith(link);
}

/** A moment, in seconds since 1970, as the reader's clock has it: in the shadow, since Gradio rewrites what it wrote. */
class LocalTime extends HTMLElement {
  static observedAttributes = ["data-s"];

  attributeChangedCallback() {
    const shadow = this.shadowRoot ?? this.attachShadow({ mode: "open" });
    const at = new Date(1000 * Number(this.dataset.s));
    shadow.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  }
}

/** Ctrl+Enter (Cmd+Enter) in the prompt presses Run. */
function runByKeyboard() {
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !within(event, "#prompt")) return;
      event.preventDefault();
      event.stopPropagation();
      event.target?.dispatchEvent(new Event("change", { bubbles: true }));
      document.getElementById("run")?.click();
    },
    true,
  );
}

/** A file that is dropped on a box for longer texts in the drawer is its text. */
function takeFiles() {
  const boxOf = (/** @type {Event} */ event) =>
    /** @type {HTMLTextAreaElement | null} */ (within(event, ".takes-files textarea"));
  document.addEventListener("dragover", (event) => {
    if (boxOf(event)) event.preventDefault(); // or the browser opens the file
  });
  document.addEventListener("drop", async (event) => {
    const box = boxOf(event);
    const file = event.dataTransfer?.files[0];
    if (!box || !file) return;
    event.preventDefault();
    box.value = await file.text();
    box.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

/** A button in a section copies the section's block. */
function copyBlocks() {
  document.addEventListener("click", async (event) => {
    const section = within(event, "button.copy")?.closest("section");
    const block = section?.querySelector("pre");
    const said = section?.querySelector(".said");
    if (!block || !said) return;
    said.textContent = (await copyText(block.textContent)) ? "Copied." : REFUSED;
    setTimeout(() => (said.textContent = ""), 4000);
  });
}

/** Gradio leaves the list of a dropdown open when Tab leaves the dropdown; and a long one, which scrolls, would be the
 * next stop, and then nothing. */
function closeLists() {
  document.addEventListener("keydown", (event) => {
    const box = within(event, "[role=combobox]");
    if (event.key !== "Tab" || box?.ariaExpanded !== "true") return;
    /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[role=listbox]")).forEach(
      (list) => (list.tabIndex = -1),
    );
    box.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  });
}

/** A button that is switched off or taken away while it has the focus hands it on: Run to Stop, and back. */
function handFocusOn() {
  /** @type {Record<string, string>} */
  const next = { run: "stop", stop: "run" };
  const button = (/** @type {string} */ id) => /** @type {HTMLButtonElement | null} */ (document.getElementById(id));
  /** @type {HTMLButtonElement | null} */
  let focused = null;
  /** @type {HTMLButtonElement | null} */
  let heir = null;
  document.addEventListener("focusin", ({ target }) => {
    focused = /** @type {HTMLButtonElement} */ (target); // or any other element: only a button is ever disabled here
    heir = null;
  });
  const buttons = new MutationObserver(() => {
    if (document.activeElement !== document.body && document.activeElement !== focused) return;
    if (focused?.disabled) heir = button(next[focused.id]);
    if (heir && !heir.disabled) heir.focus({ preventScroll: true });
  });
  for (const id of Object.keys(next)) {
    const each = button(id); // of Compare; the other tabs have their own
    if (each) buttons.observe(each, { attributes: true, attributeFilter: ["disabled"] });
  }
  document.addEventListener("click", (event) => {
    if (!within(event, "#own-settings")) return;
    setTimeout(() => {
      if (!document.contains(focused)) button("run")?.focus({ preventScroll: true });
    }, 1000);
  });
}

/** Closes the open section of the strip when another is opened. */
function oneSection() {
  document.addEventListener("click", (event) => {
    const opens = within(event, "#sections > .block > .label-wrap");
    if (!opens || !event.isTrusted) return;
    for (const other of /** @type {NodeListOf<HTMLElement>} */ (
      document.querySelectorAll("#sections > .block > .label-wrap.open")
    ))
      if (other !== opens) other.click();
  });
}

/** A step of the waterfall, or the button of one, lights what it counts on the stage. */
function lightSteps() {
  document.addEventListener("click", (event) => {
    if (!within(event, ".stage")) lightPressed(event);
  });
}

/** Each chart is a picture with a text, and its button can be reached. Those under #why come when it is unfolded. */
function describeCharts() {
  /** @type {WeakSet<Plotted>} */
  const heard = new WeakSet();
  /** @param {Plotted} chart */
  const listen = (chart) => {
    if (heard.has(chart) || !chart.on) return;
    heard.add(chart);
    chart.on("plotly_click", ({ points: [point] }) => {
      if (typeof point?.customdata === "string") light(point.customdata);
    });
  };
  /** @param {Element} charts */
  const describe = (charts) => {
    for (const chart of charts.querySelectorAll(".js-plotly-plot")) {
      const { layout } = /** @type {Plotted} */ (chart);
      listen(/** @type {Plotted} */ (chart));
      const [picture, ...layers] = chart.querySelectorAll(".main-svg");
      picture?.setAttribute("role", "img");
      picture?.setAttribute("aria-label", layout.meta);
      layers.forEach((layer) => layer.setAttribute("aria-hidden", "true"));
      for (const button of /** @type {NodeListOf<HTMLElement>} */ (chart.querySelectorAll(".modebar-btn"))) {
        Object.assign(button, { tabIndex: 0, role: "button", ariaLabel: button.dataset.title });
      }
    }
  };
  for (const charts of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#charts, .charts, #why"))) {
    new MutationObserver(() => describe(charts)).observe(charts, { childList: true, subtree: true });
    charts.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      const button = within(event, ".modebar-btn");
      if (!button) return;
      event.preventDefault();
      button.click();
    });
  }
}
