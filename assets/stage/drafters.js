// Which drafter? A row a lane, the fastest first. A press on a row shows that lane beside the standard one.

import { make, within } from "./core.js";

/** @import { DrafterRow, DraftersTable, Press } from "../types.d.ts" */

const CELLS = /** @type {const} */ ([
  "speedup",
  "tokens_per_pass",
  "acceptance",
  "cost",
  "runs_in",
  "memory",
  "output",
]);

/** @param {Press | null} press */
export function draftersPart(press) {
  const caption = make("p", "caption");
  const head = make("tr");
  const body = make("tbody");
  const skipped = make("ul", "skipped");
  const table = make("table", "", make("thead", "", head), body);
  const node = make("section", "drafters", caption, make("div", "scroll", table), skipped);
  node.id = "drafters";
  node.setAttribute("aria-label", "Which drafter?");
  let drawn = "";

  body.addEventListener("click", (event) => {
    const row = within(event, "tr.able");
    if (row && row.getAttribute("aria-current") !== "true") press?.("select", { lane: row.dataset.lane });
  });

  /** @param {DraftersTable | null} value */
  function show(value) {
    const text = JSON.stringify(value);
    if (text === drawn) return;
    drawn = text;
    node.hidden = !value;
    if (!value) return;
    const line = /** @type {HTMLElement | null | undefined} */ (document.activeElement?.closest("#drafters tr"));
    const focused = line?.dataset.lane;
    caption.textContent = value.caption;
    table.setAttribute("aria-label", value.caption);
    head.replaceChildren(
      ...value.head.map((title) => {
        const cell = make("th", "", title);
        cell.scope = "col";
        return cell;
      }),
    );
    body.replaceChildren(...value.rows.map((row) => drafterRow(row, value.ready, value.chosen, press !== null)));
    body.querySelectorAll("tr").forEach((row) => row.dataset.lane === focused && row.querySelector("button")?.focus());
    skipped.replaceChildren(...value.skipped.map((sentence) => make("li", "", sentence)));
  }

  node.hidden = true;
  return { node, show };
}

/**
 * @param {DrafterRow} row
 * @param {boolean} ready whether all lanes have run
 * @param {string} chosen the lane that is shown
 * @param {boolean} choosable whether another one can be shown
 */
function drafterRow(row, ready, chosen, choosable) {
  const able = ready && choosable;
  const name = make(able ? "button" : "span", "name", row.lane);
  if (able) name.setAttribute("type", "button");
  const first = make(
    "th",
    "",
    name,
    ...(row.best ? [make("b", "best", "best here")] : []),
    ...(row.note ? [make("small", "", row.note)] : []),
  );
  first.scope = "row";
  const line = make(
    "tr",
    `${able ? "able" : ""} ${row.best ? "winner" : ""}`,
    first,
    ...CELLS.map((cell) => make("td", cell, row[cell])),
  );
  line.dataset.lane = row.lane;
  if (ready && row.lane === chosen) line.setAttribute("aria-current", "true");
  return line;
}
