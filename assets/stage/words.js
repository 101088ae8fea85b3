// Rounds and tokens in words.

import { acceptedOf, gained } from "./log.js";

/** @import { Decided, Kind, Round, ShownToken, Terms, Token } from "../types.d.ts" */

/** @type {Record<Kind, string>} */
export const KINDS = {
  plain: "Chosen by the target; nothing was drafted.",
  accepted: "Draft token, accepted by the target.",
  rejected: "Draft token, rejected: the target chose another one.",
  unverified: "Draft token, not checked: it follows a rejected one.",
  correction: "Correction: the model's replacement for the rejected token.",
  bonus: "Bonus: accepted to the end of a branch, and the same check gave one token more.",
};

/** @param {number} n @param {string} one */
export const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

/** @param {number} value */
export const number = (value) => value.toFixed(2);

/**
 * For the timeline, with a comma in thousands.
 * @param {number} seconds
 */
export const inMs = (seconds) =>
  `${(1000 * seconds).toLocaleString("en", { maximumFractionDigits: seconds < 0.1 ? 1 : 0 })} ms`;

/**
 * For a sentence on one step.
 * @param {number} seconds
 */
export const milliseconds = (seconds) => `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;

/**
 * A probability in the space of a label.
 * @param {number} [value]
 */
export const short = (value) => (value === undefined ? "–" : value > 0 && value < 0.01 ? "< .01" : value.toFixed(2));

/**
 * @param {number} [value]
 * @param {Kind} [kind] of the token, where that explains why it is missing
 */
export function probability(value, kind) {
  if (value === undefined) return kind === "unverified" ? "not checked" : "unknown";
  return value > 0 && value < 0.001 ? "< 0.001" : value.toFixed(3);
}

/**
 * Whether speculative sampling decided a token.
 * @template {Token} T
 * @param {T} token
 * @returns {token is T & Decided}
 */
export const isDecided = (token) => token.draw !== undefined;

/**
 * How speculative sampling decided: it accepts where the uniform number r is below p ÷ q, or below the chance that
 * another rule gives the token.
 * @param {Pick<Decided, "draw" | "p" | "q" | "bound" | "kind">} token
 */
export function drawn({ draw, p, q, bound, kind }) {
  const chance = bound ?? p / q;
  const [r, ratio] = [draw.toFixed(2), chance.toFixed(2)];
  const digits = r === ratio ? 4 : 2; // or the two look alike
  const name = bound === undefined ? "p/q" : "chance";
  return `r ${draw.toFixed(digits)} ${kind === "accepted" ? "≤" : ">"} ${name} ${chance.toFixed(digits)}: ${kind}`;
}

/** @param {number} rank */
export function choice(rank) {
  if (!rank) return "not in the drafter's vocabulary";
  /** @type {Partial<Record<Intl.LDMLPluralRule, string>>} */
  const endings = { one: "st", two: "nd", few: "rd", other: "th" };
  return `drafter's ${rank}${endings[new Intl.PluralRules("en", { type: "ordinal" }).select(rank)]} choice`;
}

/**
 * Spaces at the ends and line breaks made visible, for a label.
 * @param {string} text
 */
export function oneLine(text) {
  if (!text) return "(part)";
  const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍");
  return shown.trim() ? shown.trim() : shown.replace(/\s/g, "␣");
}

const NO_TEXT = "none: part of a character that a later token completes, or of the stop string";

/**
 * A token's facts for the tooltip: rows of a name and a value.
 * @param {ShownToken} token
 */
export function rowsOf(token) {
  const rows = [["round", String(token.round)]];
  if (token.segment) rows.push(["part of", token.segment]);
  if (token.place) rows.push(["position", token.place]);
  rows.push(["p (target)", probability(token.p, token.kind)]);
  if (token.forced) rows.push(["drafted by", "the grammar, which forces it"]);
  else if (token.place) rows.push(["q (drafter)", probability(token.q)]);
  if (isDecided(token)) rows.push(["decided by", drawn(token)]);
  if (token.margin !== undefined) rows.push(["margin", `${token.margin.toFixed(2)} logits`]);
  if (token.rank !== undefined) rows.push(["target's choice", choice(token.rank)]);
  rows.push(["token id", token.id === undefined ? "unknown" : String(token.id)]);
  rows.push(["text", token.text ? JSON.stringify(token.text) : NO_TEXT]);
  return rows;
}

/**
 * What the other exact rule would have kept of a sampled draft, with the same random numbers.
 * @param {Round} round
 */
export function otherRule(round) {
  const { drafted, tree, otherRule: other } = round;
  const kept = acceptedOf(round).length;
  const chain = drafted.some(({ bound }) => bound !== undefined) ? "Token by token" : "Block verification";
  const rule = tree ? "The other rule for trees" : chain;
  return `${rule} would have kept ${other === kept ? "as many" : `${other} instead of ${kept}`} of this draft.`;
}

/**
 * What a round guessed and kept, in short.
 * @param {Pick<Round, "drafted" | "own">} round
 */
export function guessed(round) {
  const { drafted, own } = round;
  if (!drafted.length) return "no guess, 1 token";
  return `guessed ${drafted.length}, kept ${acceptedOf(round).length}${own ? ", +1 free" : ""}`;
}

/**
 * What the check cost beyond one token, and what it brought.
 * @param {Round} round
 * @param {number | null} plain the baseline's median pass in seconds, if known
 */
export function costOf(round, plain) {
  const { verify, draft } = round.times;
  const brought = `${count(gained(round), "token")} instead of 1`;
  if (verify === undefined || draft === undefined) return `It brought ${brought}.`;
  const beyond = plain === null ? "" : `, ${beside(verify - plain)} than a standard step (${milliseconds(plain)})`;
  return `Checking took ${milliseconds(verify)}${beyond}, drafting ${milliseconds(draft)}. It brought ${brought}.`;
}

const beside = (/** @type {number} */ seconds) => `${milliseconds(Math.abs(seconds))} ${seconds < 0 ? "less" : "more"}`;

/**
 * A round's figures for the timeline's tooltip: rows of a name and a value.
 * @param {Round} round
 */
export function factsOf(round) {
  const { times, drafted } = round;
  const part = (/** @type {number | undefined} */ seconds) => (seconds === undefined ? "unknown" : inMs(seconds));
  return [
    ["draft", part(times.draft)],
    ["verify", part(times.verify)],
    ["whole round", inMs(times.end - times.start)],
    ["tokens gained", String(gained(round))],
    ...(drafted.length ? [["accepted", `${acceptedOf(round).length} of ${drafted.length}`]] : []),
  ];
}

/**
 * The parts of a round's cost as far as they are known, in standard steps: pairs of a name and a size.
 * @param {Terms} terms
 * @returns {[string, number][]}
 */
export function partsOf({ verify, draft, other, cost }) {
  if (verify === null) return [["verify", cost]];
  return [
    ["verify", verify],
    ["draft", draft ?? 0],
    ["other", other ?? 0],
  ];
}
