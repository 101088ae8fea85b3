import assert from "node:assert/strict";
import { test } from "node:test";

import { draftTree, fitted, GAP, placeNodes } from "../../assets/stage/branches.js";
import { CHAIN, draft, round } from "./examples.js";

/** @import { Node } from "../../assets/stage/branches.js" */

const widthOf = (/** @type {string} */ text) => 10 * text.length; // pixels

/** @type {(node: Node) => unknown} */
const textsOf = (node) => [node.token?.text ?? "", ...node.children.map(textsOf)];

/** A root's branches a (accepted), b and c; the target went on from a. */
const TREE = round(0, 1, {
  tree: true,
  drafted: [
    draft("b", "rejected", 1, { parent: -1, q: 0.2 }),
    draft("c", "rejected", 1, { parent: -1, q: 0.3 }),
    draft("a", "accepted", 1, { parent: -1, q: 0.1 }),
    draft("d", "unverified", 2, { parent: 0, q: 0.9 }),
  ],
  own: { text: "own", kind: "bonus" },
});

test("a chain is a tree of one branch, and the target's token follows the last accepted one", () => {
  const { root, total, hidden } = draftTree(CHAIN, false);
  assert.deepEqual(textsOf(root), ["", [" the", [" cat", [" ran"], [" sat", [" on"]]]]]);
  assert.deepEqual([total, hidden], [4, 0]);
});

test("what was kept comes first, then the likelier branches", () => {
  const { root } = draftTree(TREE, false);
  assert.deepEqual(textsOf(root), ["", ["a", ["own"]], ["c"], ["b", ["d"]]]);
});

test("where nothing was accepted the target's token follows the root", () => {
  const { root } = draftTree(round(0, 1, { drafted: [draft("x", "rejected", 1)] }), false);
  assert.deepEqual(textsOf(root), ["", ["a"], ["x"]]);
});

test("a large tree folds all but two branches beside the accepted one, until all is wanted", () => {
  const drafted = Array.from({ length: 20 }, (_, i) =>
    draft(String(i), i ? "rejected" : "accepted", 1, { parent: -1, q: 0.5 - i / 100 }),
  );
  const folded = draftTree(round(0, 1, { drafted }), false);
  assert.equal(folded.hidden, 17);
  assert.equal(folded.root.folded, 17);
  assert.deepEqual(textsOf(folded.root), ["", ["0", ["a"]], ["1"], ["2"]]);
  const whole = draftTree(round(0, 1, { drafted }), true);
  assert.equal(whole.hidden, 0);
  assert.equal(whole.root.children.length, 20);
});

test("a column a position, a row a branch, none over another", () => {
  const { placed, width, height } = placeNodes(draftTree(TREE, false).root, widthOf);
  const at = Object.fromEntries(placed.map((each) => [each.label, each]));
  assert.deepEqual(
    ["", "a", "own", "c", "b", "d"].map((name) => at[name].column),
    [0, 1, 2, 1, 1, 2],
  );
  assert.deepEqual(
    ["", "a", "own", "c", "b", "d"].map((name) => at[name].row),
    [0, 0, 0, 1, 2, 2],
  );
  for (const { parent, x, y } of placed) {
    if (!parent) continue;
    assert.ok(x >= parent.x + parent.width + GAP);
    assert.ok(y >= parent.y);
  }
  assert.equal(width, Math.max(...placed.map((each) => each.x + each.width)) + 4);
  assert.equal(height, 3 * (at.c.y - at.a.y));
});

test("what is folded takes a place of its own, below its parent's branches", () => {
  const { placed } = placeNodes({ children: [{ token: TREE.own, children: [] }], folded: 5 }, widthOf);
  assert.deepEqual(
    placed.map(({ label, row, column }) => [label, row, column]),
    [
      ["", 0, 0],
      ["own", 0, 1],
      ["+5", 1, 1],
    ],
  );
});

test("a label is cut between letters, not inside one", () => {
  assert.equal(fitted(" cat\n", widthOf), "cat↵");
  assert.equal(fitted("x".repeat(30), widthOf), `${"x".repeat(12)}…`);
  const family = "👨‍👩‍👧";
  assert.equal(
    fitted(family.repeat(8), (text) => 40 * [...new Intl.Segmenter().segment(text)].length),
    `${family.repeat(2)}…`,
  );
});
