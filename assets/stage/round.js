// The panel of the round that is chosen: what was drafted as a picture, and its phases in words. It stays at the foot of the
// window while the stage is in sight, so that what it says stands beside the text that was pressed.

import { button, hear, make, tell } from "./core.js";
import { acceptedOf } from "./log.js";
import { draftPicture } from "./tree.js";
import { choice, costOf, count, drawn, guessed, inMs, isDecided, otherRule, probability } from "./words.js";

/** @import { Rounds } from "./log.js" */
/** @import { Decided, Round, StageValue, Token } from "../types.d.ts" */

export function roundPart() {
  const title = make("p", "which");
  title.setAttribute("aria-live", "polite");
  const acts = /** @type {const} */ ([
    ["◂", "Back one round", () => step(-1)],
    ["▸", "Forward one round", () => step(1)],
    ["×", "Close", () => choose(0)],
  ]).map(([text, label, act]) => button("", text, act, { ariaLabel: label }));
  const picture = make("div", "picture");
  const steps = make("ol", "phases");
  const cost = make("p", "cost");
  const node = make("section", "round-panel", make("div", "head", title, ...acts), picture, steps, cost);
  node.setAttribute("aria-label", "The round");
  node.tabIndex = -1;
  node.hidden = true;

  /** @type {Rounds[]} */
  let rounds = [];
  /** @type {StageValue | null} */
  let value = null;
  let chosen = { lane: 1, round: 0 };

  /** @param {number} round */
  const choose = (round) => tell("select", { lane: chosen.lane, round });
  /** @param {number} by */
  const step = (by) => choose(Math.min(Math.max(chosen.round + by, 1), rounds[chosen.lane].all.length));

  const unfold = () => {
    draw(true);
    node.focus(); // the button that was pressed is gone
  };

  function draw(unfolded = false) {
    const round = rounds[chosen.lane]?.all[chosen.round - 1];
    node.hidden = !round;
    if (!round || !value) return;
    const { lanes, sampled } = value;
    const said = `${lanes[chosen.lane].title}, round ${chosen.round} of ${rounds[chosen.lane].all.length}`;
    title.textContent = `${said}: ${guessed(round)}`;
    picture.replaceChildren(...(round.drafted.length ? [draftPicture(round, unfolded, unfold)] : []));
    steps.replaceChildren(
      ...phasesOf(round, sampled).map(([name, ...parts]) =>
        make("li", name.toLowerCase(), make("b", "", name), make("span", "", ...parts)),
      ),
    );
    cost.textContent = costOf(round, lanes[0].timing?.pass_s ?? null);
  }

  node.addEventListener("keydown", ({ key }) => {
    if (key === "Escape") choose(0);
  });
  hear("select", (which) => {
    chosen = which;
    draw();
  });

  /** @param {StageValue} next @param {Rounds[]} logs */
  function show(next, logs) {
    const another = logs.length !== rounds.length || logs.some(({ restarted }) => restarted);
    [value, rounds] = [next, logs];
    if (another && chosen.round) choose(0);
  }
  return { node, show };
}

/**
 * What a round did, in words: rows of a phase's name and the parts of its sentence.
 * @param {Round} round
 * @param {boolean} sampled
 * @returns {[name: string, ...parts: (Node | string)[]][]}
 */
function phasesOf(round, sampled) {
  const { drafted, own, tree, times } = round;
  const took = (/** @type {number | undefined} */ seconds) =>
    seconds === undefined ? "in an unknown time" : `in ${inMs(seconds)}`;
  const accepted = acceptedOf(round);
  const kept = own ? [...accepted, own] : accepted;
  const deep = Math.max(0, ...drafted.map(({ position }) => position));
  const draft = !drafted.length
    ? ["Nothing was drafted."]
    : tree
      ? [`A tree of ${drafted.length} tokens, ${deep} deep, ${took(times.draft)}.`]
      : [`${count(drafted.length, "token")} ${took(times.draft)}: `, quoted(drafted)];
  const verify = drafted.length
    ? `The model checked ${drafted.length === 1 ? "it" : `all ${drafted.length}`} ${took(times.verify)}.`
    : `A standard step of the model ${took(times.verify)}.`;
  return [
    ["Draft", ...draft],
    ["Verify", verify],
    ["Decision", ...decision(round, sampled)],
    ["Kept", `${count(kept.length, "token")}: `, quoted(kept)],
  ];
}

/**
 * @param {Round} round
 * @param {boolean} sampled
 * @returns {(Node | string)[]}
 */
function decision(round, sampled) {
  const { drafted, own, tree } = round;
  const accepted = acceptedOf(round);
  if (!drafted.length) return ["The model chose ", quoted(own ? [own] : []), "."];
  const draws = drafted.filter(isDecided).map(drawnIn);
  if (draws.length)
    return [...draws, ...outcome(own), ...(round.otherRule === undefined ? [] : [` ${otherRule(round)}`])];
  const share = tree
    ? `${count(accepted.length, "token")} accepted`
    : `${accepted.length} of ${drafted.length} accepted`;
  if (!own) return [`${share}; the last one ends the text.`];
  if (own.kind === "bonus")
    return [
      `${share}, to the end of ${tree ? "a branch" : "the draft"}. The same check gives one more: `,
      quoted([own]),
      ".",
    ];
  const last = drafted.findLastIndex(({ kind }) => kind === "accepted");
  const refused = drafted.filter((token, i) => token.kind === "rejected" && (token.parent ?? i - 1) === last);
  const chances = (/** @type {Token} */ { p, q }) => ` (p ${probability(p)}, q ${probability(q)})`;
  const rule = sampled && !tree ? ", kept with probability p ÷ q where p is below q" : "";
  const first = refused.slice(0, 3).flatMap((token, i) => [i ? ", " : "", quoted([token]), chances(token)]);
  const more = refused.length > 3 ? ` and ${refused.length - 3} more` : "";
  return [
    `${share}. Rejected: `,
    ...first,
    more,
    rule,
    sampled ? ". Sampled in its place: " : ". The model's choice instead: ",
    quoted([own]),
    ` (p ${probability(own.p)}${own.rank === undefined ? "" : `, ${choice(own.rank)}`}).`,
  ];
}

/**
 * Speculative sampling: the number that decided a token.
 * @param {Decided} token
 */
const drawnIn = (token) => make("span", "drawn", quoted([token]), ` ${drawn(token)}`);

/**
 * The token that the target added after sampled drafts.
 * @param {Token | undefined} own
 */
function outcome(own) {
  if (!own) return ["The last one ends the text."];
  const how = own.kind === "bonus" ? "All accepted: the same check gives one more: " : "Sampled in its place: ";
  return [how, quoted([own]), ` (p ${probability(own.p)}).`];
}

/** @param {Token[]} tokens */
function quoted(tokens) {
  const text = tokens
    .map((token) => token.text)
    .join("")
    .replace(/\n/g, "↵");
  const node = make("bdi", "quoted", text.length > 80 ? `${text.slice(0, 79)}…` : text || "no visible text");
  return node;
}
