import assert from "node:assert/strict";
import { test } from "node:test";

import { parametersOf } from "../../assets/address.js";
import { hex } from "../../assets/owner.js";

const KNOWN = {
  usual: {
    prompt: "",
    pair: "starter",
    target: "",
    assistant: "",
    lookahead: null,
    seed: 0,
    chat_template: true,
    system: "",
  },
  pairs: { starter: { lookahead: 4 }, big: { lookahead: 8 }, own: { lookahead: 5 } },
};

/** @param {Record<string, string | number | boolean | null>} asked */
const addressOf = (asked) => {
  const values = Object.values({ ...KNOWN.usual, lookahead: 4, ...asked });
  const { parameters, short } = parametersOf(values, KNOWN);
  return { query: parameters.toString(), short };
};

test("the pair is always there, and whatever else differs from its defaults", () => {
  assert.equal(addressOf({}).query, "pair=starter");
  assert.equal(addressOf({ pair: "big" }).query, "pair=big&lookahead=4");
  assert.equal(
    addressOf({ pair: "big", lookahead: 8, seed: 7, chat_template: false }).query,
    "pair=big&seed=7&chat_template=false",
  );
  assert.equal(addressOf({ lookahead: null }).query, "pair=starter"); // the pair's own value
});

test("typed models are there only where they are used", () => {
  const typed = { target: "org/model", assistant: "org/small" };
  assert.equal(addressOf(typed).query, "pair=starter");
  assert.equal(
    addressOf({ ...typed, pair: "own", lookahead: 5 }).query,
    "pair=own&target=org%2Fmodel&assistant=org%2Fsmall",
  );
});

test("any prompt comes back as it was", () => {
  const prompt = "a&b=c #?\n“ü”+ 100% \u{1f600}";
  assert.equal(new URLSearchParams(addressOf({ prompt }).query).get("prompt"), prompt);
});

test("prompts that are too long for an address are left out", () => {
  assert.deepEqual(addressOf({ prompt: "x".repeat(6001), system: "y", seed: 1 }), {
    query: "pair=starter&seed=1",
    short: true,
  });
  assert.equal(addressOf({ prompt: "x".repeat(5000) }).short, false);
});

test("a key is two digits a byte", () => {
  assert.equal(hex(new Uint8Array([0, 10, 255])), "000aff");
});
