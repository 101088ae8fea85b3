import assert from "node:assert/strict";
import { test } from "node:test";

import { View } from "../../assets/stage/view.js";
import { round } from "./examples.js";

/** Two lanes of four rounds of a second each, in a picture of 106 pixels: 25 pixels a second. */
function view() {
  const made = new View();
  const all = [0, 1, 2, 3].map((start) => round(start, start + 1));
  const until = (/** @type {number} */ time) => all.filter(({ times }) => times.end <= time).length;
  const lane = { all, longest: 1, end: 4, until };
  made.lanes = [
    { ...lane, top: 20, bottom: 40 },
    { ...lane, top: 60, bottom: 108 },
  ];
  made.width = 106;
  return made;
}

test("a round's box is where a press finds the round", () => {
  const made = view();
  const box = made.boxOf({ lane: 1, round: 3 });
  assert.deepEqual(box, { x: 50, width: 25, y: 60, height: 48, visible: true });
  assert.deepEqual(made.roundAt(55, 80), { lane: 1, round: 3 });
  assert.deepEqual(made.roundAt(55, 50), { lane: 0, round: 0 }); // between the lanes
  assert.deepEqual(made.roundAt(120, 80), { lane: 0, round: 0 }); // after the end
  assert.equal(made.boxOf({ lane: 1, round: 9 }), null);
});

test("zoom keeps its second in place, pan moves within the run, and a round out of view is brought back", () => {
  const made = view();
  made.pan(1); // of the whole run there is nothing to pan to
  assert.equal(made.part, null);
  const before = made.x(2);
  made.zoom(0.5, 2);
  assert.deepEqual(made.span, { from: 1, to: 3 });
  assert.equal(made.x(2), before);
  made.pan(5);
  assert.deepEqual(made.span, { from: 2, to: 4 });
  assert.equal(made.boxOf({ lane: 0, round: 1 })?.visible, false);
  assert.equal(made.reveal(0, 1), true);
  assert.deepEqual(made.span, { from: 0, to: 2 });
  assert.equal(made.reveal(0, 1), false);
  made.zoom(8, 1);
  assert.equal(made.part, null);
});
