// How long each output token came after the one before it: the share of tokens that had come by then, a line a lane,
// with the percentiles as a table. Drawn when a lane has ended.

import { make, svg } from "./core.js";
import { gapsOf } from "./log.js";
import { inMs } from "./words.js";

/** @import { Rounds } from "./log.js" */
/** @import { Gaps, LaneValue } from "../types.d.ts" */

/** @typedef {{ name: string, gaps: Gaps, index: number }} Ended a lane that has ended */

export function gapsPart() {
  const WIDE = 250,
    HIGH = 96,
    FOOT = 16,
    SIDE = 34;
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH + FOOT}`, "aria-hidden": "true" });
  const rows = make("tbody");
  const head = make("tr", "", ...["Lane", "P50", "P95", "P99", "n"].map((name) => heading(name, "col")));
  const table = make(
    "table",
    "",
    make("caption", "", "milliseconds since the token before"),
    make("thead", "", head),
    rows,
  );
  const notes = make("div");
  const node = make(
    "details",
    "gaps",
    make("summary", "", "Time between tokens"),
    make("div", "", picture, make("div", "", table, notes)),
  );
  node.hidden = true;
  let drawn = "";

  /** @param {string} text @param {string} scope */
  function heading(text, scope) {
    const cell = make("th", "", text);
    cell.scope = scope;
    return cell;
  }

  /** @param {Ended} ended */
  function row({ name, gaps, index }) {
    const first = heading("", "row");
    first.dataset.lane = String(index);
    first.append(make("i"), name);
    const cells = [gaps.p50_s, gaps.p95_s, gaps.p99_s].map((gap) =>
      make("td", "", (1000 * gap).toFixed(gaps.p99_s < 0.1 ? 1 : 0)),
    );
    return make("tr", "", first, ...cells, make("td", "", String(gaps.n)));
  }

  /** @param {Rounds} rounds @param {number} index @param {number} longest */
  function line({ all }, index, longest) {
    const gaps = gapsOf(all);
    const x = (/** @type {number} */ gap) => SIDE + ((WIDE - SIDE) * Math.min(gap, longest)) / longest;
    const steps = gaps.map((gap, i) => (gap <= longest ? `H${x(gap)}V${HIGH - (HIGH * (i + 1)) / gaps.length}` : ""));
    return svg("path", { class: "share", "data-lane": index, d: `M${SIDE} ${HIGH}${steps.join("")}H${WIDE}` });
  }

  /** @param {LaneValue[]} lanes @param {Rounds[]} rounds */
  function show(lanes, rounds) {
    const ended = lanes.flatMap(({ name, timing }, index) =>
      timing?.gaps ? [{ name, gaps: timing.gaps, index }] : [],
    );
    const key = JSON.stringify(ended);
    if (key === drawn) return;
    drawn = key;
    node.hidden = !ended.length;
    const longest = 1.25 * Math.max(0.001, ...ended.map(({ gaps }) => gaps.p99_s));
    const shares = [50, 95].flatMap((share) => {
      const y = HIGH - (HIGH * share) / 100;
      return [
        svg("line", { x1: SIDE, x2: WIDE, y1: y, y2: y }),
        svg("text", { x: SIDE - 4, y: y + 4, "text-anchor": "end" }, `${share} %`),
      ];
    });
    const foot = HIGH + FOOT - 2;
    picture.replaceChildren(
      ...shares,
      svg("line", { x1: SIDE, x2: WIDE, y1: HIGH, y2: HIGH }),
      svg("text", { x: SIDE, y: foot, "text-anchor": "start" }, "0 ms"),
      svg("text", { x: WIDE, y: foot, "text-anchor": "end" }, inMs(longest)),
      ...ended.map(({ index }) => line(rounds[index], index, longest)),
    );
    const together = ended.filter(({ gaps }) => gaps.together);
    notes.replaceChildren(
      ...together.map(({ name, gaps }) =>
        make("p", "", `${name}: ${gaps.together} of ${gaps.n} came together with the one before (0 ms).`),
      ),
    );
    rows.replaceChildren(...ended.map(row));
  }
  return { node, show };
}
