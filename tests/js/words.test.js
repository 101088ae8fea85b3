import assert from "node:assert/strict";
import { test } from "node:test";

import * as words from "../../assets/stage/words.js";
import { CHAIN, draft, round } from "./examples.js";

test("times are written to the digits that matter", () => {
  assert.deepEqual([0.0123, 0.0999, 0.1004, 1.5].map(words.inMs), ["12.3 ms", "99.9 ms", "100 ms", "1,500 ms"]);
  assert.deepEqual([0.0079, 0.041].map(words.milliseconds), ["7.9 ms", "41 ms"]);
});

test("one and many", () => {
  assert.equal(words.count(1, "token"), "1 token");
  assert.equal(words.count(0, "token"), "0 tokens");
  assert.equal(words.count(2, "pass", "passes"), "2 passes");
});

test("a small probability is not a zero, and an unknown one is no number", () => {
  assert.deepEqual(
    [undefined, 0, 0.004, 0.5].map((p) => words.short(p)),
    ["–", "0.00", "< .01", "0.50"],
  );
  assert.deepEqual(
    [undefined, 0, 0.0004, 0.5].map((p) => words.probability(p)),
    ["unknown", "0.000", "< 0.001", "0.500"],
  );
  assert.equal(words.probability(undefined, "unverified"), "not checked");
});

test("a decision shows both numbers, to digits in which they differ", () => {
  assert.equal(words.drawn({ draw: 0.25, p: 0.3, q: 0.6, kind: "accepted" }), "r 0.25 ≤ p/q 0.50: accepted");
  assert.equal(words.drawn({ draw: 0.5012, p: 0.3, q: 0.6, kind: "rejected" }), "r 0.5012 > p/q 0.5000: rejected");
});

test("a decision of another rule is compared with its chance", () => {
  const chance = words.drawn({ draw: 0.25, bound: 0.4, p: 0.1, q: 0.9, kind: "accepted" });
  assert.equal(chance, "r 0.25 ≤ chance 0.40: accepted");
});

test("what the other rule would have kept is named by the rule", () => {
  const drafted = [draft("a", "accepted", 1), draft("b", "rejected", 2)];
  const block = [draft("a", "accepted", 1, { bound: 0.5 }), draft("b", "rejected", 2)];
  const said = (/** @type {object} */ more) => words.otherRule(round(0, 1, { drafted, ...more }));
  assert.equal(said({ otherRule: 2 }), "Block verification would have kept 2 instead of 1 of this draft.");
  assert.equal(said({ drafted: block, otherRule: 1 }), "Token by token would have kept as many of this draft.");
  assert.match(said({ tree: true, otherRule: 0 }), /^The other rule for trees would have kept 0 instead/);
});

test("the target's choice among the drafter's", () => {
  assert.deepEqual([1, 2, 3, 11, 22, 0].map(words.choice), [
    "drafter's 1st choice",
    "drafter's 2nd choice",
    "drafter's 3rd choice",
    "drafter's 11th choice",
    "drafter's 22nd choice",
    "not in the drafter's vocabulary",
  ]);
});

test("a label shows line breaks, and white space where there is nothing else", () => {
  assert.deepEqual([" a\n b ", "  ", "\t", ""].map(words.oneLine), ["a↵ b", "␣␣", "⇥", "(part)"]);
});

test("the tooltip of a drafted token", () => {
  const [, , rejected] = CHAIN.drafted;
  assert.deepEqual(words.rowsOf({ ...rejected, id: 7, draw: 0.5, margin: 1.234, round: 3, place: "3 of 4" }), [
    ["round", "3"],
    ["position", "3 of 4"],
    ["p (target)", "0.100"],
    ["q (drafter)", "0.500"],
    ["decided by", "r 0.50 > p/q 0.20: rejected"],
    ["margin", "1.23 logits"],
    ["target's choice", "drafter's 2nd choice"],
    ["token id", "7"],
    ["text", '" sat"'],
  ]);
});

test("the tooltip of the target's own token", () => {
  assert.deepEqual(words.rowsOf({ text: "", kind: "plain", round: 1, place: "" }), [
    ["round", "1"],
    ["p (target)", "unknown"],
    ["token id", "unknown"],
    ["text", "none: part of a character that a later token completes, or of the stop string"],
  ]);
});

test("a round in short, and its cost beside a standard step", () => {
  assert.equal(words.guessed(CHAIN), "guessed 4, kept 2, +1 free");
  assert.equal(words.guessed(round(0, 1)), "no guess, 1 token");
  assert.equal(
    words.costOf(CHAIN, 0.033),
    "Checking took 40 ms, 7.0 ms more than a standard step (33 ms), drafting 8.0 ms. It brought 3 tokens instead of 1.",
  );
  assert.equal(words.costOf(round(0, 1), null), "It brought 1 token instead of 1.");
});

test("the timeline's tooltip", () => {
  assert.deepEqual(words.factsOf(CHAIN), [
    ["draft", "8 ms"],
    ["verify", "40 ms"],
    ["whole round", "50 ms"],
    ["tokens gained", "3"],
    ["accepted", "2 of 4"],
  ]);
  assert.deepEqual(
    words.factsOf(round(0, 0.5)).map(([, fact]) => fact),
    ["unknown", "unknown", "500 ms", "1"],
  );
});

test("the parts of a round's cost, as far as they are known", () => {
  const terms = { speedup: 2, tokens_per_pass: 3, cost: 1.5, verify: 1.1, draft: 0.3, other: 0.1, prefill: 1 };
  assert.deepEqual(words.partsOf(terms), [
    ["verify", 1.1],
    ["draft", 0.3],
    ["other", 0.1],
  ]);
  assert.deepEqual(words.partsOf({ ...terms, verify: null, draft: null, other: null }), [["verify", 1.5]]);
});
