import assert from "node:assert/strict";
import { test } from "node:test";

import { acceptedOf, gained, gapsOf, Rounds, unpacked } from "../../assets/stage/log.js";
import { CHAIN, round } from "./examples.js";

const line = (/** @type {object} */ value) => `${JSON.stringify(value)}\n`;

test("a value gets its logs back", () => {
  const value = unpacked({ rest: JSON.stringify({ lanes: [{ name: "a" }, { name: "b" }] }), logs: ["x", "y"] });
  assert.deepEqual(value.lanes, [
    { name: "a", log: "x" },
    { name: "b", log: "y" },
  ]);
});

test("a log that grows gives its new rounds alone", () => {
  const rounds = new Rounds();
  const first = line(round(0, 1));
  assert.deepEqual(rounds.update(first), [round(0, 1)]);
  const { all } = rounds;
  assert.deepEqual(rounds.update(first + line(CHAIN)), [CHAIN]);
  assert.equal(rounds.restarted, false);
  assert.deepEqual(rounds.update(first + line(CHAIN)), []);
  assert.deepEqual(all, [round(0, 1), CHAIN]);
  assert.equal(rounds.all, all);
});

test("another log starts again, in a list of its own", () => {
  const rounds = new Rounds();
  rounds.update(line(round(0, 1)));
  const { all } = rounds;
  assert.deepEqual(rounds.update(line(CHAIN)), [CHAIN]);
  assert.equal(rounds.restarted, true);
  assert.notEqual(rounds.all, all);
  rounds.update("");
  assert.deepEqual(rounds.all, []);
});

test("how many rounds had ended at a time", () => {
  const rounds = new Rounds();
  rounds.update([1, 2, 3].map((end) => line(round(end - 1, end))).join(""));
  assert.deepEqual(
    [0, 0.99, 1, 2.5, 3, Infinity].map((time) => rounds.until(time)),
    [0, 0, 1, 2, 3, 3],
  );
});

test("a round gains what was accepted and the target's own token", () => {
  assert.equal(gained(CHAIN), 3);
  assert.deepEqual(
    acceptedOf(CHAIN).map(({ text }) => text),
    [" the", " cat"],
  );
  assert.equal(gained({ ...CHAIN, own: undefined }), 2);
});

test("tokens of one round come together, the first round's after no other", () => {
  assert.deepEqual(
    gapsOf([round(0, 2), round(2, 2.5), { ...CHAIN, times: { start: 2.5, end: 2.75 } }]),
    [0, 0, 0.25, 0.5],
  );
  assert.deepEqual(gapsOf([{ ...CHAIN, times: { start: 0, end: 1 } }]), [0, 0]);
  assert.deepEqual(gapsOf([]), []);
});
