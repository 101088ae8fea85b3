import assert from "node:assert/strict";
import { test } from "node:test";

import { cutOf, niceAbove, partOf, ticksOf, wholeOf } from "../../assets/stage/scale.js";
import { round } from "./examples.js";

/** @param {number[]} ends of rounds without pauses */
function lane(...ends) {
  const all = ends.map((end, i) => round(ends[i - 1] ?? 0, end));
  return { all, longest: Math.max(0, ...all.slice(1).map(({ times }) => times.end - times.start)) };
}

test("the least nice step that is not below", () => {
  assert.deepEqual(
    [0.03, 1, 1.2, 2.1, 7, 10, 5000].map((value) => Number(niceAbove(value).toPrecision(3))),
    [0.05, 1, 2, 5, 10, 10, 5000],
  );
});

test("a long prefill is cut where every lane is still in its first round", () => {
  assert.equal(cutOf([lane(10, 11, 12), lane(8, 8.5)]), 7);
  assert.equal(cutOf([lane(2, 3, 4)]), 0); // not long beside the rounds
  assert.equal(cutOf([lane(10)]), 0); // nothing to hide it for
  assert.equal(cutOf([lane()]), 0);
});

test("the whole run goes from the cut to the end, with room while it runs", () => {
  assert.deepEqual(wholeOf([lane(1, 2, 3.1), lane(1, 2)], false), { from: 0, to: 3.1 });
  assert.deepEqual(wholeOf([lane(1, 2, 3.1), lane(1, 2)], true), { from: 0, to: 4 });
  assert.deepEqual(wholeOf([lane(10, 11, 12)], false), { from: 9, to: 12 });
  assert.deepEqual(wholeOf([lane()], false), { from: 0, to: 0.001 });
});

test("a part lies within the whole and is at least a 400th of it", () => {
  const whole = { from: 2, to: 10 };
  assert.deepEqual(partOf({ from: 0, to: 2 }, whole), { from: 2, to: 4 });
  assert.deepEqual(partOf({ from: 9, to: 12 }, whole), { from: 7, to: 10 });
  assert.deepEqual(partOf({ from: 5, to: 5 }, whole), { from: 5, to: 5.02 });
  assert.equal(partOf({ from: 2, to: 10 }, whole), null);
  assert.equal(partOf({ from: -10, to: 20 }, whole), null);
});

test("ticks are round numbers at least 160 pixels apart, and their labels stay in the picture", () => {
  const ticks = ticksOf({ from: 0, to: 2 }, 0, 500, 1006);
  assert.deepEqual(
    ticks.map(({ text }) => text),
    ["0.0 s", "0.5 s", "1.0 s", "1.5 s", "2.0 s"],
  );
  assert.deepEqual(
    ticks.map(({ x }) => x),
    [0, 250, 500, 750, 1000],
  );
  assert.deepEqual(
    ticks.map(({ anchor }) => anchor),
    ["start", "middle", "middle", "middle", "end"],
  );
  assert.deepEqual(
    ticksOf({ from: 9, to: 12 }, 26, 200, 632).map(({ text, x }) => [text, x]),
    [
      ["9 s", 26],
      ["10 s", 226],
      ["11 s", 426],
      ["12 s", 626],
    ],
  );
});
