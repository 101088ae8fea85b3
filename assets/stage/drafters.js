// Which drafter? A sentence, a row a lane, the fastest first, and the command of the lane that is shown. A press on a row
// shows that lane beside the standard one. On the page all of it stands in the strip's section of this name.

import { make, say, within } from "./core.js";
import { deployPart } from "./verdict.js";

/** @import { Deploy, DrafterRow, DraftersTable, Press } from "../types.d.ts" */

const CELLS = /** @type {const} */ (["tokens_per_pass", "acceptance", "cost", "runs_in", "memory", "output"]);

/** @param {Press | null} press */
export function draftersPart(press) {
  const verdict = make("p", "found");
  const caption = make("p", "caption");
  const head = make("tr");
  const body = make("tbody");
  const skipped = make("ul", "skipped");
  const table = make("table", "", make("thead", "", head), body);
  const deploy = deployPart(press);
  const node = make("section", "drafters", verdict, make("div", "scroll", table), skipped, caption, deploy.node);
  node.id = "drafters";
  node.setAttribute("aria-label", "Which drafter?");
  let drawn = "";

  body.addEventListener("click", (event) => {
    const row = within(event, "tr.able");
    if (row && row.getAttribute("aria-current") !== "true") press?.("select", { lane: row.dataset.lane });
  });

  /** @param {DraftersTable | null} value @param {Deploy | null} command */
  function show(value, command) {
    const place = document.getElementById("all-drafters");
    if (place && value && node.parentNode !== place) place.append(node);
    deploy.show(command);
    const text = JSON.stringify(value);
    if (text === drawn) return;
    drawn = text;
    node.hidden = !value;
    if (!value) return;
    const line = /** @type {HTMLElement | null | undefined} */ (document.activeElement?.closest("#drafters tr"));
    const focused = line?.dataset.lane;
    say(verdict, value.verdict);
    verdict.setAttribute("role", "status");
    caption.textContent = value.caption;
    table.setAttribute("aria-label", value.caption);
    head.replaceChildren(
      ...value.head.map((title) => {
        const cell = make("th", "", title);
        cell.scope = "col";
        return cell;
      }),
    );
    const most = Math.max(1, ...value.rows.map(({ bar }) => (bar ? bar[2] : 1)));
    body.replaceChildren(...value.rows.map((row) => drafterRow(row, value, most, press !== null)));
    body.querySelectorAll("tr").forEach((row) => row.dataset.lane === focused && row.querySelector("button")?.focus());
    skipped.replaceChildren(...value.skipped.map((sentence) => make("li", "", sentence)));
  }

  node.hidden = true;
  return { node, show };
}

/**
 * @param {DrafterRow} row
 * @param {DraftersTable} table
 * @param {number} most the largest speed-up that a bar shows
 * @param {boolean} choosable whether another lane can be shown
 */
function drafterRow(row, { ready, chosen }, most, choosable) {
  const able = ready && choosable;
  const name = make(able ? "button" : "span", "name", row.lane);
  if (able) name.setAttribute("type", "button");
  const shown = ready && row.lane === chosen;
  const [figure, range = ""] = (row.speedup ?? "…").split(/(?=\()/); // of "1.18× (1.05 to 1.33)"
  const first = make(
    "th",
    "",
    name,
    ...(row.best ? [make("b", "best", "best here")] : []),
    ...(shown ? [make("small", "", "shown above")] : []),
    ...(row.note ? [make("small", "", row.note)] : []),
  );
  first.scope = "row";
  const line = make(
    "tr",
    `${able ? "able" : ""} ${row.best ? "winner" : ""}`,
    first,
    make("td", "speedup", make("div", "", speedBar(row, most), make("span", "", figure, make("small", "", range)))),
    ...CELLS.map((cell) => make("td", cell, row[cell] ?? "")),
  );
  line.dataset.lane = row.lane;
  if (shown) line.setAttribute("aria-current", "true");
  return line;
}

/**
 * A bar from 0 to the speed-up, its interval, and where standard decoding is. Its figures stand beside it.
 * @param {DrafterRow} row
 * @param {number} most
 */
function speedBar({ bar, outcome }, most) {
  const track = make("span", `speed ${outcome ?? ""}`);
  track.ariaHidden = "true";
  const at = (/** @type {number} */ value) => `${(100 * value) / most}%`;
  /** @param {string} name @param {number} from @param {number} to */
  const piece = (name, from, to) => {
    const node = make("i", name);
    node.style.left = at(from);
    node.style.width = at(to - from);
    return node;
  };
  if (bar) track.append(piece("value", 0, bar[0]), piece("interval", bar[1], bar[2]));
  track.append(piece("one", 1, 1));
  return track;
}
