import assert from "node:assert/strict";
import { test } from "node:test";

import { cellOf, codeReader, placesOf, visible } from "../../assets/stage/cells.js";
import { CHAIN, draft } from "./examples.js";

test("leading white space stands before a token that is kept", () => {
  assert.deepEqual(cellOf({ text: " \u00a0cat ", kind: "accepted" }, false), { classes: "tok accepted", spaces: 2 });
  assert.deepEqual(cellOf({ text: " cat", kind: "rejected" }, true), { classes: "tok rejected", spaces: 0 });
});

test("white space alone, special tokens and parts of a character are marked as such", () => {
  assert.deepEqual(cellOf({ text: "\n\n", kind: "plain" }, false), { classes: "tok plain blank", spaces: 0 });
  assert.deepEqual(cellOf({ text: " <eos>", kind: "bonus", special: true }, false), {
    classes: "tok bonus special",
    spaces: 0,
  });
  assert.deepEqual(cellOf({ text: "", kind: "plain" }, false), { classes: "tok plain part", spaces: 0 });
  assert.equal(cellOf({ text: "name", kind: "accepted", forced: true }, false).classes, "tok accepted forced");
});

test("a drafted token's position is told, the target's own has none", () => {
  const chain = placesOf(CHAIN);
  assert.equal(chain(CHAIN.drafted[2]), "3 of 4");
  assert.equal(chain({ text: "x", kind: "bonus" }), "");
  const tree = placesOf({
    tree: true,
    drafted: [draft("a", "accepted", 1), draft("b", "accepted", 2), draft("c", "rejected", 2)],
  });
  assert.equal(tree(draft("c", "rejected", 2)), "2 of 2, in a tree of 3");
});

test("visible white space stays breakable", () => {
  assert.equal(visible("a b\n\tc\u00a0\r"), "a␣\u200bb↵\n⇥\tc⍽␍");
});

test("code is what stands between two fences, also where a fence comes in parts", () => {
  const isCode = codeReader();
  const texts = ["Here", ":\n", "``", "`", "python", "\n", "x = 1", "\n```", "\nDone", " `y`"];
  assert.deepEqual(
    texts.filter((text) => isCode(text)),
    ["`", "python", "\n", "x = 1", "\n```"],
  );
});
