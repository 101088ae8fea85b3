// The elements of a token panel: a round's tokens, what was rejected, and where the outputs differ. All text
// enters through textContent.

import { cellOf, placesOf, visible } from "./cells.js";
import { make } from "./core.js";
import { acceptedOf } from "./log.js";
import { oneLine } from "./words.js";

/** @import { Difference, Round, RoundNode, Token, TokenNode } from "../types.d.ts" */

/**
 * A round's tokens that were kept, which also go to `output`; and the others, where the switch asks for them.
 * @param {Round} log
 * @param {number} number
 * @param {TokenNode[]} output
 * @returns {RoundNode}
 */
export function roundOf(log, number, output) {
  const kept = acceptedOf(log);
  const place = placesOf(log);
  const spans = [...kept, ...(log.own ? [log.own] : [])].map((token) => {
    const span = tokenOf(token, number, place(token), "span");
    span.token.at = output.push(span) - 1;
    return span;
  });
  /** @type {RoundNode} */
  const round = Object.assign(make("span", `round ${log.drafted.length ? "drafts" : "idle"}`), { log, spans });
  round.dataset.round = String(number);
  spans.forEach((span) => round.append(...(span.lead ? [span.lead, span] : [span])));
  if (kept.length < log.drafted.length) spellOut(round);
  return round;
}

const GUESSES = 4; // that are shown of those which were not kept

/**
 * Shows a round as its guesses: those that will be kept stand where they will stand, the others beside them, out of the
 * flow.
 * @param {RoundNode} round
 */
export function guessesOf(round) {
  const { drafted } = round.log;
  const wrong = drafted.filter(({ kind }) => kind !== "accepted").slice(0, GUESSES);
  const guesses = make("span", "guesses", ...wrong.map(({ text }) => make("span", "", oneLine(text))));
  const own = round.spans[acceptedOf(round.log).length];
  round.classList.add("guessing");
  if (own) (own.lead ?? own).before(guesses);
  else round.append(guesses);
}

/**
 * Where the switch asks for it: shows what was rejected before the token that took its place. Of a tree that is what the
 * target judged.
 * @param {RoundNode} round
 */
export function spellOut(round) {
  if (!document.body.classList.contains("show-guesses")) return;
  const { drafted, tree } = round.log;
  const place = placesOf(round.log);
  const accepted = acceptedOf(round.log).length;
  for (const token of drafted) {
    if (token.kind === "accepted" || (tree && token.kind === "unverified")) continue;
    const dropped = tokenOf(token, Number(round.dataset.round), place(token), "del");
    const instead = round.spans[Math.min(token.position - 1, accepted)];
    if (instead) (instead.lead ?? instead).before(dropped);
    else round.append(dropped);
  }
}

/**
 * A token's element. Leading white space stands before it as a text node of its own, `lead`, and takes no mark.
 * @param {Token} token
 * @param {number} round
 * @param {string} place
 * @param {"span" | "del"} tag
 * @returns {TokenNode}
 */
function tokenOf(token, round, place, tag) {
  const { classes, spaces } = cellOf(token, tag === "del");
  /** @type {TokenNode} */
  const span = Object.assign(make(tag, classes), { token: { ...token, round, place }, spaces });
  if (spaces) span.lead = document.createTextNode("");
  span.tabIndex = -1;
  span.dataset.round = String(round);
  if (token.id !== undefined) span.dataset.id = String(token.id);
  write(span);
  return span;
}

/**
 * Marks a token as code. Its leading white space stays inside it, so that indented lines are aligned.
 * @param {TokenNode} span
 */
export function asCode(span) {
  span.classList.add("code");
  span.lead?.remove();
  Object.assign(span, { lead: undefined, spaces: 0 });
  write(span);
}

/** @param {TokenNode} span */
export function write(span) {
  const text = document.body.classList.contains("show-guesses") ? visible : String;
  span.textContent = text(span.token.text.slice(span.spaces));
  if (span.lead) span.lead.data = text(span.token.text.slice(0, span.spaces));
}

/**
 * The line between what the outputs have in common and the rest.
 * @param {Difference} difference
 */
export function differs({ index, margin, texts, total, expected }) {
  if (expected) return make("span", "differs expected", "Random sampling: the texts differ from here on, as expected");
  const [ours, theirs] = texts.map((text) => `“${oneLine(text)}”`);
  const logits = margin === null ? "" : `, logits ${margin.toFixed(2)} apart`;
  const same = index ? `identical up to token ${index} of ${total}` : "different from the first token";
  const node = make("span", "differs", make("b", "", same), ` · outputs differ here: ${ours} / ${theirs}${logits}`);
  node.setAttribute("role", "note");
  return node;
}
