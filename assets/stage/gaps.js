// How long each output token came after the one before it: the share of tokens that had come by then, a line a lane,
// with the percentiles as a table. Drawn when a lane has ended.

function gapsPart() {
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
  const node = make("aside", "gaps", make("h3", "", "Time between tokens"), picture, table, notes);
  node.hidden = true;
  let drawn = "";

  function heading(text, scope) {
    const cell = make("th", "", text);
    cell.scope = scope;
    return cell;
  }

  function row({ name, timing }, index) {
    const first = heading("", "row");
    first.dataset.lane = index;
    first.append(make("i"), name);
    const cells = ["p50_s", "p95_s", "p99_s"].map((at) =>
      make("td", "", (1000 * timing.gaps[at]).toFixed(timing.gaps.p99_s < 0.1 ? 1 : 0)),
    );
    return make("tr", "", first, ...cells, make("td", "", String(timing.gaps.n)));
  }

  function line({ all }, index, longest) {
    const gaps = all
      .flatMap((round, i) => {
        const after = i ? round.times.end - all[i - 1].times.end : null;
        return [...(i && gained(round) ? [after] : []), ...Array(Math.max(0, gained(round) - 1)).fill(0)];
      })
      .sort((a, b) => a - b);
    const x = (gap) => SIDE + ((WIDE - SIDE) * Math.min(gap, longest)) / longest;
    const steps = gaps.map((gap, i) => (gap <= longest ? `H${x(gap)}V${HIGH - (HIGH * (i + 1)) / gaps.length}` : ""));
    return svg("path", { class: "share", "data-lane": index, d: `M${SIDE} ${HIGH}${steps.join("")}H${WIDE}` });
  }

  function show(lanes, rounds) {
    const ended = lanes.map((lane, index) => ({ lane, index })).filter(({ lane }) => lane.timing?.gaps);
    const key = JSON.stringify(ended.map(({ lane }) => [lane.name, lane.timing]));
    if (key === drawn) return;
    drawn = key;
    node.hidden = !ended.length;
    const longest = 1.25 * Math.max(0.001, ...ended.map(({ lane }) => lane.timing.gaps.p99_s));
    const shares = [50, 95].flatMap((share) => {
      const y = HIGH - (HIGH * share) / 100;
      return [
        svg("line", { x1: SIDE, x2: WIDE, y1: y, y2: y }),
        svg("text", { x: SIDE - 4, y: y + 4, "text-anchor": "end" }, `${share} %`),
      ];
    });
    const ends = [
      [SIDE, "0 ms", "start"],
      [WIDE, inMs(longest), "end"],
    ].map(([x, text, anchor]) => svg("text", { x, y: HIGH + FOOT - 2, "text-anchor": anchor }, text));
    picture.replaceChildren(
      ...shares,
      svg("line", { x1: SIDE, x2: WIDE, y1: HIGH, y2: HIGH }),
      ...ends,
      ...ended.map(({ index }) => line(rounds[index], index, longest)),
    );
    const together = ended.filter(({ lane }) => lane.timing.gaps.together);
    notes.replaceChildren(
      ...together.map(({ lane: { name, timing } }) =>
        make("p", "", `${name}: ${timing.gaps.together} of ${timing.gaps.n} came together with the one before (0 ms).`),
      ),
    );
    rows.replaceChildren(...ended.map(({ lane, index }) => row(lane, index)));
  }
  return { node, show };
}
